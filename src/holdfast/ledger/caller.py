"""The driver of a task's paid calls: claims ahead, settles in groups, answers in order.

The task's own thread reads rows and takes answers. A driver thread claims slots and looks again at
slots that others own; a settler thread makes outcomes durable, in groups. Both do so whether or not
anybody takes the answers, so nobody ever waits for someone who waits. Order of events for one slot,
and what a crash between them means:

1. The claim is durable before the provider hears of the slot. Crash after: in doubt.
2. The provider is called with the same idempotency key on every attempt.
3. The outcome is durable before the row that asked sees it. Crash before: in doubt.

Bounds: at most `max_in_flight` calls at once, at most `max_in_flight + intent_ahead` slots claimed
and not settled, and as many rows bought that nobody has taken yet.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from holdfast._base.clock import Clock, SystemClock
from holdfast.errors import HoldfastError, InvariantViolated
from holdfast.ledger.asking import Answered, Asker, Pending
from holdfast.ledger.contract import Ledger, Limit, View
from holdfast.ledger.desk import Desk, Entered
from holdfast.ledger.rate import RateGate
from holdfast.ledger.rules import Move, next_move
from holdfast.ledger.runners import Hold, LoopRunner, ReadyQueue, Runner, ThreadRunner
from holdfast.ledger.window import Answer, Window

GROUP_WAIT_S = 0.002
"""How long an outcome waits for others to share its fsync. Shorter: more fsyncs than calls need.
Longer: the next call waits for room."""

IDLE_WAIT_S = 0.02
"""How often a driver with nothing to do looks at time-outs and lets others see its outcomes."""

LOOKUP_FIRST, LOOKUP_BUYING, LOOKUP_MOST = 64, 256, 4096
"""Rows read and looked up at once. Few at first, so that the first call starts soon. Few as long as
they have to be bought: the threads that buy stand still meanwhile. Many where answers are recorded,
because one row group of settled answers serves all of them."""

RECORDED_SHARE = 8
"""One in so many rows recorded is enough to look up many at once."""

SWITCH_S = 0.0005
"""How long Python lets a thread compute while others wait. Its own 5 ms are more than a quick call
takes, and four threads here wait for each other. Shorter: computing threads lose time."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How fast to go. `max_in_flight` and `intent_ahead` count rows."""

    max_in_flight: int = 32
    intent_ahead: int = 32
    timeout_s: float = 60.0
    attempts: int = 5
    rate_per_s: float | None = None


class Caller:
    """Answers rows in their order, buying what nobody bought. For one task; used once."""

    def __init__(
        self,
        ledger: Ledger,
        asker: Asker,
        *,
        limits: Limits,
        budget: Limit,
        since_ms: int = 0,
        gate: RateGate | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Make ready. Answers bought before `since_ms`, by the ledger's labels, are reused ones."""
        self._ledger, self._asker, self._limits = ledger, asker, limits
        self._gate, self._clock = gate, clock or SystemClock()
        lock = threading.RLock()
        self._for_driver = threading.Condition(lock)
        self._for_settler = threading.Condition(lock)
        self._for_task = threading.Condition(lock)
        self._task_waits = False
        self._results: list[Answered] = []
        self._first_result_s = 0.0
        self._ready = ReadyQueue()
        self._desk = Desk(ledger, asker, budget, limits.max_in_flight + limits.intent_ahead)
        self._runner: Runner | None = None
        self._driver: threading.Thread | None = None
        self._settler: threading.Thread | None = None
        self._all_settled = False
        self._closing = False
        self._fatal: HoldfastError | None = None
        self._window = Window(limits.max_in_flight, limits.intent_ahead, since_ms)
        self._entered: list[Entered] = []
        self._lookup_rows = LOOKUP_FIRST

    # The task's own thread

    def answers(self, chunks: Iterable[Sequence[Pending]]) -> Iterator[list[Answer]]:
        """Yield the answers of the rows, in their order, in slices.

        A slice has at most `max_in_flight` rows that were bought for it.

        Raises:
            CallFailed, BudgetSpent, CallInputChanged: the row at this position cannot be answered;
                all rows before it were.
        """
        try:
            for part in self._parts(chunks):
                view = self._look_up(part)
                for pending in part:
                    self._enter(pending, view)
                    while self._window.is_full():
                        yield self._slice()
                # The next part may be long in coming: what is here must not wait for it.
                self._tell_driver()
            while not self._window.is_empty():
                yield self._slice()
        finally:
            self.close()

    def _parts(self, chunks: Iterable[Sequence[Pending]]) -> Iterator[Sequence[Pending]]:
        for chunk in chunks:
            start = 0
            while start < len(chunk):
                part = chunk[start : start + self._lookup_rows]
                yield part
                start += len(part)

    def _look_up(self, part: Sequence[Pending]) -> View:
        view = self._ledger.lookup([pending.slot.hash for pending in part])
        many = len(view.outcomes) * RECORDED_SHARE >= len(part)
        most = LOOKUP_MOST if many else LOOKUP_BUYING
        self._lookup_rows = min(most, 2 * self._lookup_rows)
        return view

    def _enter(self, pending: Pending, view: View) -> None:
        known = view.outcomes.get(pending.slot.hash)
        if self._window.merge(pending):
            return
        if known is not None and next_move(pending.slot, known, self._asker.policy) is Move.REUSE:
            pending.outcome = known
            self._window.add_known(pending)
            return
        self._entered.append((pending, view, self._window.add(pending)))

    def _slice(self) -> list[Answer]:
        """Wait for the rows at the front, and take them."""
        self._tell_driver()
        with self._for_task:
            while not self._is_takeable():
                self._check_fatal()
                self._task_waits = True
                self._for_task.wait()
            self._task_waits = False
        return self._window.take()

    def _is_takeable(self) -> bool:
        return self._window.is_takeable(self._desk.unresolved())

    def _tell_driver(self) -> None:
        """Hand over all rows that entered, at once: they share a claim."""
        if self._entered:
            with self._for_driver:
                self._start()
                self._desk.enter(self._entered)
                self._for_driver.notify()
            self._entered.clear()

    def _check_fatal(self) -> None:
        if self._fatal is not None:
            raise self._fatal

    def close(self) -> None:
        """Claim nothing more, wait until what was called is settled, give the rest back."""
        with self._for_driver:
            self._closing = True
            self._for_driver.notify()
        if self._driver is not None and self._settler is not None:
            self._driver.join()
            self._settler.join()
            self._driver = self._settler = None
        if isinstance(self._runner, LoopRunner):
            self._runner.close()
        if self._gate is not None:
            self._gate.close()
            self._gate = None

    # The driver's thread

    def _start(self) -> None:
        if self._driver is not None:
            return
        # For all of the process, and for good: it is one that Spark made to run tasks.
        sys.setswitchinterval(min(SWITCH_S, sys.getswitchinterval()))
        self._runner = self._new_runner()
        self._settler = threading.Thread(
            target=self._guarded, args=(self._settle_all,), name="holdfast-settler", daemon=True
        )
        self._driver = threading.Thread(
            target=self._guarded, args=(self._drive,), name="holdfast-driver", daemon=True
        )
        self._settler.start()
        self._driver.start()

    def _new_runner(self) -> Runner:
        capacity = max(1, self._limits.max_in_flight // (self._asker.batch or 1))
        hold = Hold(lambda: self._ledger.is_sure, self._assure)
        if self._asker.is_async:
            return LoopRunner(
                self._asker,
                self._ready,
                self._deliver,
                self._fail,
                capacity=capacity,
                timeout_s=self._limits.timeout_s,
                gate=self._gate,
                hold=hold,
            )
        return ThreadRunner(
            self._asker,
            self._ready,
            self._deliver,
            self._fail,
            capacity=capacity,
            timeout_s=self._limits.timeout_s,
            clock=self._clock,
            gate=self._gate,
            hold=hold,
        )

    def _assure(self) -> bool:
        """Make sure that claimed slots are still ours. If not, the task is over."""
        try:
            self._ledger.assure()
        except HoldfastError as error:
            self._fail(error)
            return False
        return True

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # the edge of a thread: the task must hear of it
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the task with the first error; others come of it."""
        with self._for_task:
            self._fatal = self._fatal or (
                error if isinstance(error, HoldfastError) else InvariantViolated(repr(error))
            )
        # Nobody may wait for slots that this process will never settle.
        self._ledger.abandon()
        with self._for_task:
            for condition in (self._for_task, self._for_driver, self._for_settler):
                condition.notify()
        if self._runner is not None:
            self._runner.stop()
        self._ready.close()

    def _drive(self) -> None:
        runner = self._runner
        if runner is None:
            raise InvariantViolated(what="a driver without a runner")
        while self._await_turn():
            works = self._desk.claim()
            if works:
                self._ready.put(works)
                runner.kick()
            now_s = self._clock.monotonic_s()
            self._desk.look_again(now_s)
            runner.expire()
            self._tell_task()
            if self._desk.must_show(now_s):
                self._desk.shown()
                self._ledger.flush()
        self._wind_up(runner)

    def _await_turn(self) -> bool:
        """Sleep until there is something to claim or to look at. Returns False at the end."""
        with self._for_driver:
            if not self._closing and not self._desk.can_claim():
                self._for_driver.wait(self._desk.due_s(self._clock.monotonic_s(), IDLE_WAIT_S))
            return not self._closing and self._fatal is None

    def _wind_up(self, runner: Runner) -> None:
        """Give back what was not begun, wait for what was, and let others see all of it."""
        self._desk.forget()
        runner.stop()
        unbegun = [answer for work in self._ready.close() for answer in work.given_up()]
        self._deliver(unbegun)
        with self._for_driver:
            while self._desk.open > 0 and self._fatal is None:
                self._for_driver.wait(IDLE_WAIT_S)
                runner.expire()
            self._all_settled = True
            self._for_settler.notify()
        if self._fatal is None:
            self._ledger.flush()

    # The settler's thread

    def _deliver(self, answers: Sequence[Answered]) -> None:
        """Take what came of a call; called by the runner's threads."""
        with self._for_settler:
            if not self._results:
                self._first_result_s = self._clock.monotonic_s()
            self._results.extend(answers)
            if len(self._results) == len(answers) or self._is_group():
                self._for_settler.notify()

    def _is_group(self) -> bool:
        """Tell whether outcomes should be settled without waiting for more of them."""
        enough = max(1, self._limits.max_in_flight // 2)
        return len(self._results) >= enough or self._ready.in_flight == 0

    def _settle_all(self) -> None:
        while results := self._next_group():
            self._settle(results)
            with self._for_driver:
                self._for_driver.notify()
            self._tell_task()

    def _next_group(self) -> list[Answered]:
        """Wait for outcomes; a few wait a moment for more of them. Returns none at the end."""
        with self._for_settler:
            while not self._results and not self._all_settled and self._fatal is None:
                self._for_settler.wait()
            while self._results and not self._is_group() and not self._closing:
                left = GROUP_WAIT_S - (self._clock.monotonic_s() - self._first_result_s)
                if left <= 0:
                    break
                self._for_settler.wait(left)
            results, self._results = self._results, []
            return results

    def _settle(self, results: Sequence[Answered]) -> None:
        """Make outcomes durable, then let the rows that asked see them. In this order."""
        outcomes = [answer.outcome for answer in results if answer.outcome is not None]
        if outcomes:
            self._ledger.settle(outcomes)
        self._desk.settled(results)

    def _tell_task(self) -> None:
        """Wake the task if it waits and there is something for it."""
        with self._for_task:
            if self._task_waits and (self._fatal is not None or self._is_takeable()):
                self._for_task.notify()
