"""Every limit and time-out, with its unit in its name and its reason beside it.

Where the command line takes them from, and how they are written there: docs/configuration.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from holdfast.errors import UsageInvalid

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Range:
    """The smallest and the largest value that a number may have."""

    least: float
    most: float


def _number(default: Any, least: float, most: float) -> Any:
    return field(default=default, metadata={"range": Range(least, most)})


@dataclass(frozen=True, slots=True)
class Config:
    """What may be set. The defaults suit one machine with a few cores.

    Raises:
        UsageInvalid: a number is out of its range.
    """

    chunk_bytes: int = _number(32 * MIB, 1, 1024 * MIB)
    """Size at which an input file is cut. Smaller: more rows in the store and smaller tasks than
    Spark likes. Larger: fewer tasks than cores, and more memory per parse."""

    batch_bytes: int = _number(64 * MIB, 1, 1 << 50)
    """Input of one Spark job. Smaller: the fixed cost of a job (0.2 s) shows. Larger: more work
    is repeated after a crash, and results stream out later."""

    batch_chunks: int = _number(1000, 1, 100_000)
    """Most chunks in one batch: many tiny files must not make one plan without end."""

    works_at_once: int = _number(2, 1, 64)
    """Works of different runs that a service's engine has under way together. Fewer: cores idle
    while Spark plans, or waits for the last task of a job. More: they share the same memory."""

    attempts_max: int = _number(3, 1, 1000)
    """Failed attempts after which a run is FAILED. Fewer: a passing fault ends a run. More: a
    stage that always fails is paid for that often."""

    transaction_wait_s: float = _number(60.0, 0.001, 3600.0)
    """How long a store transaction waits for another process's. Transactions take milliseconds;
    a longer wait means that the other one hangs."""

    lease_patience_s: float = _number(10.0, 0.1, 3600.0)
    """How long the active engine or delivery of a service may be silent before one that stands by
    takes over; it beats ten times as often. Shorter: a machine that is busy for a moment changes
    owners. Longer: a stopped process holds everybody up for so long. A dead one never does."""

    fetch_records: int = _number(1000, 1, 100_000)
    """Records taken from a topic at once: bounds memory, costs one query per so many chunks."""

    master: str = "local[*]"
    """Where the command line runs Spark: all cores of this machine. `Pipeline.run` has a session
    already and takes no notice."""

    spark: Mapping[str, str] = field(default_factory=dict)
    """Spark settings of the command line's own session. They win over those that Holdfast chooses
    for the machine. `Pipeline.run` has a session already and takes no notice."""

    def __post_init__(self) -> None:
        """Refuse what is out of range, wherever it came from."""
        for name, allowed in RANGES.items():
            value = getattr(self, name)
            if not allowed.least <= value <= allowed.most:
                raise UsageInvalid(what=f"{name} = {value}", remedy=remedy_of(allowed))


def remedy_of(allowed: Range) -> str:
    """Return what to do about a number that is out of range."""
    return f"Give a number from {allowed.least:g} to {allowed.most:.15g}."


RANGES: Mapping[str, Range] = {
    setting.name: setting.metadata["range"]
    for setting in fields(Config)
    if "range" in setting.metadata
}

DEFAULT = Config()
