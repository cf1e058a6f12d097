"""Pure decisions of the paid call: what to do with a slot, an error, a changed step.

Nothing here reads or writes; every rule is a table that a test can walk through.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from holdfast.errors import HoldfastError, ProviderBusy, StepChanged
from holdfast.ledger.contract import OpenSlot, Outcome, Slot, Status

OnUnknown = Literal["retry", "park", "reconcile"]
OnError = Literal["raise", "null", "dead_letter"]
OnChange = Literal["refuse", "new", "keep"]
OnInputChange = Literal["refuse", "new", "keep"]

SUSPECT_ATTEMPTS = 2
"""A slot that was open at two deaths is called alone. One death leaves up to a whole window in
doubt, and only one of it may be the killer; alone, a third death convicts nobody else."""

BACKOFF_FIRST_S = 0.5
BACKOFF_MOST_S = 60.0
"""The wait doubles from the first to the most. Less: a struggling provider is kept down. More:
rows wait longer than providers' own hints ask for."""

RETRY_AFTER_MOST_S = 3600.0
"""The longest wait that a provider is granted: without a limit one bad header stops a job."""

_RETRYABLE_HTTP = frozenset({408, 425, 429, 500, 502, 503, 504})
_LOST_NAMES = ("Timeout", "TimeoutError", "TimeoutException", "ConnectionError", "TransportError")
"""How httpx, requests, openai, aiohttp and botocore end the names of what means: no answer came."""


class Move(Enum):
    """What to do with a slot."""

    REUSE = "reuse"
    RAISE = "raise"
    WAIT = "wait"
    CLAIM = "claim"
    CLAIM_ALONE = "claim alone"
    RECONCILE = "reconcile"
    PARK = "park"
    INPUT_CHANGED = "input changed"
    OTHER_SLOT = "other slot"


@dataclass(frozen=True, slots=True)
class Policy:
    """What the user chose for trouble."""

    unknown: OnUnknown = "retry"
    error: OnError = "raise"
    input_change: OnInputChange = "refuse"
    attempts: int = 5


def next_move(slot: Slot, known: Outcome | OpenSlot | None, policy: Policy) -> Move:
    """Return what to do with a slot, given what the ledger knows of it."""
    if known is None:
        return Move.CLAIM
    inputs = known.slot.inputs if isinstance(known, Outcome) else known.inputs
    if inputs != slot.inputs and policy.input_change == "refuse":
        return Move.INPUT_CHANGED
    if inputs != slot.inputs and policy.input_change == "new":
        return Move.OTHER_SLOT
    if isinstance(known, Outcome):
        failed = known.status is Status.FAILED and policy.error == "raise"
        return Move.RAISE if failed else Move.REUSE
    if known.owner is not None:
        return Move.WAIT
    return _in_doubt(known, policy)


def _in_doubt(known: OpenSlot, policy: Policy) -> Move:
    if policy.unknown == "park" or known.attempts >= policy.attempts:
        return Move.PARK
    if policy.unknown == "reconcile":
        return Move.RECONCILE
    return Move.CLAIM_ALONE if known.attempts >= SUSPECT_ATTEMPTS else Move.CLAIM


@dataclass(frozen=True, slots=True)
class Trouble:
    """What an exception of a call means. `unknown`: the provider may have charged for it."""

    retryable: bool
    unknown: bool
    retry_after_s: float
    text: str


def trouble_of(error: BaseException, marked: Callable[[BaseException], bool] | None) -> Trouble:
    """Read an exception: retryable if it says so, if HTTP says so, or if `marked` says so."""
    text = text_of(error)
    if isinstance(error, HoldfastError):
        after = error.retry_after_s if isinstance(error, ProviderBusy) else 0.0
        return Trouble(error.retryable, False, min(after, RETRY_AFTER_MOST_S), str(error))
    if _is_lost(error):
        return Trouble(True, True, 0.0, text)
    retryable = bool(getattr(error, "retryable", False)) or _http_status(error) in _RETRYABLE_HTTP
    if not retryable and marked is not None:
        try:
            retryable = bool(marked(error))
        except Exception as mistake:  # the user's own rule is wrong, in any way
            text = f"{text} (and `retryable` raised {text_of(mistake)})"
    return Trouble(retryable, False, _retry_after_s(error), text)


def text_of(error: BaseException) -> str:
    """Return an exception in words that every ledger can hold, whatever its own text is."""
    try:
        text = str(error)
    except Exception:  # a class of the user's
        text = "its text cannot be made"
    whole = f"{type(error).__name__}: {text}".replace("\0", "\\0")
    return whole.encode("utf-8", "replace").decode()


def _is_lost(error: BaseException) -> bool:
    """Tell whether no answer came, so that the provider may have charged.

    Clients of HTTP have classes of their own for it, which derive from nothing of Python's.
    """
    if isinstance(error, (TimeoutError, ConnectionError, asyncio.CancelledError)):
        return True
    reason = getattr(error, "reason", None)  # of urllib's URLError
    if isinstance(reason, (TimeoutError, ConnectionError)):
        return True
    return any(cls.__name__.endswith(_LOST_NAMES) for cls in type(error).__mro__)


def _http_status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    for holder, name in ((error, "status_code"), (error, "code"), (response, "status_code")):
        value = getattr(holder, name, None)
        if isinstance(value, int):
            return value
    return None


def _retry_after_s(error: BaseException) -> float:
    """Return what the provider asked for, in seconds; dates are left to the backoff."""
    response: Any = getattr(error, "response", None)
    headers = getattr(error, "headers", None) or getattr(response, "headers", None) or {}
    value = getattr(error, "retry_after", None)
    if value is None and hasattr(headers, "get"):
        value = headers.get("Retry-After") or headers.get("retry-after")
    try:
        seconds = float(value) if value is not None else 0.0
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return 0.0 if math.isnan(seconds) else min(max(0.0, seconds), RETRY_AFTER_MOST_S)


def backoff_s(attempt: int, *, seed: bytes, retry_after_s: float = 0.0) -> float:
    """Return how long to wait after failed attempt number `attempt`.

    Doubling, with a jitter of up to half that depends on the slot and the attempt only, so that
    many slots refused at one moment do not come back at one moment, and a test sees no chance.
    """
    ceiling = min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2.0 ** min(attempt - 1, 16))
    drawn = hashlib.blake2b(seed + attempt.to_bytes(4, "little"), digest_size=4).digest()
    share = 0.5 + 0.5 * int.from_bytes(drawn, "little") / 2**32
    return max(retry_after_s, ceiling * share)


def fingerprint_decision(
    step: str, recorded: Mapping[str, str], now: Mapping[str, str], on_change: str, *, asked: bool
) -> Literal["same", "new", "keep"]:
    """Return what a step's fingerprint means for its recorded answers.

    Unless `asked`, it has no slot, settled or not: there is nothing that a change could falsify.
    It is then a new one all the same, so that a job of the old step cannot buy for this one.

    Raises:
        StepChanged: it differs and nobody said what that means; the fields are named.
    """
    names = sorted(set(recorded) | set(now))
    changed = [name for name in names if recorded.get(name) != now.get(name)]
    if not changed:
        return "same"
    if on_change == "new":
        return "new"
    if on_change == "keep":
        return "keep"
    if not asked:
        return "new"
    raise StepChanged(step=step, fields=", ".join(changed))
