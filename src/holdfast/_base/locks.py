"""Locks on files that the kernel drops with the process: nobody waits for a killed one's."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast._base.files import FILE_MODE, os_errors
from holdfast.errors import StateBusy

_LOCKS = Path("/proc/locks")


def open_lock(path: Path) -> int:
    """Return a descriptor of a lock file, made if it is missing. Its close lets go of the lock."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)


def try_lock(descriptor: int, kind: int) -> bool:
    """Take a lock of a kind of `fcntl.flock`, or tell that it is not to be had now."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_alone(path: Path, *, of: Path) -> int:
    """Take the lock that says who works on `of`, and write our pid into it. Returns its descriptor.

    Raises:
        StateBusy: another process has it; its pid is named.
    """
    descriptor = open_lock(path)
    if not try_lock(descriptor, fcntl.LOCK_EX):
        error = busy(path, descriptor, of=of)
        os.close(descriptor)
        raise error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


@contextmanager
def directory_locked(path: Path) -> Iterator[bool]:
    """Lock a directory while the block runs; gives False where somebody else has it locked."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield try_lock(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def busy(path: Path, descriptor: int, *, of: Path) -> StateBusy:
    """Return the error that names who holds a lock: by the kernel, else by what is written."""
    text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    written = int(text) if text.isdigit() else 0
    return StateBusy(state=str(of), pid=next(iter(holders(path)), written))


def holders(lock: Path, kind: str = "READ|WRITE") -> list[int]:
    """Return the processes that hold a lock by `flock` now, shared (READ) or alone (WRITE).

    The kernel's own list is asked. Trying the lock would take it for a moment, and a process that
    starts in that moment would be refused.
    """
    with os_errors(lock):
        try:
            number = lock.stat().st_ino
        except FileNotFoundError:
            return []
        held = _LOCKS.read_text(encoding="ascii") if _LOCKS.is_file() else ""
    # 1: FLOCK  ADVISORY  WRITE 4711 fe:01:1234567 0 EOF
    pattern = rf"^\d+: FLOCK +ADVISORY +(?:{kind}) +(\d+) +\S+:{number} "
    return [int(pid) for pid in re.findall(pattern, held, re.MULTILINE)]
