"""The delivery of one active process: DONE, external results, notices, clean-up.

It has no memory of its own: everything is found in the store, in whatever state a crash left it.
So recovery is what it does anyway.

Crash points: `closing.done.before`, `closing.done.after`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast._base.clock import Clock
from holdfast._base.crashpoint import crashpoint
from holdfast.blobs.contract import BlobStore
from holdfast.config import Config
from holdfast.delivery.ports import ResultQueues
from holdfast.delivery.receive import Receiver
from holdfast.delivery.sweep import Homes, Sweeper
from holdfast.delivery.troubles import Tell, Troubles, do_nothing, say_nothing
from holdfast.delivery.webhook import Sender
from holdfast.errors import RunGone
from holdfast.store.contract import Store
from holdfast.store.rows import Fence, RunState

ELAPSED_EVERY_S = 0.25
"""How often the time that went by is added up in the store. Shorter: more transactions that say
nothing else. Longer: a notice comes late by so much."""
ELAPSED_STEP_MAX_S = 2.0
"""The most that is added at once. A process that stood still did not watch, and a run that it could
not see must not grow old by it."""
SWEEP_EVERY_S = 1.0
"""How often all runs are looked at."""


@dataclass(frozen=True, slots=True)
class Means:
    """What delivery works with."""

    store: Store
    blobs: BlobStore
    queues: ResultQueues
    homes: Homes
    secrets: Path
    config: Config
    clock: Clock
    tell: Tell = say_nothing
    go_on: Callable[[], None] = do_nothing
    """Hears that the work goes on, also within one of its steps."""


class Delivery:
    """Everything that leaves, under one grant of the lease. Used by one thread."""

    def __init__(self, means: Means, fence: Fence) -> None:
        self._store, self._clock, self._fence = means.store, means.clock, fence
        self.troubles = Troubles(means.clock, means.tell, means.go_on)
        """Of runs and clients' queues; for whoever else asks the same broker, too."""
        self._receiver = Receiver(means.store, means.blobs, means.queues, fence, self.troubles)
        self._sender = Sender(means.store, fence, means.secrets, means.config, means.clock)
        self._sweeper = Sweeper(
            means.store,
            means.blobs,
            means.queues,
            means.homes,
            fence,
            means.config,
            self.troubles,
            means.clock,
        )
        self._counted_s = means.clock.monotonic_s()
        self._swept_s: float | None = None

    def advance(self) -> int:
        """Do what can be done now; returns how much that was. 0: look again in a moment.

        What goes wrong with one run or one notice stays with it: see `delivery.troubles`.

        Raises:
            Fenced: somebody else is active; nothing was changed since.
        """
        self._count_time()
        done = self._finish() + self._receiver.advance() + self._sender.advance()
        now_s = self._clock.monotonic_s()
        if self._swept_s is None or now_s - self._swept_s >= SWEEP_EVERY_S:
            self._swept_s = now_s
            done += self._sweeper.advance()
        return done

    @property
    def is_sending(self) -> bool:
        """Tell whether a notice is under way."""
        return self._sender.is_busy

    def close(self) -> None:
        """Let notices that are under way come to their end."""
        self._sender.close()

    def _count_time(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._counted_s >= ELAPSED_EVERY_S:
            step_s = min(now_s - self._counted_s, ELAPSED_STEP_MAX_S)
            self._counted_s = now_s
            self._store.add_elapsed(self._fence, int(step_s * 1000))

    def _finish(self) -> int:
        """Move runs from COMPLETING to DONE: all their pieces are there.

        One transaction makes the pieces final and the notice. Crash before: done again. Crash
        after: DONE, and the notice is found in the outbox.
        """
        runs = self._store.list_runs_in(RunState.COMPLETING)
        for run in runs:
            self.troubles.go_on()
            crashpoint("closing.done.before")
            try:
                self._store.finish_run(self._fence, run.run_id, {})
            except RunGone:
                continue
            crashpoint("closing.done.after")
        return len(runs)
