"""What a ledger must do: claims, settlements, lookups. Words: docs/paid-calls.md.

A **slot** is one thing to be bought: (ledger, step, key). An **intent** is a claimed slot; it is
durable before the provider hears of it. An **outcome** is durable before anybody sees it. A slot
whose owner died between the two is **in doubt**.

Nothing here says how an owner's death is seen: a file ledger asks the operating system (a lock),
one in PostgreSQL watches a counter and fences by epoch. Both answer `reap`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NewType, Protocol

from holdfast._base.ids import digest, digest_bytes

SlotHash = NewType("SlotHash", bytes)
"""16 bytes that name a slot; settled slots are sorted by them."""

HASH_BYTES = 16
MICROS = 1_000_000
"""Money is counted in integer millionths of a dollar: sums of floats depend on their order."""


class Status(StrEnum):
    """How a row came to its answer. `REUSED` is said to readers and never stored."""

    BOUGHT = "bought"
    REUSED = "reused"
    PARKED = "parked"
    FAILED = "failed"


def slot_hash(step: int, key: str, *, inputs: bytes | None = None) -> SlotHash:
    """Return the name of a slot. With `inputs`, of the one that these changed inputs get."""
    parts: tuple[str | int | bytes, ...] = (step, key) if inputs is None else (step, key, inputs)
    return SlotHash(digest_bytes("slot", *parts))


def inputs_hash(sent: bytes) -> bytes:
    """Return the hash of what is sent to the provider."""
    return digest_bytes("inputs", sent)


def idempotency_key(ledger_id: str, slot: Slot) -> str:
    """Return the key that every attempt for a slot carries."""
    return digest("call", ledger_id, slot.step, slot.hash)


@dataclass(frozen=True, slots=True)
class Slot:
    """One thing to be bought, and the hash of the inputs it is bought with."""

    hash: SlotHash
    step: int
    key: str
    inputs: bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a slot. `answer` is None unless it was bought."""

    slot: Slot
    status: Status
    answer: bytes | None = None
    reason: str = ""
    attempts: int = 1
    cost_micros: int = 0
    recorded_ms: int = 0
    dead_letter: bool = False


@dataclass(frozen=True, slots=True)
class OpenSlot:
    """A claimed slot without an outcome. `owner` None: the owner died, the slot is in doubt."""

    owner: int | None
    attempts: int
    inputs: bytes


@dataclass(frozen=True, slots=True)
class View:
    """What a lookup found: outcomes and open slots by hash. What is in neither was never asked.

    `generation` names the settled files that were searched; a claim is granted only against it.
    """

    generation: int
    outcomes: Mapping[SlotHash, Outcome]
    open: Mapping[SlotHash, OpenSlot]


@dataclass(frozen=True, slots=True)
class Claim:
    """A wish for a slot. `after` is the in-doubt slot that is taken over, None for a new one.

    Without `call` it is taken to be parked: no attempt is counted, no budget is asked.
    """

    slot: Slot
    after: OpenSlot | None = None
    call: bool = True


@dataclass(frozen=True, slots=True)
class Limit:
    """Hard caps of a step over the ledger's life. None is no cap."""

    calls: int | None = None
    cost_micros: int | None = None
    each_micros: int = 0
    """What one call is expected to cost: reserved by its claim until its price is known."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a claim got: granted hashes with their attempt number.

    What is in no field was taken by somebody else in between: look it up again.
    """

    attempts: Mapping[SlotHash, int] = field(default_factory=dict)
    over_budget: tuple[SlotHash, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """A registered step. `id` differs for each generation of a name."""

    id: int
    name: str
    generation: int


@dataclass(frozen=True, slots=True)
class Totals:
    """What a step has asked and spent over the ledger's life."""

    calls: int
    spent_micros: int
    reserved_micros: int
    dearest_micros: int
    settled: Mapping[Status, int]
    open: int
    in_doubt: int


@dataclass(frozen=True, slots=True)
class Reused:
    """How often a step's recorded answers were given instead of calls, and what they had cost."""

    answers: int = 0
    saved_micros: int = 0


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A row that the provider refused for good."""

    step: int
    key: str
    reason: str
    recorded_ms: int


class Ledger(Protocol):
    """Claims, settlements and lookups. All methods may be called from any thread."""

    @property
    def id(self) -> str:
        """The random id given when the ledger was made."""

    def step(self, name: str, fingerprint: Mapping[str, str], *, on_change: str) -> Step:
        """Register a step, or find it. `on_change`: refuse, new or keep.

        Raises:
            StepChanged: the fingerprint differs and `on_change` is refuse.
        """

    def lookup(self, slots: Sequence[SlotHash]) -> View:
        """Return what is known of slots. Every outcome returned is durable."""

    def claim(self, claims: Sequence[Claim], *, generation: int, limit: Limit) -> Grant:
        """Take slots, durably, in one transaction; each is granted to one asker.

        A stale `generation` grants nothing. A granted slot may be called; no other may be.
        """

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Make the outcomes of this owner's slots durable before returning.

        Others may see them a little later; `flush` says when that must have happened.
        """

    def flush(self) -> None:
        """Make everything that was settled visible to others before returning."""

    def release(self, given: Sequence[Slot], *, in_doubt: bool = False) -> None:
        """Give back claimed slots that were not called, or whose failure is not to be kept.

        With `in_doubt` they are kept as such: the provider may have charged for them.
        """

    def reap(self, owners: Sequence[int]) -> bool:
        """Read what dead ones of `owners` recorded; their other slots are then in doubt.

        Returns whether any was dead. A live owner is left alone.
        """

    @property
    def is_sure(self) -> bool:
        """Tell, without asking anybody, that nobody else can own this owner's slots yet."""

    def assure(self) -> None:
        """Make sure of it, however long that takes. Asked before a call when `is_sure` is false.

        Raises:
            Fenced: others own them. What this owner has not called must not be called.
        """

    @property
    def is_usable(self) -> bool:
        """Tell whether this handle may still claim."""

    def verify(self) -> None:
        """Compare checksums, as far as they are not compared at each reading. For a job's start.

        Raises:
            Damaged: something is not what was written.
        """

    def tidy(self) -> None:
        """Read out owners that are known to be dead, and compact what is due. For a job's start."""

    def rate_file(self, step: int) -> Path:
        """Return the file by which the tasks of this host share a step's rate."""

    def totals(self, step: int) -> Totals:
        """Return what a step has asked and spent."""

    def count_reused(self, step: int, added: Reused) -> None:
        """Add, durably, to how often recorded answers were given. A task does it at its end."""

    def reused(self, step: int) -> Reused:
        """Return how often recorded answers were given, over the ledger's life."""

    def dead_letters(self, step: int) -> Iterator[DeadLetter]:
        """Yield the rows refused for good under on_error="dead_letter"."""

    def abandon(self) -> None:
        """End this owner as a crash would: what is not settled is in doubt for the next asker."""

    def close(self) -> None:
        """Flush and end this owner. Slots still open are in doubt afterwards."""
