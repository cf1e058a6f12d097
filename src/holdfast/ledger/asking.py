"""Asking the provider: one call with its retries, by a plain or an async function.

This part knows functions, time-outs and retries, and nothing of slots' states or of disks. What
comes out of a call is an outcome to be settled, or an error for the row that asked.

The retry loop is our own (docs/adr/0013).

Crash points: `ledger.call.before`, `ledger.call.after`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast._base.clock import Clock, SystemClock
from holdfast._base.crashpoint import crashpoint
from holdfast.errors import CallFailed, FailureRecorded, HoldfastError
from holdfast.ledger.contract import MICROS, Outcome, Slot, Status, idempotency_key
from holdfast.ledger.rules import Policy, Trouble, backoff_s, text_of, trouble_of

_MICROS_MOST = 1 << 62
"""What a ledger can hold, far beyond any budget."""


@dataclass(slots=True, eq=False)
class Pending:
    """A slot that somebody asked for, on its way to an answer."""

    slot: Slot
    row: Any
    attempts: int = 0
    outcome: Outcome | None = None
    error: HoldfastError | None = None
    bought_here: bool = False

    @property
    def done(self) -> bool:
        """Tell whether there is an outcome or an error."""
        return self.outcome is not None or self.error is not None


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of one pending: an outcome to settle, or an error; neither: it gave up.

    `in_doubt`: it gave up after an attempt that the provider may have charged.
    """

    pending: Pending
    outcome: Outcome | None = None
    error: HoldfastError | None = None
    in_doubt: bool = False


@dataclass(slots=True, eq=False)
class Work:
    """One call to be made for one slot, or for several with a batch function."""

    pendings: tuple[Pending, ...]
    reconcile: bool = False
    tries: int = 0
    unknown: bool = False

    def given_up(self) -> list[Answered]:
        """Return what becomes of it when no further attempt is to be made."""
        return [Answered(pending, in_doubt=self.unknown) for pending in self.pendings]


@dataclass(frozen=True, slots=True)
class Again:
    """Try the work once more after a while."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class Split:
    """A batch failed as a whole: ask its rows one by one, so that one cannot lose the others."""

    works: tuple[Work, ...]


@dataclass(frozen=True, slots=True)
class Asker:
    """What is asked, and how answers and failures are read."""

    function: Callable[..., Any]
    encode: Callable[[Any], bytes]
    step: str
    ledger_id: str
    policy: Policy
    is_async: bool = False
    takes_key: bool = False
    batch: int | None = None
    extra: tuple[Any, ...] = ()
    cost: Callable[[Any], float] | None = None
    reconcile: Callable[[Any, str], Any] | None = None
    retryable: Callable[[BaseException], bool] | None = field(default=None)
    clock: Clock = field(default_factory=SystemClock)

    def call(self, work: Work) -> Any | Awaitable[Any]:
        """Start one call: the function's value, or its coroutine."""
        crashpoint("ledger.call.before")
        one = work.pendings[0]
        if work.reconcile and self.reconcile is not None:
            return self.reconcile(one.row, idempotency_key(self.ledger_id, one.slot))
        first = one.row if self.batch is None else [pending.row for pending in work.pendings]
        if not self.takes_key:
            return self.function(first, *self.extra)
        keys = [idempotency_key(self.ledger_id, pending.slot) for pending in work.pendings]
        key = keys[0] if self.batch is None else keys
        return self.function(first, *self.extra, idempotency_key=key)

    def answered(self, work: Work, value: Any) -> Sequence[Answered] | Again:
        """Read the value of a call. A reconciliation that knows nothing leads to the call."""
        crashpoint("ledger.call.after")
        if work.reconcile and value is None:
            work.reconcile = False
            return Again(0.0)
        values = value if self.batch is not None and not work.reconcile else [value]
        if not isinstance(values, (list, tuple)) or len(values) != len(work.pendings):
            what = f"the batch function returned no list of {len(work.pendings)} answers"
            return [self._unusable(p, work, what) for p in work.pendings]
        return [self._read(p, work, v) for p, v in zip(work.pendings, values, strict=True)]

    def _read(self, pending: Pending, work: Work, value: Any) -> Answered:
        if isinstance(value, BaseException):
            return self._failed(pending, work, text_of(value))
        micros = 0
        try:
            micros = self._cost_of(value)
            answer = self.encode(value)
        except Exception as error:  # the user's answer or cost function is wrong, in any way
            return self._unusable(pending, work, text_of(error), micros)
        attempts = _attempts(pending, work)
        now = self.clock.wall_ms()
        outcome = Outcome(pending.slot, Status.BOUGHT, answer, "", attempts, micros, now)
        return Answered(pending, outcome)

    def _cost_of(self, value: Any) -> int:
        micros = round(self.cost(value) * MICROS) if self.cost is not None else 0
        if not 0 <= micros <= _MICROS_MOST:
            # Less than nothing would lift the budget for other calls.
            raise ValueError(f"a call cannot cost {micros / MICROS:g} USD")
        return micros

    def failed(self, work: Work, error: BaseException) -> Sequence[Answered] | Again | Split:
        """Decide what an exception of a call means for its rows."""
        trouble = trouble_of(error, self.retryable)
        work.unknown = work.unknown or trouble.unknown
        if trouble.unknown and self.policy.unknown == "park":
            return [self._parked(pending, work, trouble) for pending in work.pendings]
        first = work.pendings[0]
        if trouble.retryable and _attempts(first, work) < self.policy.attempts:
            work.reconcile = trouble.unknown and self.policy.unknown == "reconcile"
            seed = first.slot.hash
            return Again(backoff_s(work.tries, seed=seed, retry_after_s=trouble.retry_after_s))
        if len(work.pendings) > 1:
            return Split(tuple(Work((pending,)) for pending in work.pendings))
        return [self._failed(first, work, trouble.text)]

    def _parked(self, pending: Pending, work: Work, trouble: Trouble) -> Answered:
        attempts = _attempts(pending, work)
        return Answered(pending, self.parked(pending, attempts, f"unknown outcome: {trouble.text}"))

    def parked(self, pending: Pending, attempts: int, reason: str) -> Outcome:
        """Return the outcome of a slot whose call's outcome stays unknown."""
        now = self.clock.wall_ms()
        return Outcome(
            pending.slot, Status.PARKED, reason=reason, attempts=attempts, recorded_ms=now
        )

    def _failed(self, pending: Pending, work: Work, reason: str) -> Answered:
        attempts = _attempts(pending, work)
        if self.policy.error == "raise":
            key = pending.slot.key
            failed = CallFailed(step=self.step, key=key, error=reason, attempts=attempts)
            return Answered(pending, error=failed)
        return Answered(pending, self._failure(pending, work, reason))

    def _unusable(self, pending: Pending, work: Work, reason: str, micros: int = 0) -> Answered:
        """Settle an answer that came, and was paid, and cannot be kept.

        It is recorded as failed whatever the policy is: a call that no record shows would be
        bought again by every retry of Spark's.
        """
        outcome = self._failure(pending, work, reason, micros)
        if self.policy.error == "raise":
            return Answered(pending, outcome, self.failed_before(outcome))
        return Answered(pending, outcome)

    def _failure(self, pending: Pending, work: Work, reason: str, micros: int = 0) -> Outcome:
        return Outcome(
            pending.slot,
            Status.FAILED,
            reason=reason,
            attempts=_attempts(pending, work),
            cost_micros=micros,
            recorded_ms=self.clock.wall_ms(),
            dead_letter=self.policy.error == "dead_letter",
        )

    def failed_before(self, outcome: Outcome) -> FailureRecorded:
        """Return the error for a row whose failure is recorded."""
        return FailureRecorded(step=self.step, key=outcome.slot.key, error=outcome.reason)


def _attempts(pending: Pending, work: Work) -> int:
    """Return all attempts so far: those of dead owners and those of this one."""
    return max(1, pending.attempts - 1 + work.tries)
