"""A part of a service that stands by until it may act, acts, and stands by again when fenced."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast._base.clock import Clock, SystemClock, pause
from holdfast.blobs.local import LocalBlobs
from holdfast.config import Config
from holdfast.engine.events import Event, Watcher
from holdfast.engine.executor import Executor
from holdfast.engine.loop import Engine
from holdfast.engine.many import ManyRuns
from holdfast.engine.routes import routes_of
from holdfast.engine.spec import PipelineSpec
from holdfast.engine.state import Held, Shared
from holdfast.errors import Fenced, HoldfastError, RunStopped
from holdfast.log.contract import QueueBackend
from holdfast.log.embedded import EmbeddedBackend
from holdfast.log.relayed import open_logs
from holdfast.store.leases import ENGINE_RESOURCE, Keeper, beating
from holdfast.store.rows import Fence, ReadyRun

_STANDBY_S = 0.25
"""How often a standby looks. Shorter: queries for nothing. Longer: a dead engine's successor is so
much later."""

_HALT_S = 0.05


@dataclass(frozen=True, slots=True)
class Telling:
    """Who is told what happens: of the process itself, of a run, of trouble with one."""

    say: Callable[[str], None]
    watch: Callable[[ReadyRun, Event], None]
    trouble: Callable[[ReadyRun, HoldfastError], None]


class Halt:
    """Whether the end was asked for. A signal handler may ask: it waits for nothing."""

    def __init__(self) -> None:
        """Begin; nobody has asked."""
        self._asked = False
        self._executor: Executor | None = None

    def __call__(self) -> bool:
        """Tell whether to stop."""
        return self._asked

    def ask(self) -> None:
        """Ask to stop: nothing is begun, what is under way is finished."""
        self._asked = True
        if self._executor is not None:
            self._executor.stop()

    def watch(self, executor: Executor | None) -> None:
        """Name what is to be stopped as well."""
        self._executor = executor
        if self._asked and executor is not None:
            executor.stop()

    def wait(self, seconds: float) -> None:
        """Wait until asked, or for so long."""
        clock = SystemClock()
        until_s = clock.monotonic_s() + seconds
        while not self._asked and clock.monotonic_s() < until_s:
            pause(_HALT_S)


class ServedEngine:
    """The engine of a service: one of several, of which one is active."""

    def __init__(
        self,
        shared: Shared,
        spec: PipelineSpec,
        executor: Callable[[], Executor],
        *,
        config: Config,
        telling: Telling,
        halt: Halt,
        clock: Clock | None = None,
    ) -> None:
        """Begin. `executor` is asked each time this process becomes active."""
        self._shared, self._spec, self._make = shared, spec, executor
        self._config, self._telling, self._halt = config, telling, halt
        self._clock = clock or SystemClock()

    def serve(self) -> None:
        """Stand by and act by turns, until the halt is asked for.

        Raises:
            HoldfastError: what keeps this process from acting at all.
        """
        keeper = Keeper(
            self._shared.store,
            ENGINE_RESOURCE,
            directory=self._shared.directory.root,
            owner=f"pid {os.getpid()}",
            clock=self._clock,
            patience_s=self._config.lease_patience_s,
        )
        waiting = False
        while not self._halt():
            fence = keeper.try_take()
            if fence is None:
                if not waiting:
                    self._telling.say("standing by: another engine is active")
                waiting = True
                self._halt.wait(_STANDBY_S)
                continue
            waiting = False
            try:
                self._act(keeper, fence)
            except RunStopped:
                return
            except Fenced:
                self._telling.say(f"another engine took over from epoch {fence.epoch}")
            finally:
                keeper.close()

    def _act(self, keeper: Keeper, fence: Fence) -> None:
        self._telling.say(f"active, epoch {fence.epoch}")
        held = Held(self._shared.directory, self._shared.store, fence)
        lost = _Lost(self._halt)
        executor = self._make()
        self._halt.watch(executor)
        try:
            with (
                beating(keeper, lambda error: lost.by(error, executor), self._shared.life.hangs),
                open_logs(held.store, routes_of(self._spec, self._config)) as logs,
            ):
                executor.check()
                many = ManyRuns(
                    held.store,
                    lambda run: self._engine_of(held, run, executor, lost, logs),
                    clock=self._clock,
                    stop=lost,
                    abort=executor.abort,
                    tell=self._telling.trouble,
                    at_once=self._config.works_at_once,
                    batch_bytes=self._config.batch_bytes,
                    go_on=self._shared.life.go_on,
                )
                with self._shared.life.working():
                    many.work()
        except HoldfastError as error:
            raise lost.error or error from error
        finally:
            self._halt.watch(None)
            executor.close()
        if lost.error is not None:
            raise lost.error

    def _engine_of(
        self,
        held: Held,
        run: ReadyRun,
        executor: Executor,
        lost: _Lost,
        logs: Mapping[int, QueueBackend],
    ) -> Engine:
        watch: Watcher = lambda event: self._telling.watch(run, event)  # noqa: E731 - bound to one run
        return Engine(
            held,
            self._spec,
            executor,
            log=EmbeddedBackend(held.store),
            logs=logs,
            blobs=LocalBlobs(held.directory.blobs),
            config=self._config,
            watch=watch,
            stop=lost,
        )


class _Lost:
    """Whether to stop: the halt was asked for, or the lease is lost, and by what."""

    def __init__(self, halt: Halt) -> None:
        self._halt = halt
        self.error: HoldfastError | None = None

    def __call__(self) -> bool:
        return self._halt() or self.error is not None

    def by(self, error: HoldfastError, executor: Executor) -> None:
        """Note it, and end what is under way: nothing of it could be committed any more."""
        self.error = error
        executor.abort()
