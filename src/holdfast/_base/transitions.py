"""A table of allowed moves between states, for anything that has states.

It knows nothing of what has them, nor of where they are kept. Whoever persists a move asks
`require` in the transaction that makes it, so that no code path goes around the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from holdfast._base.invariant import invariant

State = TypeVar("State", bound=StrEnum)


class Transitions(Generic[State]):
    """Where each state may lead. A state that leads nowhere is the end."""

    def __init__(self, table: Mapping[State, frozenset[State]]) -> None:
        self.table = dict(table)

    def allow(self, current: State, to: State) -> bool:
        """Tell whether a move is in the table."""
        return to in self.table[current]

    def require(self, current: State, to: State, *, what: str) -> None:
        """Stop with InvariantViolated if a move of `what` is not in the table: a bug of ours."""
        invariant(self.allow(current, to), f"{what}: no move leads from {current} to {to}")
