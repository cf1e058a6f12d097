"""How a process becomes, stays and ceases to be the one that may act on a resource.

Of several processes that want a resource, one is active; the others stand by. Two things tell a
standby that the owner acts no more, and both end in epoch + 1, which fences the former owner:

* `DIR/<resource>.lock`, which the owner holds by `flock`. The kernel drops it with the process, so
  whoever gets it knows that the owner is dead, and takes over at once.
* The lease's (epoch, beat), which the owner moves every second. A standby that sees it stand still
  for `patience_s` of its own monotonic time takes over from an owner that lives and is stopped,
  or whose work hangs. That one still has the file locked. Its successor says in the lease that it
  acts without the lock, so that nobody who gets the lock later takes the successor for dead; and it
  gets the lock, and writes its epoch into the file, once the stopped one has ended.

Nothing but the epoch makes it safe: lock and beat only say when to try. No wall clock is asked.

Crash points: `lease.take.before`, `lease.take.after`.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from holdfast._base.clock import Clock
from holdfast._base.crashpoint import crashpoint
from holdfast._base.files import FILE_MODE, os_errors
from holdfast._base.ids import Epoch
from holdfast.errors import DiskFull, HoldfastError
from holdfast.store.contract import LeaseStore
from holdfast.store.rows import Fence, Lease

ENGINE_RESOURCE = "engine"
"""The lease under which everything that has an effect on the works of runs is done."""
DELIVERY_RESOURCE = "delivery"
"""The lease under which results and notices leave."""

Taken = TypeVar("Taken", Fence, "Fence | None")

WITHOUT_LOCK = " without lock"
"""Ends the owner's name in the lease of one that took over from a stopped process."""

BEATS_PER_PATIENCE = 10
"""Fewer: one slow transaction of the owner looks like its end. More: writes that say nothing."""


def owner_pid(lease: Lease) -> int | None:
    """Return the process that a lease was granted to, if its owner is named by its pid."""
    word = lease.owner.removesuffix(WITHOUT_LOCK).removeprefix("pid ")
    return int(word) if word.isdigit() else None


@dataclass(frozen=True, slots=True)
class Sight:
    """What a standby saw of a lease, and since when it has seen nothing else."""

    lease: Lease | None
    since_s: float


def look_again(before: Sight | None, lease: Lease | None, now_s: float) -> Sight:
    """Return what is seen now: the same sight while epoch and beat stand still. Pure."""
    if before is not None and before.lease == lease:
        return before
    return Sight(lease, now_s)


def may_take(
    sight: Sight, *, marked: int | None, has_lock: bool, now_s: float, patience_s: float
) -> bool:
    """Tell whether a standby is to take over. Pure.

    `marked` is the epoch that the lock's file names: that of an owner who got the lock late.
    """
    lease = sight.lease
    if has_lock and (
        lease is None or not lease.owner.endswith(WITHOUT_LOCK) or marked == lease.epoch
    ):
        return True
    return now_s - sight.since_s >= patience_s


def granted(take: Callable[[], Taken]) -> Taken:
    """Take the next epoch by one transaction of the store."""
    crashpoint("lease.take.before")
    fence = take()
    crashpoint("lease.take.after")
    return fence


class Keeper:
    """One process's part in the game for one resource. Used by one thread, `beat` by another."""

    def __init__(
        self,
        store: LeaseStore,
        resource: str,
        *,
        directory: Path,
        owner: str,
        clock: Clock,
        patience_s: float,
    ) -> None:
        """Stand by. Nothing is taken before `try_take`. `directory` is the state directory."""
        self._store, self._resource, self._owner = store, resource, owner
        self._path = directory / f"{resource}.lock"
        self._clock, self._patience_s = clock, patience_s
        self._descriptor: int | None = None
        self._sight: Sight | None = None
        self._fence: Fence | None = None

    @property
    def patience_s(self) -> float:
        """How long an owner may be silent."""
        return self._patience_s

    def try_take(self) -> Fence | None:
        """Take over if the owner is dead or silent. None: it is neither; ask again soon."""
        has_lock = self._try_lock()
        now_s = self._clock.monotonic_s()
        self._sight = look_again(self._sight, self._store.read_lease(self._resource), now_s)
        if not may_take(
            self._sight,
            marked=self._marked() if has_lock else None,
            has_lock=has_lock,
            now_s=now_s,
            patience_s=self._patience_s,
        ):
            # It is for the one who acts, should that be one who could not get it.
            self._unlock()
            return None
        owner = self._owner if has_lock else self._owner + WITHOUT_LOCK
        self._fence = granted(partial(self._take, self._sight.lease, owner))
        if self._fence is None:
            self._unlock()
        return self._fence

    def _take(self, seen: Lease | None, owner: str) -> Fence | None:
        if seen is None:
            return self._store.take_lease(self._resource, owner)
        return self._store.succeed_lease(seen, owner)

    def beat(self) -> None:
        """Show that the owner lives.

        Raises:
            Fenced: it is the owner no more, and has changed nothing since.
        """
        if self._fence is None:
            return
        self._store.beat_lease(self._fence)
        if self._descriptor is None and self._try_lock():
            self._mark(self._fence.epoch)

    def close(self) -> None:
        """Stand back: the next one need not wait. Until then only the lease keeps it off."""
        self._fence = self._sight = None
        self._unlock()

    def _try_lock(self) -> bool:
        if self._descriptor is not None:
            return True
        with os_errors(self._path):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, FILE_MODE)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
        self._descriptor = descriptor
        return True

    def _unlock(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _marked(self) -> int | None:
        if self._descriptor is None:
            return None
        text = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip()
        return int(text) if text.isdigit() else None

    def _mark(self, epoch: Epoch) -> None:
        if self._descriptor is not None:
            with os_errors(self._path):
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, f"{epoch}\n".encode(), 0)


@contextmanager
def beating(
    keeper: Keeper, lost: Callable[[HoldfastError], None], hangs: Callable[[], bool]
) -> Iterator[None]:
    """Beat from a thread while the block runs, but not while what does the work hangs.

    `lost` is called, in that thread and once, with what ended it: Fenced, or a store that refuses.
    Whoever acts stops then; if it does not, its next effect is refused.

    A full disk ends nothing, however long: nobody else could take over there, and if somebody does
    as soon as there is room, the next beat is fenced.
    """
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(keeper.patience_s / BEATS_PER_PATIENCE):
            if hangs():
                continue
            try:
                keeper.beat()
            except DiskFull:
                continue
            except HoldfastError as error:
                lost(error)
                return

    thread = threading.Thread(target=beat, name="beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
