"""The rarer options of a paid step, in small groups, and what is refused about them at once."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import UsageInvalid
from holdfast.ledger.caller import Limits
from holdfast.ledger.opening import check_url
from holdfast.ledger.rules import OnChange, OnError, OnInputChange

LEDGER_VARIABLE = "HOLDFAST_LEDGER"


@dataclass(frozen=True, slots=True)
class Budget:
    """Hard caps of a step over the ledger's life, and what a call costs.

    `cost` is dollars per call, or a function of the answer. With a number the cap is never passed.
    With a function the dearest answer so far is reserved for each open call, so it can be passed
    only while prices grow.
    """

    calls: int | None = None
    usd: float | None = None
    cost: float | Callable[[Any], float] | None = None


@dataclass(frozen=True, slots=True)
class OnTrouble:
    """What to do when something is not as it should be.

    `unknown`: a call whose outcome a crash or time-out hid: "retry" with the same idempotency
    key, "park" (null, listed), or a function (row, idempotency_key) that asks the provider and
    returns the answer, or None if it knows of no such call.
    `error`: a call that failed for good: "raise", "null", or "dead_letter" (null, and listed).
    `change`: the step's fingerprint differs: "refuse", "new" (buy all anew), "keep".
    `input_change`: a known key has other inputs: "refuse", "new" (a slot of its own), "keep".
    `retryable`: tells which exceptions of the function are worth another attempt, besides HTTP
    408, 425, 429, 5xx, connection errors, time-outs and those with `retryable = True`.
    """

    unknown: str | Callable[[Any, str], Any] = "retry"
    error: OnError = "raise"
    change: OnChange = "refuse"
    input_change: OnInputChange = "refuse"
    retryable: Callable[[BaseException], bool] | None = None


def checked_name(name: str) -> str:
    """Return a step's name, or refuse it by name."""
    if not name.isidentifier():
        raise UsageInvalid(
            what=f"{name!r} cannot name a paid step",
            remedy="Use letters, digits and underscores: it becomes part of a column's name.",
        )
    return name


def checked_url(ledger: str | None) -> str:
    """Return the ledger's URL, given or from the environment, or refuse it by name."""
    url = ledger or os.environ.get(LEDGER_VARIABLE)
    if not url:
        raise UsageInvalid(
            what="a paid step needs a ledger",
            remedy=f"Give ledger='file:///a/path', or set {LEDGER_VARIABLE}.",
        )
    check_url(url)
    return url


def checked_columns(what: str, columns: str | Sequence[str]) -> tuple[str, ...]:
    """Return names of columns, one of which may be given bare, or refuse them by name."""
    found = (columns,) if isinstance(columns, str) else tuple(columns)
    if not found or not all(found) or len(set(found)) != len(found):
        raise UsageInvalid(
            what=f"{what}={columns!r} names no column, or one twice",
            remedy=f"Give {what}='column' or {what}=['first', 'second'].",
        )
    return found


def checked_function(
    function: Callable[..., Any], setup: Callable[[], Any] | None, name: str
) -> Callable[..., Any]:
    """Return a paid function that can be called as it will be, or refuse it by name."""
    given = "(row, value of setup)" if setup is not None else "(row)"
    if not all(callable(one) for one in (function, setup) if one is not None):
        raise UsageInvalid(
            what=f"paid step {name}: its function or setup= cannot be called",
            remedy="Give functions, not their values.",
        )
    arguments = (None,) if setup is None else (None, None)
    try:
        keyed = {"idempotency_key": ""} if takes_key(function) else {}
        inspect.signature(function).bind(*arguments, **keyed)
    except TypeError as error:
        raise UsageInvalid(
            what=f"paid step {name}: its function cannot be called as function{given}: {error}",
            remedy="It takes one row (a list with batch=), setup's value, and idempotency_key.",
        ) from error
    except ValueError:
        pass  # one written in C that does not say what it takes
    return function


def takes_key(function: Callable[..., Any]) -> bool:
    """Tell whether a function has a parameter `idempotency_key`."""
    try:
        return "idempotency_key" in inspect.signature(function).parameters
    except ValueError:
        return False


def checked_budget(budget: Budget) -> Budget:
    """Return caps and prices, or refuse them by name."""
    price = budget.cost if isinstance(budget.cost, (int, float)) else 0
    if min(budget.calls or 0, budget.usd or 0, price) < 0:
        raise UsageInvalid(what=f"{budget} has a negative number", remedy="Use positive ones.")
    if budget.usd is not None and budget.cost is None:
        raise UsageInvalid(
            what=f"{budget} caps money, and does not say what a call costs",
            remedy="Give cost=: dollars per call, or a function of the answer.",
        )
    return budget


def checked_limits(limits: Limits, batch: int | None) -> Limits:
    """Return limits, or refuse it by name."""
    rate = limits.rate_per_s
    good = limits.max_in_flight >= 1 and limits.intent_ahead >= 0 and limits.attempts >= 1
    if not good or limits.timeout_s <= 0 or (rate is not None and rate <= 0):
        raise UsageInvalid(what=f"{limits} has a limit out of range", remedy="Use positive ones.")
    if batch is not None and not 1 <= batch <= limits.max_in_flight:
        raise UsageInvalid(
            what=f"batch={batch} is not between 1 and max_in_flight={limits.max_in_flight}",
            remedy="max_in_flight counts rows: raise it.",
        )
    return limits


def checked_trouble(trouble: OnTrouble) -> OnTrouble:
    """Return policies, or refuse it by name."""
    allowed = {
        "unknown": ("retry", "park"),
        "error": ("raise", "null", "dead_letter"),
        "change": ("refuse", "new", "keep"),
        "input_change": ("refuse", "new", "keep"),
    }
    for name, values in allowed.items():
        value = getattr(trouble, name)
        if value not in values and not (name == "unknown" and callable(value)):
            raise UsageInvalid(
                what=f"OnTrouble({name}={value!r}) is unknown", remedy=f"Use one of {values}."
            )
    return trouble
