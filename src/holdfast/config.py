"""Every limit and time-out, with its unit in its name and its reason beside it."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Config:
    """What may be set. The defaults suit one machine with a few cores."""

    chunk_bytes: int = 32 * MIB
    """Size at which an input file is cut. Smaller: more rows in the store and smaller tasks than
    Spark likes. Larger: fewer tasks than cores, and more memory per parse."""

    batch_bytes: int = 64 * MIB
    """Input of one Spark job. Smaller: the fixed cost of a job (0.2 s) shows. Larger: more work
    is repeated after a crash, and results stream out later."""

    batch_chunks: int = 1000
    """Most chunks in one batch: many tiny files must not make one plan without end."""

    attempts_max: int = 3
    """Failed attempts after which a run is FAILED. Fewer: a passing fault ends a run. More: a
    stage that always fails is paid for that often."""

    transaction_wait_s: float = 60.0
    """How long a store transaction waits for another process's. Transactions take milliseconds;
    a longer wait means that the other one hangs."""

    fetch_records: int = 1000
    """Records taken from a topic at once: bounds memory, costs one query per so many chunks."""


DEFAULT = Config()
