"""Receipts of a run: which paid steps it used, and what their ledgers say has happened since.

A mark is what a step's receipt was when the run first used it. Marks are plain values: the command
line's Spark process hands them to its parent, who reads the ledgers after that process is gone.
No pyspark here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.ledger.opening import open_ledger
from holdfast.ledger.receipt import Receipt, receipt_of

_collected: ContextVar[dict[tuple[str, int], Mark] | None] = ContextVar("marks", default=None)


@dataclass(frozen=True, slots=True)
class Mark:
    """A paid step at the moment it was first used: its ledger, its id there, and its receipt."""

    ledger: str
    step: int
    before: Receipt

    def to_wire(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)

    @classmethod
    def from_wire(cls, values: dict[str, Any]) -> Mark:
        """Return what `to_wire` packed."""
        return cls(values["ledger"], values["step"], Receipt(**values["before"]))


@contextmanager
def collecting() -> Iterator[dict[tuple[str, int], Mark]]:
    """Collect the first mark of every paid step that the block uses."""
    marks: dict[tuple[str, int], Mark] = {}
    token = _collected.set(marks)
    try:
        yield marks
    finally:
        _collected.reset(token)


def note(mark: Mark) -> None:
    """Remember a mark, if somebody collects them and this is the step's first."""
    marks = _collected.get()
    if marks is not None:
        marks.setdefault((mark.ledger, mark.step), mark)


def receipt_at(url: str, step: int, name: str) -> Receipt:
    """Return a step's receipt over its ledger's life, with dead owners read out."""
    ledger = open_ledger(url, create=False)
    try:
        ledger.tidy()
        return receipt_of(ledger, step, name)
    finally:
        ledger.close()


def receipts_since(marks: Iterable[Mark]) -> tuple[Receipt, ...]:
    """Return what happened to each step since it was marked."""
    return tuple(
        receipt_at(mark.ledger, mark.step, mark.before.step).since(mark.before) for mark in marks
    )
