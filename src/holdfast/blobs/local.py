"""Blobs in a directory. Layout and rules: docs/internals/blobs.md.

A blob's name is its path below the root. It is there as a whole or not at all: its bytes are
durable under a temporary name before `link(2)` gives it its own, which cannot replace another.

No path is followed through a symbolic link: directories are walked one by one from the root.

Crash points: `blobs.create.written`, `blobs.create.linked`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast._base.crashpoint import crashpoint
from holdfast._base.files import (
    DIRECTORY_MODE,
    TEMPORARY_PREFIX,
    TemporaryWriter,
    is_left_behind,
    make_directories,
    os_errors,
    sha256_of,
)
from holdfast.blobs.contract import BlobInfo, name_segments
from holdfast.errors import Damaged

_READ_BYTES = 1 << 20
"""1 MiB at a time: larger gains nothing measurable, smaller costs calls."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Does not wait for whoever writes to a pipe: it is refused right after."""

_SETTLED_MAX = 10_000
"""Directories that are remembered. All are forgotten at once then, and looked at again: fewer cost
an fsync more often, more cost memory for runs of the past."""
_NO_FILE = (errno.EINVAL, errno.ELOOP, errno.ENXIO)
"""What opening says of a directory (our own word), a symbolic link, a socket."""


class LocalBlobs:
    """Named bytes in files below `root`. Fills `holdfast.blobs.contract.BlobStore`.

    Several processes may use one root. Directories are made as names need them; whoever removes an
    empty one (delivery, with its run) only makes the next creator there make it again.
    """

    def __init__(self, root: Path | str) -> None:
        with os_errors(root):
            make_directories(Path(root))
            self._root = Path(root).resolve()
        # Directories whose own entry this process knows to be durable. One that is found may have
        # been made a moment ago by a process that was killed before it could fsync the parent.
        self._settled: set[tuple[str, ...]] = set()

    def create(self, name: str, pieces: Iterable[bytes]) -> BlobInfo:
        """Store bytes under a new name, durably, before returning.

        1. The directories on the way exist and their entries are durable.
        2. The bytes go to a temporary file in the root and are made durable. Crash after: a
           temporary file, which `sweep_temporary` removes.
        3. `link(2)` gives the bytes their name, unless it is taken. Crash after: the blob may be
           there or not, as a whole; nobody was told of it.
        4. The directory is made durable. Also for a name that was taken: whoever linked it may
           have been killed before this step. Only then the caller hears of it.

        Raises:
            Damaged: the name exists with other bytes, which stay.
        """
        writer = self.begin(name)
        try:
            with os_errors(self.location(name)):
                for piece in pieces:
                    writer.write(piece)
            return writer.finish()
        finally:
            writer.abandon()

    def begin(self, name: str) -> _LocalWriter:
        """Begin a blob whose bytes come piece by piece: step 1 of `create`."""
        *parents, _ = name_segments(name)
        with os_errors(self.location(name)), self._directory(parents, create=True):
            return _LocalWriter(self, name, TemporaryWriter(self._root))

    def link(self, name: str, temporary: Path, checksum: str) -> None:
        """Give a durable temporary file its name: steps 3 and 4 of `create`."""
        *parents, leaf = name_segments(name)
        with self._directory(parents, create=True) as directory:
            try:
                os.link(temporary, leaf, dst_dir_fd=directory, follow_symlinks=False)
            except FileExistsError as error:
                if sha256_of(_read_at(directory, leaf)) != checksum:
                    what = "the blob exists with other bytes"
                    raise Damaged(path=self.location(name), what=what) from error
            crashpoint("blobs.create.linked")
            os.fsync(directory)

    @contextmanager
    def _directory(self, segments: Sequence[str], *, create: bool = False) -> Iterator[int]:
        """Open a directory below the root, step by step; make missing ones if `create`."""
        descriptor = os.open(self._root, _DIRECTORY)
        try:
            for depth, segment in enumerate(segments, start=1):
                path = tuple(segments[:depth])
                if create:
                    below = self._make(descriptor, path)
                else:
                    below = os.open(segment, _DIRECTORY, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    def _make(self, above: int, path: tuple[str, ...]) -> int:
        """Open a directory in `above`; made, with a durable entry, if it is missing."""
        if path in self._settled:
            # It may have been removed since, with all that was in it.
            with suppress(FileNotFoundError):
                return os.open(path[-1], _DIRECTORY, dir_fd=above)
        with suppress(FileExistsError):
            os.mkdir(path[-1], DIRECTORY_MODE, dir_fd=above)
        os.fsync(above)
        if len(self._settled) >= _SETTLED_MAX:
            self._settled.clear()
        self._settled.add(path)
        return os.open(path[-1], _DIRECTORY, dir_fd=above)

    def read(self, name: str) -> Iterator[bytes]:
        """Yield the bytes. A missing blob raises Damaged, and so does what is no regular file."""
        *parents, leaf = name_segments(name)
        with os_errors(self.location(name)):
            try:
                with self._directory(parents) as directory:
                    yield from _read_at(directory, leaf)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise Damaged(path=self.location(name), what="the blob is missing") from error
            except OSError as error:
                if error.errno not in _NO_FILE:
                    raise
                what = "the blob is no regular file"
                raise Damaged(path=self.location(name), what=what) from error

    def exists(self, name: str) -> bool:
        """Tell whether a blob is there."""
        *parents, leaf = name_segments(name)
        with os_errors(self.location(name)):
            try:
                with self._directory(parents) as directory:
                    mode = os.stat(leaf, dir_fd=directory, follow_symlinks=False).st_mode
            except (FileNotFoundError, NotADirectoryError):
                return False
        return stat.S_ISREG(mode)

    def delete(self, name: str, *, durable: bool = True) -> None:
        """Remove a blob; an fsync of its directory makes it durable. A missing one is no error."""
        *parents, leaf = name_segments(name)
        with os_errors(self.location(name)):
            try:
                with self._directory(parents) as directory:
                    os.unlink(leaf, dir_fd=directory)
                    if durable:
                        os.fsync(directory)
            except (FileNotFoundError, NotADirectoryError):
                return

    def names(self, prefix: str = "") -> Iterator[str]:
        """Yield the names that begin with `prefix`, sorted. Temporary files are not named."""
        # What lies beside the prefix is not looked at: some ask for one run after the other.
        above, slash, _ = prefix.rpartition("/")
        with os_errors(self._root):
            if not self._is_directory(name_segments(above) if slash else []):
                return
            yield from _names_below(self._root / above, above + slash, prefix)

    def _is_directory(self, segments: Sequence[str]) -> bool:
        with suppress(FileNotFoundError, NotADirectoryError), self._directory(segments):
            return True
        return False

    def location(self, name: str) -> str:
        """Return the absolute path of the file."""
        return str(self._root.joinpath(*name_segments(name)))

    def sweep_dead(self) -> int:
        """Remove what creators left behind that are dead by now, whoever else creates; how many."""
        count = 0
        with os_errors(self._root):
            for leftover in sorted(self._root.glob(f"{TEMPORARY_PREFIX}*")):
                if is_left_behind(leftover):
                    leftover.unlink(missing_ok=True)
                    count += 1
        return count

    def sweep_temporary(self) -> int:
        """Remove what killed creators left behind; returns how many files.

        Call it only while nobody creates blobs here: a creator whose file is swept fails.
        """
        count = 0
        with os_errors(self._root):
            for leftover in sorted(self._root.glob(f"{TEMPORARY_PREFIX}*")):
                leftover.unlink(missing_ok=True)
                count += 1
        return count


class _LocalWriter:
    """A blob that is being written. Fills `holdfast.blobs.contract.BlobWriter`."""

    def __init__(self, blobs: LocalBlobs, name: str, file: TemporaryWriter) -> None:
        self._blobs, self._name, self._file = blobs, name, file

    def write(self, piece: bytes) -> None:
        """Add bytes."""
        with os_errors(self._blobs.location(self._name)):
            self._file.write(piece)

    def finish(self) -> BlobInfo:
        """Make the blob durable under its name: steps 2 to 4 of `LocalBlobs.create`."""
        with os_errors(self._blobs.location(self._name)):
            try:
                checksum = self._file.seal()
                crashpoint("blobs.create.written")
                self._blobs.link(self._name, self._file.path, checksum)
            finally:
                self._file.discard()
        return BlobInfo(self._name, self._file.size, checksum)

    def abandon(self) -> None:
        """Drop what was written. Nothing happens after `finish`."""
        with os_errors(self._blobs.location(self._name)):
            self._file.discard()


def _read_at(directory: int, leaf: str) -> Iterator[bytes]:
    descriptor = os.open(leaf, _FILE, dir_fd=directory)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", leaf)
        while piece := os.read(descriptor, _READ_BYTES):
            yield piece
    finally:
        os.close(descriptor)


def _names_below(directory: Path, above: str, prefix: str) -> Iterator[str]:
    """Yield names in the order of whole names: a directory sorts as its name with the slash."""
    entries = []
    with os.scandir(directory) as found:
        for entry in found:
            is_directory = entry.is_dir(follow_symlinks=False)
            if is_directory or entry.is_file(follow_symlinks=False):
                entries.append(entry.name + "/" * is_directory)
    for entry_name in sorted(entries):
        name = above + entry_name
        if name.startswith(TEMPORARY_PREFIX):
            continue
        if name.endswith("/") and (name.startswith(prefix) or prefix.startswith(name)):
            yield from _names_below(directory / entry_name, name, prefix)
        elif not name.endswith("/") and name.startswith(prefix):
            yield name
