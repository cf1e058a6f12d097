"""Uploads that no row binds: whoever took them in was killed between the bytes and the row.

Their senders were told nothing, and have long sent them again; nothing counts their bytes. An
upload may also be of this moment, or belong to a process that stands still. So one goes only when
it was seen unbound for as long as a failed run is kept, in the time that delivery accumulates; and
it is condemned first (docs/internals/chunks.md), so that whoever wakes up sends it again.

The times are kept in memory: a successor counts anew, and removes later, never earlier.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from holdfast._base.files import os_errors
from holdfast._base.ids import RunId
from holdfast.blobs.contract import BlobStore
from holdfast.store.contract import Store

CHUNKS = "chunks/"
"""The prefix of the names of all uploads, as intake gives them: run, table, sender, upload."""
_NAMES_AT_ONCE = 1000
"""How many names the store is asked about at a time. More: more memory for a run of many chunks."""


class Orphans:
    """Finds uploads that stay unbound, and removes them. Used by one thread."""

    def __init__(self, store: Store, blobs: BlobStore, root: Path, *, keep_ms: int) -> None:
        self._store, self._blobs, self._root = store, blobs, root / CHUNKS
        self._keep_ms = keep_ms
        self._since_ms: dict[str, int] = {}
        self._looks: dict[str, tuple[bytes, bool]] = {}

    def sweep(self, elapsed_ms: int) -> Iterator[None]:
        """Remove what was unbound for long; yields after each, so that others get their turn.

        1. An upload is condemned, unless a row binds it by now. Crash after: it is found again,
           and intake refuses to bind it.
        2. Its bytes go. The mark stays as long as the run.
        """
        since_ms: dict[str, int] = {}
        for name in self._unbound():
            since_ms[name] = self._since_ms.get(name, elapsed_ms)
            if elapsed_ms - since_ms[name] > self._keep_ms and self._store.condemn_blob(name):
                self._blobs.delete(name)
                del since_ms[name]
                yield
        self._since_ms = since_ms

    def _unbound(self) -> list[str]:
        """Return the uploads that no row binds. A run's are listed only if any came or went: it
        had none when it was listed last, and its directories are as they were well before that.
        """
        found: list[str] = []
        looks: dict[str, tuple[bytes, bool]] = {}
        for directory in _directories(self._root):
            before, stamp = self._looks.get(directory.name), _stamp(directory)
            is_settled = before == (stamp, True)
            if not is_settled:
                unbound = self._list(RunId(directory.name))
                found += unbound
                is_settled = before == (stamp, False) and not unbound
            looks[directory.name] = (stamp, is_settled)
        self._looks = looks
        return found

    def _list(self, run_id: RunId) -> list[str]:
        names = self._blobs.names(f"{CHUNKS}{run_id}/")
        found: list[str] = []
        while some := list(islice(names, _NAMES_AT_ONCE)):
            found += self._store.list_unbound(some)
        return found


def _directories(directory: Path) -> list[Path]:
    """Return the directories in a directory; none where it is missing."""
    with os_errors(directory), suppress(FileNotFoundError), os.scandir(directory) as found:
        return sorted(Path(one.path) for one in found if one.is_dir(follow_symlinks=False))
    return []


def _stamp(run: Path) -> bytes:
    """Return what changes when an entry of a run's directories comes or goes. It is compared only
    with another of itself: what comes in the same tick of the clock does not change it.

    A hash, for one is kept of each run that is, and a run may have thousands of senders.
    """
    tables = _directories(run)
    below = [run, *tables, *(sender for table in tables for sender in _directories(table))]
    stamp = hashlib.blake2b(digest_size=16)
    with os_errors(run), suppress(FileNotFoundError):
        for path in below:
            stamp.update(f"{path}\n{path.stat().st_mtime_ns}\n".encode())
        return stamp.digest()
    return b""
