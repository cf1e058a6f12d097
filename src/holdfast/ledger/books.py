"""A ledger read as a whole: every slot of it, what each step has asked and spent, and a way out.

The contract that each kind of ledger fulfils (`file_books.py`, `postgres/books.py`), and what is
the same for all: states, choices, ranges, views. `opening.open_books` opens them by URL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from holdfast.errors import UsageInvalid
from holdfast.ledger.contract import HASH_BYTES, Outcome, Slot
from holdfast.ledger.receipt import Receipt


class SlotState(StrEnum):
    """What is known of a slot."""

    BOUGHT = "bought"
    PARKED = "parked"
    FAILED = "failed"
    OPEN = "open"
    IN_DOUBT = "in doubt"


@dataclass(frozen=True, slots=True)
class SlotView:
    """One slot as people see it. `answer` is the JSON text of the answer's columns."""

    step: str
    generation: int
    key: str
    state: SlotState
    answer: str | None
    reason: str
    attempts: int
    cost_micros: int
    recorded_ms: int
    dead_letter: bool
    slot: str


@dataclass(frozen=True, slots=True)
class StepView:
    """One generation of a step, and what it has done."""

    id: int
    name: str
    generation: int
    calls: int
    open: int
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class Choice:
    """Which slots are meant. None is every one."""

    step: str | None = None
    key: str | None = None
    states: frozenset[SlotState] | None = None

    def takes(self, state: SlotState) -> bool:
        """Tell whether slots of a state are meant."""
        return self.states is None or state in self.states


@dataclass(frozen=True, slots=True)
class HashRange:
    """The slots whose hash is at least `low` and below `high`. `high` None: to the end."""

    low: bytes = b""
    high: bytes | None = None

    def holds(self, hash_: bytes) -> bool:
        """Tell whether a slot is in it."""
        return self.low <= hash_ and (self.high is None or hash_ < self.high)


WHOLE = HashRange()


def ranges_of(count: int) -> list[HashRange]:
    """Cut all slots into about equal parts, the same at every moment and whatever is compacted."""
    edges = [(n * (1 << 8 * HASH_BYTES) // count).to_bytes(HASH_BYTES, "big") for n in range(count)]
    return [HashRange(low, high) for low, high in zip(edges, [*edges[1:], None], strict=True)]


class Books(Protocol):
    """The slots and steps of a ledger that exists. Questions change nothing that is known."""

    def steps(self) -> list[StepView]:
        """Return every generation of every step, in order of their making."""

    def chosen_steps(self, choice: Choice) -> dict[int, tuple[str, int]]:
        """Return id -> (name, generation) of the steps that are meant.

        Raises:
            UsageInvalid: the choice names a step that the ledger does not know.
        """

    def rows(self) -> int:
        """Return how many slots there are, about: others may be working."""

    def slots(self, choice: Choice, within: HashRange = WHOLE) -> Iterator[SlotView]:
        """Yield the slots that are meant, each once, whatever others do meanwhile.

        Memory is bounded by a part of them, however many there are.
        """

    def drop(self, choice: Choice) -> int:
        """Take chosen outcomes and slots in doubt out, all or none. Returns how many.

        They are then as if never asked; their idempotency keys stay. What was spent stays spent. A
        slot that is open is its owner's: it is left alone.

        Raises:
            LedgerInUse: some of them cannot be taken out while a process lives (files only).
        """

    def sweep_blobs(self) -> bool:
        """Remove large answers that no outcome names. False: not while a job might write one."""

    def close(self) -> None:
        """Close the ledger."""


def chosen_of(
    choice: Choice, steps: Iterable[tuple[int, str, int]], label: str
) -> dict[int, tuple[str, int]]:
    """Return id -> (name, generation) of those of `steps` that are meant.

    Raises:
        UsageInvalid: the choice names none of them.
    """
    known = list(steps)
    found = {
        id_: (name, generation) for id_, name, generation in known if choice.step in (None, name)
    }
    if choice.step is not None and not found:
        names = ", ".join(sorted({name for _, name, _ in known})) or "none"
        raise UsageInvalid(
            what=f"the ledger {label} has no step {choice.step}", remedy=f"Its steps: {names}."
        )
    return found


def no_ledger(place: str) -> UsageInvalid:
    """Return the error for a place where there is no ledger."""
    return UsageInvalid(what=f"there is no ledger at {place}", remedy="Name one that exists.")


def open_view(slot: Slot, owner: int | None, attempts: int, step: str, generation: int) -> SlotView:
    """Return how people see a slot without an outcome."""
    return SlotView(
        step, generation, slot.key, open_state(owner), None, "", attempts, 0, 0, False,
        slot.hash.hex(),
    )  # fmt: skip


def open_state(owner: int | None) -> SlotState:
    """Return the state of a slot without an outcome."""
    return SlotState.IN_DOUBT if owner is None else SlotState.OPEN


def settled_view(outcome: Outcome, step: str, generation: int) -> SlotView:
    """Return how people see a slot with its outcome."""
    return SlotView(
        step,
        generation,
        outcome.slot.key,
        SlotState(outcome.status),
        None if outcome.answer is None else outcome.answer.decode(),
        outcome.reason,
        outcome.attempts,
        outcome.cost_micros,
        outcome.recorded_ms,
        outcome.dead_letter,
        outcome.slot.hash.hex(),
    )


def url_of(ledger: str) -> str:
    """Return the URL of a ledger as a person types it: a URL, or a path from here."""
    return ledger if ":" in ledger.split("/", maxsplit=1)[0] else str(Path(ledger).absolute())
