"""Clean-up: runs that nobody will ask for any more lose their bytes and rows; a tombstone stays.

Time is accumulated by whoever holds the lease, in the store: see `holdfast.store.sqlite.watch`.

What a sweep does, in this order, each step durable before the next and idle when done again:

1. The run is SWEPT. From here on readers find it gone and senders are refused, so nobody sees what
   follows. Crash after: found again as SWEPT and not cleared.
2. Its queues and topics go.
3. Its directories go: inputs and what attempts wrote.
4. Its blobs go, with the directories they leave empty: uploads, and pieces of external results.
5. Records of its client's notices go that every known group has passed; where there is none, those
   that tell of swept runs.
6. Its rows go, and with them the wish to clear it. The tombstone stays.

Steps 3 and 4 are as long as the run is large, so a look stops between two files when its time is
over, and the next goes on: runs of others become DONE meanwhile. Crash there: begun again with what
is left. Their effects are not made durable one by one. Crash of the machine behind step 6: what it
brings back is below the name of a run that is SWEPT, which is looked for once a minute and first of
all by a successor.

Crash points: `sweep.*`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from holdfast._base.clock import Clock
from holdfast._base.crashpoint import crashpoint
from holdfast._base.files import TEMPORARY_PREFIX, os_errors
from holdfast._base.ids import Offset, RunId
from holdfast.blobs.contract import BlobStore
from holdfast.config import Config
from holdfast.delivery.orphans import CHUNKS, Orphans
from holdfast.delivery.ports import RESULTS, ResultQueues, header_queue, request_for
from holdfast.delivery.receive import EXTERNAL, receiving_of
from holdfast.delivery.states import move
from holdfast.delivery.troubles import Troubles
from holdfast.delivery.waiting import awaited
from holdfast.store.contract import Store, ingress_topic, notice_topic
from holdfast.store.result_rows import Watched
from holdfast.store.rows import Fence, Run, RunKind, RunState
from holdfast.store.states import STOPS

_NOTICES_AT_ONCE = 100
STRAYS_EVERY_MS = 60_000
"""How often it is looked for what came after the sweep of its run."""
TURN_S = 0.2
"""How long a look removes before it leaves the rest to the next one. Longer: DONE and notices of
others wait. Shorter: what large runs hold on disk goes later."""


@dataclass(frozen=True, slots=True)
class Homes:
    """Where the bytes of runs are: directories with one entry per run, and the blobs' root."""

    per_run: tuple[Path, ...]
    blobs: Path

    def of(self, run_id: RunId) -> list[Path]:
        """Return the directories of a run that are there."""
        return [home / run_id for home in self.per_run if (home / run_id).is_dir()]


class Duty(StrEnum):
    """What is to be done about a run."""

    NOTHING = "nothing"
    ABANDON = "abandon"
    DROP_QUEUES = "drop queues"
    SWEEP = "sweep"
    CLEAR = "clear"


def duty(watched: Watched, config: Config, *, waits: bool) -> Duty:
    """Say what is to be done about a run. Pure.

    `waits`: for its client or its producer. A run at work of ours is never abandoned.
    """
    state, idle_s = RunState(watched.run.state), watched.idle_ms / 1000
    if state is RunState.SWEPT:
        return Duty.CLEAR
    if state in STOPS:
        return Duty.SWEEP if idle_s >= config.sweep_after_s else Duty.NOTHING
    if state is RunState.DONE:
        if 0 < config.expire_after_s <= idle_s:
            return Duty.SWEEP
        return Duty.DROP_QUEUES if watched.has_queues else Duty.NOTHING
    if waits and 0 < config.abandon_after_s <= idle_s:
        return Duty.ABANDON
    return Duty.NOTHING


def due_for_sweep(store: Store, config: Config) -> list[Run]:
    """Return the runs that the next sweep will take, or has begun with. Changes nothing."""
    wanted = (Duty.SWEEP, Duty.CLEAR)
    return [
        watched.run
        for watched in store.list_watched()
        if duty(watched, config, waits=False) in wanted
    ]


@dataclass(frozen=True, slots=True)
class Coming:
    """What delivery will do about a run by itself, unless something happens to it before."""

    run: Run
    duty: Duty
    """SWEEP or ABANDON."""
    idle_s: float
    """How long nothing has happened to it while a delivery was active."""
    limit_s: float
    """How long that may be."""

    @property
    def left_s(self) -> float:
        """Return how long a delivery must be active until then."""
        return max(0.0, self.limit_s - self.idle_s)


def coming(store: Store, config: Config) -> list[Coming]:
    """Return the runs whose time is running: to their sweep, or while they wait. No time runs out
    where there is no limit. Changes nothing.
    """
    found = []
    for watched in store.list_watched():
        run, idle_s = watched.run, watched.idle_ms / 1000
        state = RunState(run.state)
        if state in STOPS or state is RunState.DONE:
            what, limit_s = Duty.SWEEP, config.sweep_after_s
            if state is RunState.DONE:
                limit_s = config.expire_after_s
            is_running = idle_s < limit_s
        else:
            what, limit_s = Duty.ABANDON, config.abandon_after_s
            is_running = limit_s > 0 and bool(awaited(store, run))
        if is_running:
            found.append(Coming(run, what, idle_s, limit_s))
    return found


def queues_elsewhere(store: Store) -> set[RunId]:
    """Return the runs whose queues may be on a broker: they have some, not on the store's log."""
    topics = store.list_topics()
    return {
        watched.run.run_id
        for watched in store.list_watched()
        if watched.run.kind is RunKind.EXTERNAL
        and watched.has_queues
        and header_queue(watched.run.run_id) not in topics
    }


class Sweeper:
    """Does what is to be done about runs, under a fence."""

    def __init__(
        self,
        store: Store,
        blobs: BlobStore,
        queues: ResultQueues,
        homes: Homes,
        fence: Fence,
        config: Config,
        troubles: Troubles,
        clock: Clock,
    ) -> None:
        self._store, self._blobs, self._queues = store, blobs, queues
        self._homes, self._fence, self._config = homes, fence, config
        self._troubles, self._clock = troubles, clock
        self._over_s = 0.0
        self._works: dict[str, Iterator[None]] = {}
        """What was cut off by the end of its turn."""
        self._last: RunId | None = None
        self._strays_at_ms = 0
        self._partial: dict[Path, tuple[int, int, int]] = {}
        keep_ms = int(config.sweep_after_s * 1000)
        self._orphans = Orphans(store, blobs, homes.blobs, keep_ms=keep_ms)

    def advance(self) -> int:
        """Look at the runs, and do what is due; returns about how many something was done.

        When its time is over, the next look goes on with the run behind the last one.
        """
        done, unseen = 0, []
        watching = self._in_turn()
        self._over_s = self._clock.monotonic_s() + TURN_S
        for watched in watching:
            run = watched.run
            is_external = run.kind is RunKind.EXTERNAL
            is_heard = not self._troubles.hinder(receiving_of(run.run_id))
            if is_external and run.state == RunState.RECEIVING and not is_heard:
                unseen.append(run.run_id)
            what_to_do = self._duty(watched)
            if what_to_do is Duty.NOTHING or (what_to_do is Duty.ABANDON and run.run_id in unseen):
                continue
            if done and self._is_over_time():
                continue
            self._last = run.run_id
            done += self._troubles.attempt(
                f"clean-up of run {run.run_id}",
                partial(self._attend, watched, what_to_do),
                asks_broker=is_external and what_to_do is not Duty.ABANDON,
            )
        if unseen and self._config.abandon_after_s > 0:
            # What their producers said could not be heard: they do not grow old by that.
            self._store.excuse_runs(self._fence, unseen)
        self._look_around(self._store.read_elapsed())
        return done

    def _in_turn(self) -> list[Watched]:
        """Return the runs, those behind the one that had the last turn first."""
        expire_s = self._config.expire_after_s
        found = self._store.watch_runs(
            self._fence,
            sweep_ms=int(self._config.sweep_after_s * 1000),
            expire_ms=int(expire_s * 1000) if expire_s > 0 else None,
        )
        names = [watched.run.run_id for watched in found]
        behind = names.index(self._last) + 1 if self._last in names else 0
        return found[behind:] + found[:behind]

    def _look_around(self, elapsed_ms: int) -> None:
        """Remove what belongs to no run that is watched."""
        is_time = elapsed_ms >= self._strays_at_ms
        if is_time:
            self._strays_at_ms = elapsed_ms + STRAYS_EVERY_MS
            work = partial(self._sweep_partial, elapsed_ms)
            self._troubles.attempt("clean-up of half-written uploads", work)
        for name, begin in (
            ("clean-up after late jobs", self._sweep_strays),
            ("clean-up of uploads that nothing binds", partial(self._orphans.sweep, elapsed_ms)),
        ):
            if is_time or name in self._works:
                self._troubles.attempt(name, partial(self._go_on, name, begin))

    def _is_over_time(self) -> bool:
        return self._clock.monotonic_s() >= self._over_s

    def _go_on(self, name: str, begin: Callable[[], Iterator[None]]) -> int:
        """Go on with work that was cut off, or begin it, until it or the time is over. What raises
        is not kept: it begins again.
        """
        work = self._works.pop(name, None) or begin()
        for _ in work:
            if self._is_over_time():
                self._works[name] = work
                break
        return 1

    def _duty(self, watched: Watched) -> Duty:
        # Only of one that is old enough: the question goes through all of its senders.
        is_old = 0 < self._config.abandon_after_s <= watched.idle_ms / 1000
        waits = is_old and bool(awaited(self._store, watched.run))
        return duty(watched, self._config, waits=waits)

    def _attend(self, watched: Watched, what_to_do: Duty) -> int:
        run = watched.run
        match what_to_do:
            case Duty.ABANDON:
                waits = awaited(self._store, run)
                reason = f"nothing came for {watched.idle_ms // 1000} s: {'; '.join(waits)}"
                self._store.abandon_run(self._fence, run.run_id, mark=watched.mark, error=reason)
                crashpoint("sweep.abandon.after")
            case Duty.DROP_QUEUES:
                self._drop_queues(run)
            case Duty.SWEEP | Duty.CLEAR:
                self._go_on(run.run_id, partial(self.sweep, run))
            case Duty.NOTHING:
                return 0
        return 1

    def sweep(self, run: Run, *, with_queues: bool = True) -> Iterator[None]:
        """Sweep a run that came to its end; steps as above. Yields between them, and between files:
        whoever takes no further leaves the rest as a crash would.

        Without its queues the run stays uncleared, for a delivery that knows their broker.
        """
        state, to = RunState(run.state), RunState.SWEPT
        if state is not RunState.SWEPT:
            move(self._store, self._fence, run.run_id, current=state, to=to, error=run.error)
            crashpoint("sweep.mark.after")
            yield
        if with_queues:
            self._drop_queues(run)
            yield
        for path in self._homes.of(run.run_id):
            for _ in _remove(path):
                crashpoint("sweep.files.each")
                yield
        yield from self._clear_blobs(run.run_id)
        self._truncate_notices(run)
        if not with_queues:
            return
        self._store.clear_run(self._fence, run.run_id, uploads=f"{CHUNKS}{run.run_id}/")
        crashpoint("sweep.clear.after")

    def _clear_blobs(self, run_id: RunId) -> Iterator[None]:
        for prefix in (f"{CHUNKS}{run_id}/", f"{EXTERNAL}{run_id}/"):
            for name in self._blobs.names(prefix):
                self._blobs.delete(name, durable=False)
                crashpoint("sweep.blob.each")
                yield
            _remove_empty(self._homes.blobs / prefix)

    def _drop_queues(self, run: Run) -> None:
        """Remove the queues of a run, then say so. Crash in between: missing ones are no error."""
        if run.kind is RunKind.EXTERNAL:
            self._queues.delete(request_for(run.run_id, run.client))
            crashpoint("sweep.queues.after")
        segments = range(1, run.segments + 1)
        topics = tuple(ingress_topic(run.run_id, segment) for segment in segments)
        self._store.forget_queues(self._fence, run.run_id, topics)
        crashpoint("sweep.topics.after")

    def _truncate_notices(self, run: Run) -> None:
        """Drop what every group has passed; where nobody reads in a group, what tells of runs that
        are swept, from the first on: a reader without a group finds the others as long as their
        runs.
        """
        topic = notice_topic(run.client)
        if not run.client or topic not in self._store.list_topics():
            return
        first, free = self._store.topic_bounds(topic, 0)
        offset = free if self._store.list_offsets(topic, 0) else self._first_kept(topic, first)
        # A group that comes in between stands at 0, so that nothing goes.
        self._store.truncate_records(topic, 0, offset, unread=True, fence=self._fence)

    def _first_kept(self, topic: str, offset: Offset) -> Offset:
        """Return the first offset from `offset` on that tells of a run that is not swept."""
        while found := self._store.read_records(topic, 0, offset, _NOTICES_AT_ONCE):
            for stored in found:
                if not self._is_over(_run_of(stored.record.value), RunState.SWEPT):
                    return stored.offset
            offset = Offset(found[-1].offset + 1)
        return offset

    def _sweep_strays(self) -> Iterator[None]:
        """Remove what came after the sweep of its run: directories of a job that outlived it, blobs
        and topics of a former delivery that was stopped in the middle of a step.
        """
        for home in self._homes.per_run:
            for path in _entries(home):
                if self._is_stray(path.name):
                    yield from _remove(path)
        for prefix in (CHUNKS, EXTERNAL):
            for path in _entries(self._homes.blobs / prefix):
                if self._is_stray(path.name):
                    yield from self._clear_blobs(RunId(path.name))
        for topic in self._store.list_topics():
            run_name = topic.removeprefix(RESULTS).partition("/")[0]
            over = RunState.DONE, RunState.SWEPT
            if topic.startswith(RESULTS) and self._is_over(run_name, *over):
                self._store.drop_topic(topic)
                yield

    def _is_stray(self, name: str) -> bool:
        # A sweep that was cut off goes on by itself: it would miss what is removed below it.
        return name not in self._works and self._is_over(name, RunState.SWEPT)

    def _is_over(self, name: str, *states: RunState) -> bool:
        run = self._store.read_run(RunId(name))
        return run is not None and run.state in states

    def _sweep_partial(self, elapsed_ms: int) -> int:
        """Remove half-written uploads that have not grown for as long as a failed run is kept.

        Whoever wakes up and would finish one is refused by the missing file, and sends again.
        """
        seen: dict[Path, tuple[int, int, int]] = {}
        for path in _entries(self._homes.blobs):
            if not path.name.startswith(TEMPORARY_PREFIX):
                continue
            with os_errors(path):
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue
            size, changed, since_ms = self._partial.get(path, (-1, -1, elapsed_ms))
            if (size, changed) != (status.st_size, status.st_mtime_ns):
                since_ms = elapsed_ms
            if elapsed_ms - since_ms > self._config.sweep_after_s * 1000:
                with os_errors(path):
                    path.unlink(missing_ok=True)
                continue
            seen[path] = (status.st_size, status.st_mtime_ns, since_ms)
        gone = len(self._partial.keys() - seen.keys())
        self._partial = seen
        return gone


def _run_of(notice: bytes) -> str:
    """Return the run that a notice tells of; none where somebody else wrote on its topic."""
    try:
        body = json.loads(notice)
    except ValueError:
        return ""
    return str(body.get("run", "")) if isinstance(body, dict) else ""


def _entries(home: Path) -> Iterable[Path]:
    with os_errors(home):
        return sorted(home.iterdir()) if home.is_dir() else []


def _remove_empty(directory: Path) -> None:
    """Remove a directory and those below it where nothing is left; others stay as they are."""
    for path, _, _ in os.walk(directory, topdown=False):
        with suppress(OSError):
            os.rmdir(path)


def _remove(path: Path) -> Iterator[None]:
    """Remove a directory, and yield after each of those below it; what somebody else removes
    meanwhile, or adds, is left to the next. A link is not followed, and stays.
    """
    with os_errors(path):
        if path.is_symlink():
            return
        for directory, _, _ in os.walk(path, topdown=False):
            shutil.rmtree(directory, ignore_errors=True)
            yield
