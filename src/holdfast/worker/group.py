"""Workers of a group share the partitions of a topic, each partition owned by lease.

A partition has one worker at a time, whose name is the partition's and whose journal goes with it.
So it does not matter which process runs it: what it knows, sends and numbers is the same.

* A member takes free partitions up to its share: all partitions over all members, rounded up. One
  that holds more than its share, because somebody joined, gives one up between two batches.
* A member that dies loses its lock files to the kernel: others take its partitions at once. One
  that stands still is left alone for `patience_s`, twice at most; then its partitions are taken.
* The lease's epoch is part of every ack and every append, in the same transaction, so a former
  owner that wakes up changes nothing, and is told Fenced. Its journal is a file that nobody reads
  any more: each epoch has a directory of its own, made of what stood in the one before.

Crash points: those of `store.leases`, `worker.inherit.before`, `worker.inherit.after`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast._base.clock import Clock, SystemClock
from holdfast._base.crashpoint import crashpoint
from holdfast._base.files import FILE_MODE, make_directories, os_errors
from holdfast._base.ids import Epoch, digest, fresh_token
from holdfast.errors import Fenced, StorageFailed, UsageInvalid
from holdfast.log.contract import QueueBackend
from holdfast.store.contract import Store
from holdfast.store.leases import Keeper, Sight, look_again
from holdfast.store.rows import Fence
from holdfast.worker.loop import Worker
from holdfast.worker.persistence import COMMIT_INTERVAL, PersistenceService

PATIENCE_S = 10.0
"""How long a member may be silent. Shorter: a busy machine changes owners for nothing. Longer: a
stopped process keeps its partitions for so long."""
LOOKS_PER_PATIENCE = 40
"""Fewer: partitions of a dead member stand idle. More: transactions that say nothing."""


@dataclass(frozen=True, slots=True)
class Place:
    """A partition that a member holds, as it is given to whoever makes its worker."""

    partition: int
    fence: Fence
    persistence: PersistenceService


Make = Callable[[Place], Worker[Any]]
"""Makes the worker of a partition, on a log that carries the place's fence."""


def share_of(partitions: int, members: int) -> int:
    """Return how many partitions a member may hold."""
    return -(-partitions // max(members, 1))


class Member:
    """One process of a group. Call `step` again and again; wait a little when it has nothing.

    All members are on one machine: they share the store's file and `directory`.
    """

    def __init__(
        self,
        store: Store,
        backend: QueueBackend,
        make: Make,
        *,
        topic: str,
        group: str,
        directory: Path,
        patience_s: float = PATIENCE_S,
        commit_interval: int = COMMIT_INTERVAL,
        clock: Clock | None = None,
    ) -> None:
        if not group.replace("-", "").replace("_", "").isalnum():
            what = f"group {group!r} is no name"
            raise UsageInvalid(what=what, remedy="Use letters, digits, - and _.")
        # Groups of one name on two topics share nothing. A topic's name is no name of a file.
        self._name = f"{group}-{digest(topic)}"
        self._store, self._make, self._interval = store, make, commit_interval
        self._directory = directory / self._name
        self._clock, self._patience_s = clock or SystemClock(), patience_s
        make_directories(self._directory)
        self._roll = Roll(self._directory / "members")
        self._keepers = {
            partition: Keeper(
                store,
                self.resource(partition),
                directory=self._directory,
                owner=f"pid {os.getpid()}",
                clock=self._clock,
                patience_s=patience_s,
            )
            for partition in range(backend.partitions(topic))
        }
        self._sights: dict[int, Sight] = {}
        self._held: dict[int, tuple[Place, Worker[Any]]] = {}
        self._look_at_s = self._clock.monotonic_s()

    def resource(self, partition: int) -> str:
        """Return the name of a partition's lease, and of its journal's worker."""
        return f"{self._name}-{partition}"

    @property
    def held(self) -> list[int]:
        """The partitions that this member holds."""
        return sorted(self._held)

    def step(self) -> bool:
        """Deal with one batch of each partition held. False: there was nothing to do."""
        if self._clock.monotonic_s() >= self._look_at_s:
            self._share_out()
            self._look_at_s = self._clock.monotonic_s() + self._patience_s / LOOKS_PER_PATIENCE
        busy = False
        for partition, (place, worker) in list(self._held.items()):
            with self._standing_by(partition, place.fence):
                busy = worker.handle_batch() or busy
        return busy

    def close(self) -> None:
        """Leave the group: others need not wait. May never be called."""
        for partition in self.held:
            self._give_up(partition)
        self._roll.close()

    def _share_out(self) -> None:
        """Show that this member lives; give up what is over its share, take what is free."""
        for partition in self.held:
            try:
                self._keepers[partition].beat()
            except Fenced:
                self._give_up(partition)
        share = share_of(len(self._keepers), self._roll.count())
        for partition in self.held[share:]:
            self._give_up(partition)
        for partition in self._keepers:
            if partition in self._held:
                continue
            if len(self._held) < share or self._is_silent(partition):
                self._try_take(partition)

    def _is_silent(self, partition: int) -> bool:
        """Tell whether a partition's owner stands still: then a share is no reason to wait."""
        now_s = self._clock.monotonic_s()
        lease = self._store.read_lease(self.resource(partition))
        self._sights[partition] = look_again(self._sights.get(partition), lease, now_s)
        return now_s - self._sights[partition].since_s >= self._patience_s

    def _try_take(self, partition: int) -> None:
        """1. The lease. 2. The journal, copied from the former owner's. 3. The worker recovers."""
        fence = self._keepers[partition].try_take()
        if fence is None:
            return
        with self._standing_by(partition, fence), ExitStack() as undo:
            # Whatever ends this, an error of the user's code too: who has no worker holds nothing.
            undo.callback(self._keepers[partition].close)
            place = Place(partition, fence, self._inherit(partition, fence.epoch))
            undo.callback(place.persistence.close)
            self._held[partition] = place, self._make(place)
            undo.pop_all()

    @contextmanager
    def _standing_by(self, partition: int, fence: Fence) -> Iterator[None]:
        """Give a partition up if it is somebody else's by now.

        A successor removes the journals before its own, so one that slept may meet a file that is
        gone before the store tells it that it is fenced.
        """
        try:
            yield
        except Fenced:
            self._give_up(partition)
        except StorageFailed:
            lease = self._store.read_lease(fence.resource)
            if lease is None or lease.epoch == fence.epoch:
                raise
            self._give_up(partition)

    def _inherit(self, partition: int, epoch: Epoch) -> PersistenceService:
        """Open this epoch's journal, made of the newest one before it; remove those before it.

        1. The new journal is durable before it has its name. Crash before: nobody finds it.
        2. Older ones are removed. Crash before: they are found again, and are not the newest.
        """
        home = self._directory / f"partition-{partition}"
        with os_errors(home):
            former = max(
                (found for found in _epochs(home) if found < epoch and _is_whole(home, found)),
                default=None,
            )
        crashpoint("worker.inherit.before")
        persistence = PersistenceService(
            home / _name(epoch),
            self.resource(partition),
            commit_interval=self._interval,
            former=None if former is None else home / _name(former),
        )
        crashpoint("worker.inherit.after")
        for found in _epochs(home):
            if found < epoch:
                shutil.rmtree(home / _name(found), ignore_errors=True)
        return persistence

    def _give_up(self, partition: int) -> None:
        held = self._held.pop(partition, None)
        if held is not None:
            held[0].persistence.close()
        self._keepers[partition].close()
        self._sights.pop(partition, None)


def _name(epoch: int) -> str:
    return f"epoch-{epoch}"


def _epochs(home: Path) -> list[int]:
    if not home.is_dir():
        return []
    names = [path.name.removeprefix("epoch-") for path in home.glob("epoch-*")]
    return [int(name) for name in names if name.isdigit()]


def _is_whole(home: Path, epoch: int) -> bool:
    """Tell whether an epoch's journal was made: it has its name only when it is complete."""
    return (home / _name(epoch) / "journal").exists()


class Roll:
    """Who is in a group: a locked file per member. The kernel drops the lock with the process."""

    def __init__(self, directory: Path) -> None:
        make_directories(directory)
        self._directory = directory
        self._path = directory / fresh_token()
        self._descriptor: int | None = self._enter()

    def _enter(self) -> int:
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, FILE_MODE)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if self._path.exists():
                return descriptor
            # Somebody who counted took the file, not locked yet, for a dead member's.
            os.close(descriptor)

    def count(self) -> int:
        """Return how many members there are; the files of dead ones are removed."""
        return sum(path == self._path or _is_locked(path) for path in self._directory.iterdir())

    def close(self) -> None:
        """Leave. Again: no effect."""
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(descriptor)
