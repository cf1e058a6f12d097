"""Checks of our own reasoning that stay in production.

Python drops `assert` under `-O`, so a property that protects data is checked by `invariant`.
"""

from __future__ import annotations

from holdfast.errors import InvariantViolated


def invariant(holds: bool, what: str) -> None:
    """Stop if a property that our own code promises does not hold.

    Raises:
        InvariantViolated: `holds` is false. It is a bug of Holdfast, never of the caller.
    """
    if not holds:
        raise InvariantViolated(what=what)
