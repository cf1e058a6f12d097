"""The life of an owner: an exclusive lock on a file of its own, held until its process ends.

The kernel drops the lock when the process dies, however it dies; no clock and no heartbeat is
asked. Invariants:

* The file is locked before the owner is registered, and removed only after it was read out and
  its row is gone. So a registered owner always has a file, and a free lock means death.
* Whoever holds a dead owner's lock is the only one who reads it out.
* A forked child closes its copy of the descriptor, so that it cannot keep a dead owner alive.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path
from types import TracebackType

from holdfast._base.files import FILE_MODE, fsync_file, os_errors
from holdfast._base.ids import fresh_token
from holdfast.errors import Damaged, StorageFailed

_SUFFIX = ".lock"
_live: weakref.WeakSet[OwnerLock] = weakref.WeakSet()


def lock_path(directory: Path, token: str) -> Path:
    """Return the file whose lock is the life of owner `token`."""
    return directory / f"{token}{_SUFFIX}"


class OwnerLock:
    """A lock on an owner's file, by the owner itself or by whoever found it dead."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.token = path.name.removesuffix(_SUFFIX)
        # Taken from the list by whoever closes it: several threads may give up at once, and a
        # number closed twice may be another file's by then.
        self._open = [descriptor]
        _live.add(self)

    def release(self, *, remove: bool = False) -> None:
        """Give the lock up; with `remove`, the file goes first, while nobody else can lock it."""
        try:
            descriptor = self._open.pop()
        except IndexError:
            return
        if remove:
            self.path.unlink(missing_ok=True)
        os.close(descriptor)

    def __enter__(self) -> OwnerLock:
        """Hold the lock for a block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the lock up."""
        self.release()


def new_owner(directory: Path) -> OwnerLock:
    """Create and lock the file of a new owner, its name durable."""
    while True:
        path = lock_path(directory, fresh_token())
        with os_errors(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE)
            if _try_lock(descriptor):
                fsync_file(directory)
                return OwnerLock(path, descriptor)
            # A sweeper locked the fresh file before we could: leave it to them.
            os.close(descriptor)


def lock_dead(directory: Path, token: str) -> OwnerLock | None:
    """Return the lock of a dead owner, or None while it lives or somebody else reads it out.

    Raises:
        Damaged: the file is missing, so nobody can tell whether the owner lives.
    """
    path = lock_path(directory, token)
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError as error:
        what = "the lock file of a registered owner is missing"
        raise Damaged(path=str(path), what=what) from error
    except OSError as error:
        raise StorageFailed(path=str(path), error=str(error)) from error
    if _try_lock(descriptor):
        return OwnerLock(path, descriptor)
    os.close(descriptor)
    return None


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _after_fork_in_child() -> None:
    for lock in list(_live):
        lock.release()  # closes the child's copy; the parent's lock stays


os.register_at_fork(after_in_child=_after_fork_in_child)
