"""Runners: who makes the calls. Threads for plain functions, one event loop for async ones.

Both take work from a `ReadyQueue` as long as there is some, make at most `capacity` calls at
once, and hand back what came of each. They touch neither slots nor disks. Right before each call
they ask whether its slot is still this owner's: a process that stood still may have been replaced.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, cast

from holdfast._base.clock import Clock
from holdfast.ledger.asking import Again, Answered, Asker, Split, Work
from holdfast.ledger.rate import RateGate

Deliver = Callable[[Sequence[Answered]], None]
Fail = Callable[[BaseException], None]
"""Ends the job: something broke that is no call's failure."""
Verdict = Sequence[Answered] | Again | Split
_RAISED = (Exception, asyncio.CancelledError, SystemExit, KeyboardInterrupt)
"""All that a coroutine can raise. Not GeneratorExit: that is how Python ends one that waits in a
loop which is gone, and it must not begin another attempt then."""


class ReadyQueue:
    """Claimed work that nobody has begun, and how much is being done."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # its lock may be taken again by its holder
        self._works: deque[Work] = deque()
        self._closed = False
        self._workers = 0
        self.in_flight = 0

    def put(self, works: Iterable[Work]) -> None:
        """Add work."""
        with self._changed:
            added = len(self._works)
            self._works.extend(works)
            self._changed.notify(len(self._works) - added)

    def hire(self, capacity: int) -> int:
        """Return how many workers more, of at most `capacity`, the waiting work needs.

        They count as working from here until `take` sends them away, so that no work is put
        between a worker's last look and its leaving.
        """
        with self._changed:
            wanted = max(0, min(capacity - self._workers, len(self._works)))
            self._workers += wanted
            return wanted

    def take(self, *, wait: bool) -> Work | None:
        """Begin the next work. None: there is none, and the worker leaves."""
        with self._changed:
            while wait and not self._works and not self._closed:
                self._changed.wait()
            if not self._works:
                self._workers -= 1
                return None
            self.in_flight += 1
            return self._works.popleft()

    def end(self) -> None:
        """Say that a work is finished."""
        with self._changed:
            self.in_flight -= 1

    def end_and_take(self) -> Work | None:
        """Finish a work and begin the next, without waiting for one."""
        with self._changed:
            self.in_flight -= 1
            return self.take(wait=False)

    def close(self) -> list[Work]:
        """Wake all who wait. Returns what was not begun."""
        with self._changed:
            self._closed = True
            left = list(self._works)
            self._works.clear()
            self._changed.notify_all()
            return left

    def __len__(self) -> int:
        """Return how much is claimed and not begun."""
        return len(self._works)


@dataclass(frozen=True, slots=True)
class Hold:
    """Whether the slots to be called are still this owner's.

    `is_sure` asks nobody. `assure` asks whoever knows, and tells the task if they are not.
    """

    is_sure: Callable[[], bool]
    assure: Callable[[], bool]


class Runner(Protocol):
    """Makes the calls of one task."""

    def kick(self) -> None:
        """Work was added: begin as much of it as may be in flight."""

    def expire(self) -> None:
        """Give up calls that take too long."""

    def stop(self) -> None:
        """Make no further attempt; calls on their way may end."""


@dataclass(slots=True, eq=False)
class _Call:
    """A plain function on its way, in a thread that cannot be interrupted."""

    work: Work
    deadline_s: float


class ThreadRunner:
    """Calls a plain function from up to `capacity` threads."""

    def __init__(
        self,
        asker: Asker,
        queue: ReadyQueue,
        deliver: Deliver,
        fail: Fail,
        *,
        capacity: int,
        timeout_s: float,
        clock: Clock,
        gate: RateGate | None,
        hold: Hold,
    ) -> None:
        self._asker, self._queue, self._deliver, self._fail = asker, queue, deliver, fail
        self._capacity, self._timeout_s, self._clock = capacity, timeout_s, clock
        self._gate, self._hold = gate, hold
        self._stopped = threading.Event()
        self._guard = threading.Lock()
        self._running: dict[int, _Call] = {}

    def kick(self) -> None:
        """Start threads until there are enough for what waits."""
        for _ in range(self._queue.hire(self._capacity)):
            self._start(None, None)

    def _start(self, work: Work | None, error: BaseException | None) -> None:
        threading.Thread(
            target=self._loop, args=(work, error), name="holdfast-call", daemon=True
        ).start()

    def _loop(self, work: Work | None, error: BaseException | None) -> None:
        try:
            while True:
                work = work or self._queue.take(wait=True)
                if work is None:
                    return
                if not self._serve(work, error):
                    return  # given up: another thread has taken this one's place
                work, error = None, None
        except BaseException as fatal:  # the edge of a thread: the task must hear of it
            self._fail(fatal)

    def _serve(self, work: Work, error: BaseException | None) -> bool:
        """Bring one work to its end. Returns False when it was taken away for its slowness."""
        verdict: Verdict = Again(0.0) if error is None else self._asker.failed(work, error)
        while isinstance(verdict, Again):
            if self._pause(verdict.wait_s):
                return self._finish(work.given_up())
            after = self._attempt(work)
            if after is None:
                return False
            verdict = after
        if isinstance(verdict, Split):
            self._queue.put(verdict.works)
            return self._finish(())
        return self._finish(verdict)

    def _attempt(self, work: Work) -> Verdict | None:
        """Make one attempt. None: it took too long, and another thread goes on with the work."""
        work.tries += not work.reconcile
        mine = threading.get_ident()
        with self._guard:
            self._running[mine] = _Call(work, self._clock.monotonic_s() + self._timeout_s)
        error: BaseException | None = None
        value = None
        try:
            value = self._asker.call(work)
        except BaseException as raised:  # the user's function may raise anything, or exit
            error = raised
        with self._guard:
            call = self._running.get(mine)
            if call is None or call.work is not work:
                return None
            del self._running[mine]
        return (
            self._asker.answered(work, value) if error is None else self._asker.failed(work, error)
        )

    def _pause(self, wait_s: float) -> bool:
        """Wait for backoff and rate, and be sure of the slot. Returns whether to give up."""
        wait_s = max(wait_s, self._gate.reserve_s() if self._gate is not None else 0.0)
        stopped = self._stopped.wait(wait_s) if wait_s > 0 else self._stopped.is_set()
        return stopped or not (self._hold.is_sure() or self._hold.assure())

    def _finish(self, answers: Sequence[Answered]) -> bool:
        self._queue.end()
        self._deliver(answers)
        return True

    def expire(self) -> None:
        """Take the work away from threads that exceed the time-out; the rules decide on it."""
        now = self._clock.monotonic_s()
        with self._guard:
            late = [t for t, call in self._running.items() if call.deadline_s < now]
            works = [self._running.pop(thread).work for thread in late]
        for work in works:
            self._start(work, TimeoutError(f"no answer within {self._timeout_s} s"))

    def stop(self) -> None:
        """Make no further attempt."""
        self._stopped.set()


class _Deadlines:
    """Cancels tasks of an event loop whose call takes too long.

    Every call has the same time, so the first to begin is the first to expire, and one timer
    serves all of them: a timer for each costs as much as the rest of a quick call.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        self._loop, self._timeout_s = loop, timeout_s
        self._running: dict[asyncio.Task[None], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, task: asyncio.Task[None]) -> None:
        """Say that a call of this task begins."""
        deadline_s = self._running[task] = self._loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = self._loop.call_at(deadline_s, self._expire)

    def end(self, task: asyncio.Task[None]) -> bool:
        """Say that it ended. Returns whether it was cancelled for its slowness."""
        if self._running.pop(task, None) is not None:
            return False
        task.uncancel()
        return True

    def _expire(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        for task, deadline_s in list(self._running.items()):
            if deadline_s > now_s:
                self._timer = self._loop.call_at(deadline_s, self._expire)
                return
            del self._running[task]
            task.cancel()


class LoopRunner:
    """Awaits an async function, up to `capacity` at once, on an event loop of its own."""

    def __init__(
        self,
        asker: Asker,
        queue: ReadyQueue,
        deliver: Deliver,
        fail: Fail,
        *,
        capacity: int,
        timeout_s: float,
        gate: RateGate | None,
        hold: Hold,
    ) -> None:
        self._asker, self._queue, self._deliver, self._fail = asker, queue, deliver, fail
        self._capacity, self._timeout_s, self._gate = capacity, timeout_s, gate
        self._hold = hold
        self._stopped = False
        self._waiting: set[asyncio.Event] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: list[Answered] = []
        self._loop = asyncio.new_event_loop()
        self._deadlines = _Deadlines(self._loop, timeout_s)
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="holdfast-calls", daemon=True
        )
        self._thread.start()

    def kick(self) -> None:
        """Start coroutines until there are enough for what waits."""
        if hired := self._queue.hire(self._capacity):
            self._loop.call_soon_threadsafe(self._spawn, hired)

    def _spawn(self, hired: int) -> None:
        for _ in range(hired):
            task = self._loop.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        try:
            work = self._queue.take(wait=False)
            while work is not None:
                self._collect(await self._serve(work))
                work = self._queue.end_and_take()
        except _RAISED as fatal:  # the edge of a task of the loop: the job must hear of it
            self._fail(fatal)

    def _collect(self, answers: Sequence[Answered]) -> None:
        """Let answers that come in one turn of the loop be delivered together."""
        if not self._answers:
            self._loop.call_soon(self._hand_over)
        self._answers.extend(answers)

    def _hand_over(self) -> None:
        answers, self._answers = self._answers, []
        self._deliver(answers)

    async def _serve(self, work: Work) -> Sequence[Answered]:
        verdict: Verdict = Again(0.0)
        while isinstance(verdict, Again):
            if not self._may_go(verdict) and await self._pause(verdict.wait_s):
                return work.given_up()
            work.tries += not work.reconcile
            verdict = await self._attempt(work)
        if isinstance(verdict, Split):
            self._queue.put(verdict.works)
            self._spawn(self._queue.hire(self._capacity))
            return ()
        return verdict

    async def _attempt(self, work: Work) -> Verdict:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._deadlines.begin(task)
        try:
            value = await self._value(work)
        except _RAISED as error:  # the user's function may raise anything, or exit
            if self._deadlines.end(task) and isinstance(error, asyncio.CancelledError):
                late = TimeoutError(f"no answer within {self._timeout_s} s")
                return self._asker.failed(work, late)
            return self._asker.failed(work, error)
        self._deadlines.end(task)
        return self._asker.answered(work, value)

    async def _value(self, work: Work) -> Any:
        if work.reconcile:
            return await asyncio.to_thread(self._asker.call, work)
        return await self._asker.call(work)

    def _may_go(self, again: Again) -> bool:
        """Tell whether there is nothing to wait for or to ask."""
        at_once = again.wait_s <= 0 and self._gate is None
        return at_once and not self._stopped and self._hold.is_sure()

    async def _pause(self, wait_s: float) -> bool:
        """Wait for backoff and rate, and be sure of the slot. Returns whether to give up."""
        wait_s = max(wait_s, self._gate.reserve_s() if self._gate is not None else 0.0)
        if wait_s > 0 and not self._stopped:
            event = asyncio.Event()
            self._waiting.add(event)
            try:
                await asyncio.wait_for(event.wait(), wait_s)
            except TimeoutError:
                pass
            finally:
                self._waiting.discard(event)
        if not self._hold.is_sure() and not await asyncio.to_thread(self._hold.assure):
            return True
        return self._stopped

    def expire(self) -> None:
        """Do nothing: the event loop keeps the time."""

    def stop(self) -> None:
        """Make no further attempt; the loop ends when nothing is on its way."""
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self._stopped = True
        for event in self._waiting:
            event.set()

    def close(self) -> None:
        """End the event loop, after everything was delivered."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
