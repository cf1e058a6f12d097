"""Blobs in this process's memory: the fake, with the same rules for names and bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from holdfast._base.files import sha256_of
from holdfast.blobs.contract import BlobInfo, name_segments
from holdfast.errors import Damaged


class MemoryBlobs:
    """Named bytes in a dictionary. Fills `holdfast.blobs.contract.BlobStore`."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}
        self._guard = threading.Lock()

    def create(self, name: str, pieces: Iterable[bytes]) -> BlobInfo:
        """Store bytes under a new name; the same bytes again are success."""
        name_segments(name)
        data = b"".join(pieces)
        with self._guard:
            if self._blobs.setdefault(name, data) != data:
                raise Damaged(path=name, what="the blob exists with other bytes")
        return BlobInfo(name, len(data), sha256_of([data]))

    def begin(self, name: str) -> _MemoryWriter:
        """Begin a blob whose bytes come piece by piece."""
        name_segments(name)
        return _MemoryWriter(self, name)

    def read(self, name: str) -> Iterator[bytes]:
        """Yield the bytes. A missing blob raises Damaged."""
        name_segments(name)
        if name not in self._blobs:
            raise Damaged(path=name, what="the blob is missing")
        yield self._blobs[name]

    def exists(self, name: str) -> bool:
        """Tell whether a blob is there."""
        name_segments(name)
        return name in self._blobs

    def delete(self, name: str, *, durable: bool = True) -> None:
        """Remove a blob. A missing one is no error. Nothing here is durable."""
        del durable
        name_segments(name)
        with self._guard:
            self._blobs.pop(name, None)

    def names(self, prefix: str = "") -> Iterator[str]:
        """Yield the names that begin with `prefix`, sorted."""
        yield from sorted(name for name in list(self._blobs) if name.startswith(prefix))

    def location(self, name: str) -> str:
        """Return a name for people. No other process can read it."""
        name_segments(name)
        return f"memory:{name}"


class _MemoryWriter:
    """Pieces of a blob to be. Fills `holdfast.blobs.contract.BlobWriter`."""

    def __init__(self, blobs: MemoryBlobs, name: str) -> None:
        self._blobs, self._name = blobs, name
        self._pieces: list[bytes] = []

    def write(self, piece: bytes) -> None:
        """Add bytes."""
        self._pieces.append(bytes(piece))

    def finish(self) -> BlobInfo:
        """Store them under their name."""
        return self._blobs.create(self._name, self._pieces)

    def abandon(self) -> None:
        """Drop them."""
        self._pieces.clear()
