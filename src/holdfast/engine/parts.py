"""Which parts of a service live: a file each, locked while its process lives, with its beat.

parts/<part>-<pid>      text: a number that grows every second while the process works

The lock says that the process is there, the number that it is not stopped, and that the loop which
does its work goes on. Whoever watches compares numbers by its own monotonic clock. Nothing here is
durable or decides anything but what people, and the supervisor, see.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast._base.files import FILE_MODE, TEMPORARY_PREFIX, make_directories, os_errors
from holdfast._base.locks import holders

BEAT_S = 1.0
"""Seconds between two beats. Shorter: writes that say nothing. Longer: a stopped part is noticed
later."""


@dataclass(frozen=True, slots=True)
class Part:
    """A living part: its name, its process, and its beat."""

    name: str
    pid: int
    beat: int


def parts_in(directory: Path) -> list[Part]:
    """Return the parts that live, by name and pid."""
    found = []
    with os_errors(directory):
        paths = sorted(directory.iterdir()) if directory.is_dir() else []
    for path in paths:
        name, _, pid = path.name.rpartition("-")
        if pid.isdigit() and int(pid) in holders(path, "WRITE"):
            found.append(Part(name, int(pid), beat_of(path)))
    return found


def beat_of(path: Path) -> int:
    """Return the beat in a part's file; 0 while there is none."""
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return 0
    return int(text) if text.isdigit() else 0


def part_file(directory: Path, name: str, pid: int) -> Path:
    """Return the file of a part."""
    return directory / f"{name}-{pid}"


class Life:
    """Whether the loop that does a part's work goes on: the beat, a thread's, ends with it.

    It is counted in beats, so a process that was stopped meanwhile, or a machine, counts nothing.
    """

    def __init__(self, hang_s: float) -> None:
        """Begin; nothing is watched. A loop hangs that was silent for `hang_s`."""
        self._hang_s, self._silent_s, self._is_watched = hang_s, 0.0, False

    @contextmanager
    def working(self) -> Iterator[Callable[[], None]]:
        """Watch a loop while the block runs. It calls what is given here in each of its rounds."""
        self.go_on()
        self._is_watched = True
        try:
            yield self.go_on
        finally:
            self._is_watched = False

    def go_on(self) -> None:
        """Say that the loop that is watched goes on."""
        self._silent_s = 0.0

    def tick(self) -> None:
        """Count another second. Called by the thread that beats."""
        self._silent_s += BEAT_S

    def hangs(self) -> bool:
        """Tell whether the loop that is watched was silent for too long."""
        return self._is_watched and self._silent_s >= self._hang_s


@contextmanager
def living(directory: Path, name: str, hang_s: float) -> Iterator[Life]:
    """Show that this process is a living part while the block runs. Removes what dead ones left."""
    path = part_file(directory, name, os.getpid())
    with os_errors(directory):
        make_directories(directory)
        _sweep(directory)
        descriptor = _locked_file(path)
    life, ended = Life(hang_s), threading.Event()
    beat = (descriptor, life, ended)
    thread = threading.Thread(target=_beat, args=beat, name="part", daemon=True)
    thread.start()
    try:
        yield life
    finally:
        ended.set()
        thread.join()
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _beat(descriptor: int, life: Life, ended: threading.Event) -> None:
    number = 1
    while not ended.wait(BEAT_S):
        life.tick()
        if life.hangs():
            continue
        number += 1
        # A full disk is no reason to look dead: the number has its bytes already.
        with suppress(OSError):
            os.pwrite(descriptor, f"{number:020}\n".encode(), 0)


def _locked_file(path: Path) -> int:
    """Make the file of a part under another name, so that nobody finds it before it is locked."""
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}")
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.pwrite(descriptor, f"{1:020}\n".encode(), 0)
    os.replace(temporary, path)
    return descriptor


def _sweep(directory: Path) -> None:
    for path in directory.iterdir():
        if path.name.startswith(TEMPORARY_PREFIX):
            continue
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                # Its process is dead if its lock is free.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
            finally:
                os.close(descriptor)
