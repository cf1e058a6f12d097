"""The driver of a task's paid calls: claims ahead, settles in groups, answers in order.

The task's own thread reads rows and takes answers. A driver thread claims slots, settles outcomes
and looks again at slots that others own; it drives claimed calls to their settlement whether or
not anybody takes the answers, so nobody ever waits for someone who waits. Order of events for one
slot, and what a crash between them means:

1. The claim is durable before the provider hears of the slot. Crash after: in doubt.
2. The provider is called with the same idempotency key on every attempt.
3. The outcome is durable before the row that asked sees it. Crash before: in doubt.

Bounds: at most `max_in_flight` calls at once, at most `max_in_flight + intent_ahead` slots claimed
and not settled, and as many rows bought that nobody has taken yet.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from holdfast._base.clock import Clock, SystemClock
from holdfast.errors import HoldfastError, InvariantViolated
from holdfast.ledger.asking import Answered, Asker, Pending
from holdfast.ledger.contract import Ledger, Limit, Outcome, Status, View
from holdfast.ledger.desk import Desk
from holdfast.ledger.rate import RateGate
from holdfast.ledger.rules import Move, next_move
from holdfast.ledger.runners import LoopRunner, ReadyQueue, Runner, ThreadRunner

GROUP_WAIT_S = 0.002
"""How long an outcome waits for others to share its fsync. Shorter: more fsyncs than calls need.
Longer: the next call waits for room."""

IDLE_WAIT_S = 0.02
"""How often a driver with nothing to do looks at time-outs and lets others see its outcomes."""

SLICE_ROWS = 4096
"""Most rows of one slice, bought or not: bounds memory."""

LOOKUP_FIRST, LOOKUP_MOST = 64, 4096
"""Rows looked up at once. Few at first, so that the first call starts soon; then many, because
one row group of settled answers serves all of them."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How fast to go. `max_in_flight` and `intent_ahead` count rows."""

    max_in_flight: int = 32
    intent_ahead: int = 32
    timeout_s: float = 60.0
    attempts: int = 5
    rate_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The settled outcome of a row, and how this row came to it."""

    outcome: Outcome
    status: Status


@dataclass(slots=True)
class _Position:
    """A row of the input, in order. `first`: the row whose asking made the pending.

    `costly`: no answer was recorded when it came, so it may have to be bought.
    """

    pending: Pending
    first: bool
    costly: bool


class Caller:
    """Answers rows in their order, buying what nobody bought. For one task; used once."""

    def __init__(
        self,
        ledger: Ledger,
        asker: Asker,
        *,
        limits: Limits,
        budget: Limit,
        gate: RateGate | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._ledger, self._asker, self._limits = ledger, asker, limits
        self._gate, self._clock = gate, clock or SystemClock()
        lock = threading.RLock()
        self._for_driver = threading.Condition(lock)
        self._for_task = threading.Condition(lock)
        self._results: list[Answered] = []
        self._first_result_s = 0.0
        self._ready = ReadyQueue()
        self._desk = Desk(ledger, asker, budget, limits.max_in_flight + limits.intent_ahead)
        self._runner: Runner | None = None
        self._driver: threading.Thread | None = None
        self._closing = False
        self._fatal: HoldfastError | None = None
        self._positions: deque[_Position] = deque()
        self._costly = 0
        self._live: dict[bytes, Pending] = {}
        self._window = limits.max_in_flight

    # The task's own thread

    def answers(self, chunks: Iterable[Sequence[Pending]]) -> Iterator[list[Answer]]:
        """Yield the answers of the rows, in their order, in slices.

        A slice has at most `max_in_flight` rows that were bought for it.

        Raises:
            CallFailed, BudgetSpent, CallInputChanged: the row at this position cannot be answered;
                all rows before it were.
        """
        try:
            for part in _parts(chunks):
                view = self._ledger.lookup([pending.slot.hash for pending in part])
                for pending in part:
                    self._enter(pending, view)
                    while self._is_full():
                        yield self._slice()
            while self._positions:
                yield self._slice()
        finally:
            self.close()

    def _enter(self, pending: Pending, view: View) -> None:
        known = view.outcomes.get(pending.slot.hash)
        merged = self._live.get(pending.slot.hash)
        if merged is not None and merged.slot.inputs == pending.slot.inputs:
            self._positions.append(_Position(merged, first=False, costly=False))
            return
        if known is not None and next_move(pending.slot, known, self._asker.policy) is Move.REUSE:
            pending.outcome = known
            self._positions.append(_Position(pending, first=True, costly=False))
            return
        self._positions.append(_Position(pending, first=True, costly=True))
        self._costly += 1
        if merged is None:
            self._live[pending.slot.hash] = pending
        with self._for_driver:
            self._start()
            self._desk.enter(pending, view, behind=merged)
            self._for_driver.notify()

    def _is_full(self) -> bool:
        """Tell whether rows must leave before more may enter."""
        return self._costly >= self._window or len(self._positions) >= SLICE_ROWS

    def _slice(self) -> list[Answer]:
        """Wait for the rows at the front, and take them."""
        with self._for_task:
            while not self._is_takeable():
                self._check_fatal()
                self._for_task.wait()
        taken: list[Answer] = []
        costly = 0
        while self._positions and costly < self._limits.max_in_flight:
            position = self._positions[0]
            if not position.pending.done or (taken and position.pending.error is not None):
                break
            if position.pending.error is not None:
                raise position.pending.error
            self._positions.popleft()
            taken.append(_answer(position))
            costly += position.costly
            if position.first and self._live.get(position.pending.slot.hash) is position.pending:
                del self._live[position.pending.slot.hash]
        self._costly -= costly
        self._window = self._limits.max_in_flight + self._limits.intent_ahead
        return taken

    def _is_takeable(self) -> bool:
        """Tell whether enough rows at the front are done to be worth a slice.

        One is enough when few calls are left on their way: those behind need the room.
        """
        if not self._positions[0].pending.done:
            return False
        if self._desk.unresolved() <= self._limits.max_in_flight:
            return True
        enough = max(1, self._limits.max_in_flight // 2)
        ready = sum(1 for p in islice(self._positions, enough) if p.pending.done)
        return ready >= enough

    def _check_fatal(self) -> None:
        if self._fatal is not None:
            raise self._fatal

    def close(self) -> None:
        """Claim nothing more, wait until what was called is settled, give the rest back."""
        with self._for_driver:
            self._closing = True
            self._for_driver.notify()
        if self._driver is not None:
            self._driver.join()
            self._driver = None
        if isinstance(self._runner, LoopRunner):
            self._runner.close()
        if self._gate is not None:
            self._gate.close()
            self._gate = None

    # The driver's thread

    def _start(self) -> None:
        if self._driver is not None:
            return
        self._runner = self._new_runner()
        self._driver = threading.Thread(target=self._drive, name="holdfast-driver", daemon=True)
        self._driver.start()

    def _new_runner(self) -> Runner:
        capacity = max(1, self._limits.max_in_flight // (self._asker.batch or 1))
        if self._asker.is_async:
            return LoopRunner(
                self._asker,
                self._ready,
                self._deliver,
                capacity=capacity,
                timeout_s=self._limits.timeout_s,
                gate=self._gate,
            )
        return ThreadRunner(
            self._asker,
            self._ready,
            self._deliver,
            capacity=capacity,
            timeout_s=self._limits.timeout_s,
            clock=self._clock,
            gate=self._gate,
        )

    def _deliver(self, answers: Sequence[Answered]) -> None:
        """Take what came of a call; called by the runner's threads."""
        with self._for_driver:
            if not self._results:
                self._first_result_s = self._clock.monotonic_s()
            self._results.extend(answers)
            if len(self._results) == len(answers) or self._is_group():
                self._for_driver.notify()

    def _is_group(self) -> bool:
        """Tell whether outcomes should be settled without waiting for more of them."""
        enough = max(1, self._limits.max_in_flight // 2)
        return len(self._results) >= enough or self._ready.in_flight == 0

    def _drive(self) -> None:
        try:
            while self._turn():
                pass
            self._ledger.flush()
        except BaseException as error:
            # The edge of a thread: the task must hear of it, and nobody may wait for slots that
            # this process will never settle.
            self._ledger.abandon()
            with self._for_task:
                self._fatal = (
                    error if isinstance(error, HoldfastError) else InvariantViolated(repr(error))
                )
                self._for_task.notify()
            if self._runner is not None:
                self._runner.stop()
            self._ready.close()

    def _turn(self) -> bool:
        """Do what there is to do, once. Returns whether there may be more."""
        runner = self._runner
        if runner is None:
            raise InvariantViolated(what="a driver without a runner")
        with self._for_driver:
            self._await_turn()
            results, self._results = self._results, []
            closing = self._closing
        if closing:
            self._desk.forget()
            runner.stop()
            unbegun = [answer for work in self._ready.close() for answer in work.given_up()]
            results.extend(unbegun)
        if results:
            self._settle(results)
        if not closing:
            works = self._desk.claim()
            if works:
                self._ready.put(works)
                runner.kick()
            self._desk.look_again(self._clock.monotonic_s())
        runner.expire()
        self._tell()
        if self._desk.idle(results):
            self._ledger.flush()
        return not (closing and self._desk.open == 0)

    def _await_turn(self) -> None:
        """Sleep until something happened; a few outcomes wait a moment for more of them."""
        started = self._clock.monotonic_s()
        while not self._closing:
            now = self._clock.monotonic_s()
            due = self._desk.due_s(now, IDLE_WAIT_S - (now - started))
            if self._results:
                due = min(due, GROUP_WAIT_S - (now - self._first_result_s))
                if self._is_group():
                    return
            elif self._desk.can_claim():
                return
            if due <= 0:
                return
            self._for_driver.wait(due)
        if not self._results and self._ready.in_flight > 0:
            self._for_driver.wait(IDLE_WAIT_S)

    def _settle(self, results: Sequence[Answered]) -> None:
        """Make outcomes durable, then let the rows that asked see them. In this order."""
        outcomes = [answer.outcome for answer in results if answer.outcome is not None]
        if outcomes:
            self._ledger.settle(outcomes)
        self._desk.settled(results)

    def _tell(self) -> None:
        with self._for_task:
            self._for_task.notify()


def _parts(chunks: Iterable[Sequence[Pending]]) -> Iterator[Sequence[Pending]]:
    size = LOOKUP_FIRST
    for chunk in chunks:
        start = 0
        while start < len(chunk):
            yield chunk[start : start + size]
            start += size
            size = min(LOOKUP_MOST, 2 * size)


def _answer(position: _Position) -> Answer:
    pending = position.pending
    outcome = pending.outcome
    if outcome is None:
        raise InvariantViolated(what="a row without an outcome was taken")
    reused = outcome.status is Status.BOUGHT and not (position.first and pending.bought_here)
    return Answer(outcome, Status.REUSED if reused else outcome.status)
