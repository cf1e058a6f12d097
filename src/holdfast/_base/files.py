"""Durable files: temporary name, fsync, link or rename, fsync of every directory concerned.

A file is durable when its bytes *and* the entry that names it are on disk; fsync of the file
alone leaves a name that a power cut may take away. A failed fsync is never tried again: the
kernel has already forgotten the dirty pages, so a second one would lie. It raises, and the
process is to end and recover.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast._base.ids import fresh_token
from holdfast.errors import DiskFull, StorageFailed, UsageInvalid

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
TEMPORARY_PREFIX = ".tmp-"
_READ_BYTES = 1 << 20
"""1 MiB at a time: larger gains nothing measurable, smaller costs calls."""


@contextmanager
def os_errors(path: Path | str) -> Iterator[None]:
    """Turn the operating system's refusals on `path` into errors with a code."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(path=str(path)) from error
        text = error.strerror or str(error)
        raise StorageFailed(path=str(error.filename or path), error=text) from error


def fsync_file(path: Path) -> None:
    """Make the bytes of `path` durable; for a directory, the entries in it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(path: Path) -> None:
    """Create `path` and its missing parents, each entry durable, readable by the owner only.

    So is the entry of the lowest one that is there: a process that was killed before it could fsync
    the parent may have made it. One whose parent we may not read is no work of ours.
    """
    missing = []
    current = path
    while not current.is_dir():
        missing.append(current)
        current = current.parent
    with suppress(PermissionError):
        fsync_file(current.parent)
    for directory in reversed(missing):
        directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        fsync_file(directory.parent)


def fsync_tree(root: Path) -> list[Path]:
    """Make every file and directory below `root` durable, and `root`'s own entry.

    Returns the files, sorted by path.
    """
    files: list[Path] = []
    for directory, _, names in os.walk(root):
        for name in names:
            files.append(Path(directory, name))
            fsync_file(files[-1])
        fsync_file(Path(directory))
    fsync_file(root.parent)
    return sorted(files)


def write_replace(path: Path, pieces: Iterable[bytes]) -> str:
    """Write `path` so that a reader sees the old file or the whole new one. Returns its SHA-256.

    1. The bytes go to a temporary name in the same directory and are made durable.
    2. The temporary name is renamed to `path`. Crash before: the old file stands.
    3. The directory is made durable. Crash before: old or new, never a mixture.
    """
    temporary, checksum = write_temporary(path.parent, pieces)
    os.replace(temporary, path)
    fsync_file(path.parent)
    return checksum


def write_temporary(directory: Path, pieces: Iterable[bytes]) -> tuple[Path, str]:
    """Write a durable file with a fresh temporary name. Returns it and its SHA-256."""
    writer = TemporaryWriter(directory)
    try:
        for piece in pieces:
            writer.write(piece)
        checksum = writer.seal()
    except BaseException:  # whatever it was, it is raised again: only the file must not stay
        writer.discard()
        raise
    writer.close()
    return writer.path, checksum


class TemporaryWriter:
    """A file with a fresh temporary name that is written piece by piece, and hashed on the way.

    For whoever gets bytes from elsewhere and cannot hand over an iterable. One thread at a time;
    it need not be the same one.
    """

    def __init__(self, directory: Path) -> None:
        """Make the file, empty, for the owner only."""
        self.path = directory / f"{TEMPORARY_PREFIX}{fresh_token()}"
        self.size = 0
        self._state = hashlib.sha256()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
        self._file = open(descriptor, "wb")  # noqa: SIM115 - closed by seal or discard
        # Held until the file is closed, which a killed process does too: `is_left_behind`.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, piece: bytes) -> None:
        """Add bytes. They are durable after `seal`, not before."""
        self._state.update(piece)
        self._file.write(piece)
        self.size += len(piece)

    def seal(self) -> str:
        """Make the bytes durable; returns their SHA-256. The file is then given a name, and
        closed.
        """
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._state.hexdigest()

    def close(self) -> None:
        """Let go of the file, which stays under whatever name it has."""
        self._file.close()

    def discard(self) -> None:
        """Remove the temporary name, whatever became of the bytes."""
        # What is still buffered would be written by a close, to a disk that may be full.
        with suppress(OSError):
            self._file.close()
        self.path.unlink(missing_ok=True)


def refuse_pattern(path: Path) -> None:
    """Refuse a path that Spark's readers would take for a pattern, and read other files by.

    Raises:
        UsageInvalid: it holds one of * ? [ ] { } or a backslash.
    """
    if found := set(str(path)) & set("*?[]{}\\"):
        what = f"{path} holds {min(found)}, which Spark takes for a pattern"
        raise UsageInvalid(what=what, remedy="Rename it.")


def is_left_behind(path: Path) -> bool:
    """Tell whether the process that wrote a temporary file is dead: the kernel dropped its lock.

    False where it is being written, or waits for its name.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def is_temporary(path: Path) -> bool:
    """Tell whether a name is one that `write_temporary` gives, so that it may be removed."""
    token = path.name.removeprefix(TEMPORARY_PREFIX)
    return token != path.name and len(token) == 32 and set(token) <= set("0123456789abcdef")


def read_pieces(path: Path, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """Yield the bytes `start` to `stop` of a file, a piece at a time."""
    with path.open("rb") as file:
        file.seek(start)
        left = None if stop is None else stop - start
        while left is None or left > 0:
            piece = file.read(_READ_BYTES if left is None else min(left, _READ_BYTES))
            if not piece:
                return
            if left is not None:
                left -= len(piece)
            yield piece


def sha256_of(pieces: Iterable[bytes]) -> str:
    """Return the SHA-256 of bytes given in pieces, in hexadecimal."""
    state = hashlib.sha256()
    for piece in pieces:
        state.update(piece)
    return state.hexdigest()
