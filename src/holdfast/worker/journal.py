"""One worker's journal: framed, checksummed records in one file, which alone says what stands.

Format: docs/internals/worker-journal.md. Invariants:

* One process writes a journal at a time: it holds the lock on the file beside it.
* A record is durable when `append` returns, and nobody was told of it before.
* What a killed process wrote is made durable before it is believed: an ack may rest on it.
* A torn tail, which nobody was told of, is cut off on open; a bad record with a good one behind it
  is DAMAGED, and nothing is guessed.
* After a failed write or fsync the journal takes nothing more: what the disk holds is unknown.

Crash points: `worker.journal.written`, `worker.compact.written`, `worker.compact.renamed`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from holdfast._base import frames
from holdfast._base.crashpoint import crashpoint
from holdfast._base.files import (
    fsync_file,
    is_temporary,
    make_directories,
    os_errors,
    write_temporary,
)
from holdfast._base.frames import HEADER_BYTES, Frame
from holdfast._base.locks import lock_alone
from holdfast.errors import Damaged, StateMismatch, StorageFailed, StoreNewer

VERSION = 2
FILE_NAME = "journal"
LOCK_NAME = "lock"
KIND_HEADER = 0

Record = tuple[int, bytes]
"""The kind of a record, which its owner gives, and its bytes."""


class Journal:
    """The journal of the worker `name` in `directory`, made of `first` if it is missing."""

    def __init__(self, directory: Path, name: str, first: Iterable[Record] = ()) -> None:
        self.path = directory / FILE_NAME
        self._directory, self._name = directory, name
        self._failed = False
        with os_errors(directory):
            make_directories(directory)
            self._lock = lock_alone(directory / LOCK_NAME, of=directory)
            try:
                self._open(first)
            except BaseException:  # raised again: only the lock must not outlive the attempt
                os.close(self._lock)
                raise

    def _open(self, first: Iterable[Record]) -> None:
        """Take the journal up, or make it.

        1. File and name are made durable: a process that was killed before an fsync may have left
           records, or a name, in the memory of the kernel only. Crash before: nobody was told.
        2. A torn tail is cut off.
        """
        for path in self._directory.iterdir():
            if is_temporary(path):
                path.unlink()
        if self.path.exists():
            fsync_file(self.path)
            fsync_file(self._directory)
        else:
            self._write_whole(first)
        data = self.path.read_bytes()
        self._data, self._places = data, _places(data, self.path, self._name)
        self.size = self._places[-1][2]
        self._sequence = len(self._places)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        self._cut_torn_tail(len(data))

    def _cut_torn_tail(self, file_size: int) -> None:
        """Make the file end where its good records end, before anything is put behind them."""
        if file_size > self.size:
            os.ftruncate(self._file, self.size)
            os.fsync(self._file)

    def records(self) -> Iterator[Record]:
        """Yield what the file held when it was opened, oldest first. Only once."""
        data, places = self._data, self._places
        self._data, self._places = b"", []
        for kind, start, stop in places[1:]:
            yield kind, data[start + HEADER_BYTES : stop]

    def append(self, records: Sequence[Record]) -> None:
        """Add records; all are durable when this returns, for the price of one fsync.

        1. The frames are written at the end of the file. Crash in it: a torn tail, cut off on
           open; those before it stand.
        2. fsync. Crash before: the records are there or not, and nobody was told of them.
        """
        self._refuse_after_failure()
        data = b"".join(
            frames.encode(Frame(kind, sequence, payload))
            for sequence, (kind, payload) in enumerate(records, self._sequence)
        )
        self._failed = True
        with os_errors(self.path):
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
            crashpoint("worker.journal.written")
            os.fsync(self._file)
        self._failed = False
        self._sequence += len(records)
        self.size += len(data)

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace the whole journal by `records`, which say the same in fewer bytes.

        1. The new journal is durable under a temporary name. Crash after: removed on open.
        2. It is renamed. Crash after: the old or the new one stands; both say the same.
        3. The directory is made durable, and only then anything is appended.
        """
        self._refuse_after_failure()
        self._failed = True
        with os_errors(self.path):
            self._write_whole(records)
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            os.close(self._file)
            self._file = file
        self._failed = False

    def _write_whole(self, records: Iterable[Record]) -> None:
        header = json.dumps({"version": VERSION, "worker": self._name}, sort_keys=True).encode()
        self.size = self._sequence = 0

        def pieces() -> Iterator[bytes]:
            for kind, payload in ((KIND_HEADER, header), *records):
                data = frames.encode(Frame(kind, self._sequence, payload))
                self._sequence += 1
                self.size += len(data)
                yield data

        temporary, _ = write_temporary(self._directory, pieces())
        crashpoint("worker.compact.written")
        os.replace(temporary, self.path)
        crashpoint("worker.compact.renamed")
        fsync_file(self._directory)

    def _refuse_after_failure(self) -> None:
        if self._failed:
            error = "it is closed, or a write to it failed; open it again to recover"
            raise StorageFailed(path=str(self.path), error=error)

    def give_up(self) -> None:
        """Take nothing more: whoever wrote here does not know any more what it says."""
        self._failed = True

    def close(self) -> None:
        """Let go of the file and the lock. May never be called: nothing durable depends on it."""
        self._failed = True
        os.close(self._file)
        os.close(self._lock)


def read_journal(directory: Path, name: str) -> Iterator[Record]:
    """Yield what the journal of another process holds, which may be writing it still.

    Raises:
        StorageFailed: it is not there.
        Damaged, StoreNewer, StateMismatch: see `Journal`.
    """
    path = directory / FILE_NAME
    with os_errors(path):
        data = path.read_bytes()
    for kind, start, stop in _places(data, path, name)[1:]:
        yield kind, data[start + HEADER_BYTES : stop]


def _places(data: bytes, path: Path, name: str) -> list[tuple[int, int, int]]:
    """Return where the records of a worker's journal are, the header first."""
    places = list(frames.walk(data, path=str(path)))
    if not places or places[0][0] != KIND_HEADER:
        raise Damaged(path=str(path), what="the journal has no header")
    header = json.loads(data[places[0][1] + HEADER_BYTES : places[0][2]])
    if header["version"] > VERSION:
        raise StoreNewer(path=str(path), found=header["version"], known=VERSION)
    if header["version"] < VERSION:
        what = (
            f"its journal has format {header['version']}, which only an older Holdfast goes on with"
        )
        raise StateMismatch(state=str(path), what=what)
    if header["worker"] != name:
        what = f"it is the journal of worker {header['worker']}, not of {name}"
        raise StateMismatch(state=str(path), what=what)
    return places
