"""Works on all runs of a service at once: several works under way, turns by fairness.

One thread looks for runs that have work, chooses (`turns`) and judges what came of it; the turns
themselves are done by a few threads, each by the `Engine` of its run. Batches never mix runs, and
what fails one run fails no other.

| a turn ends with | then |
| --- | --- |
| bytes | the client's account grows |
| nothing to do | the run rests for a moment |
| RunFailed, RunGone | the run is over |
| Damaged | the run is FAILED; but while a whole directory is away, it is left alone as below |
| Fenced | somebody else is active: all stop |
| no Java, no Spark, a pipeline that cannot work | no run can go on: the process ends with it |
| anything else | the run is left alone for a while, and tried again; the others go on |
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from holdfast._base.clock import Clock
from holdfast._base.ids import RunId
from holdfast.engine.events import Stop
from holdfast.engine.loop import Engine
from holdfast.engine.turns import Turns
from holdfast.errors import (
    Damaged,
    DependencyMissing,
    Fenced,
    HoldfastError,
    JavaMissing,
    RunFailed,
    RunGone,
    RunStopped,
    SparkNotStarted,
)
from holdfast.store.contract import Store
from holdfast.store.rows import ReadyRun, RunState

_ENDS_ALL = (Fenced, JavaMissing, SparkNotStarted, DependencyMissing)
_OVER = (RunFailed, RunGone)

_POLL_FIRST_S = 0.02
_POLL_LAST_S = 0.25
"""How often an idle engine looks for work, less and less often. Shorter: it costs time for nothing.
Longer: the first chunk after a quiet time waits so long."""
_TROUBLE_FIRST_S = 1.0
_TROUBLE_LAST_S = 60.0
"""How long a run is left alone whose turn met trouble that is not its own: a full disk."""
_PRUNE_S = 30.0
DRAIN_S = 7.0
"""How long the end waits for works under way. Longer: with Spark's own end it may be more than the
10 s that a supervisor gives. Shorter: a batch that was nearly done is done again."""
_CONTENDED = 4
"""A batch is a quarter of `batch_bytes` while others wait: their wait is a quarter too, and a job
of 16 MiB still takes ten times what it costs to have one."""

EngineOf = Callable[[ReadyRun], Engine]
TellTrouble = Callable[[ReadyRun, HoldfastError], None]


@dataclass(frozen=True, slots=True)
class _Ended:
    run: ReadyRun
    size: int | None
    error: BaseException | None = None


class ManyRuns:
    """Takes all runs of a store on, until it is stopped or may act no more."""

    def __init__(
        self,
        store: Store,
        engine_of: EngineOf,
        *,
        clock: Clock,
        stop: Stop,
        abort: Callable[[], None],
        tell: TellTrouble,
        at_once: int,
        batch_bytes: int,
        go_on: Callable[[], None],
    ) -> None:
        """Begin. `engine_of` makes the engine of a run; `tell` hears of trouble, run by run;
        `abort` ends works that take too long at the end; `go_on` hears that turns are still given.
        """
        self._store, self._engine_of, self._clock = store, engine_of, clock
        self._stop, self._abort, self._tell, self._at_once = stop, abort, tell, at_once
        self._go_on = go_on
        self._short_bytes = max(1, batch_bytes // _CONTENDED)
        self._turns = Turns(places=at_once, short_bytes=self._short_bytes)
        self._engines: dict[RunId, Engine] = {}
        self._trouble_s: dict[RunId, float] = {}
        self._ended: SimpleQueue[_Ended] = SimpleQueue()
        self._fatal: BaseException | None = None
        self._pruned_s = clock.monotonic_s()

    def work(self) -> None:
        """Work until `stop` says so; then give the turns that are under way some time to end.

        Raises:
            Fenced: somebody else is active now.
            HoldfastError: what keeps every run from going on.
        """
        with ThreadPoolExecutor(self._at_once, thread_name_prefix="turn") as pool:
            try:
                self._take_turns(pool)
            except HoldfastError:
                # The store refuses: nothing of what is under way could be committed.
                self._abort()
                raise
            self._drain()
        if self._fatal is not None:
            raise self._fatal

    def _take_turns(self, pool: ThreadPoolExecutor) -> None:
        wait_s = _POLL_FIRST_S
        while not self._stop() and self._fatal is None:
            begun = self._fill(pool)
            wait_s = _POLL_FIRST_S if begun else min(2 * wait_s, _POLL_LAST_S)
            if self._wait(wait_s):
                wait_s = _POLL_FIRST_S

    def _drain(self) -> None:
        until_s = self._clock.monotonic_s() + DRAIN_S
        is_aborted = False
        while self._turns.under_way:
            self._wait(_POLL_LAST_S)
            if not is_aborted and self._clock.monotonic_s() >= until_s:
                is_aborted = True
                self._abort()

    def _fill(self, pool: ThreadPoolExecutor) -> bool:
        """Begin as many turns as there are places. Returns whether one was begun."""
        if self._turns.under_way >= self._at_once:
            return False
        ready = self._store.list_ready()
        self._prune(ready)
        begun = False
        while self._turns.under_way < self._at_once:
            chosen = self._turns.choose(ready, self._clock.monotonic_s())
            if chosen is None:
                break
            contended = self._turns.is_contended(ready, chosen)
            pool.submit(self._take_turn, chosen, self._short_bytes if contended else None)
            begun = True
        return begun

    def _take_turn(self, run: ReadyRun, batch_bytes: int | None) -> None:
        try:
            engine = self._engines.get(run.run_id)
            if engine is None:
                engine = self._engines[run.run_id] = self._engine_of(run)
            try:
                size = engine.step(run.run_id, batch_bytes=batch_bytes)
            except Damaged as damage:
                engine.fail_damaged(run.run_id, damage)
                raise
            self._ended.put(_Ended(run, size))
        except BaseException as error:  # nothing may be lost in a thread: the other one judges it
            self._ended.put(_Ended(run, None, error))

    def _wait(self, seconds: float) -> bool:
        """Wait for the end of a turn, and judge it. False: none ended."""
        self._go_on()
        try:
            ended = self._ended.get(timeout=seconds)
        except Empty:
            return False
        run_id, now_s = ended.run.run_id, self._clock.monotonic_s()
        self._turns.end(run_id, ended.size, now_s)
        if ended.error is None:
            self._trouble_s.pop(run_id, None)
            return ended.size is not None
        # What an engine has in memory is right only as long as nothing broke in it.
        self._engines.pop(run_id, None)
        self._judge(ended.run, ended.error, now_s)
        return True

    def _judge(self, run: ReadyRun, error: BaseException, now_s: float) -> None:
        if not isinstance(error, HoldfastError) or isinstance(error, _ENDS_ALL):
            self._fatal = self._fatal or error
            return
        if isinstance(error, RunStopped):
            return
        self._tell(run, error)
        if isinstance(error, _OVER):
            return
        length_s = min(2 * self._trouble_s.get(run.run_id, _TROUBLE_FIRST_S / 2), _TROUBLE_LAST_S)
        self._trouble_s[run.run_id] = length_s
        self._turns.rest(run.run_id, length_s, now_s)

    def _prune(self, ready: list[ReadyRun]) -> None:
        """Now and then, let go of what is kept of runs that are over."""
        now_s = self._clock.monotonic_s()
        if now_s - self._pruned_s < _PRUNE_S:
            return
        self._pruned_s = now_s
        states = (RunState.OPEN, RunState.FORWARDING, RunState.RECEIVING)
        here = {run.run_id for run in self._store.list_runs_in(*states)}
        here |= {run.run_id for run in ready}
        self._engines = {run: engine for run, engine in self._engines.items() if run in here}
        self._trouble_s = {run: wait for run, wait in self._trouble_s.items() if run in here}
