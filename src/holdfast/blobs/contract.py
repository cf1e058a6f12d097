"""What a blob store must do. A blob has a name and bytes, is created once and never changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from holdfast._base.files import TEMPORARY_PREFIX
from holdfast.errors import UsageInvalid

_SEGMENT = re.compile(r"[A-Za-z0-9._=-]{1,128}")


def name_segments(name: str) -> list[str]:
    """Return the segments of a blob's name.

    Raises:
        UsageInvalid: it is not a name, so it could lead out of the store, or onto a temporary.
    """
    segments = name.split("/")
    for segment in segments:
        is_plain = _SEGMENT.fullmatch(segment) and segment not in (".", "..")
        if not is_plain or segment.startswith(TEMPORARY_PREFIX):
            raise UsageInvalid(
                what=f"{name!r} is no blob name",
                remedy="Use letters, digits and . _ = - in segments joined by /.",
            )
    return segments


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """What is known of a blob without reading it."""

    name: str
    size: int
    checksum: str


class BlobWriter(Protocol):
    """A blob that is being written. One thread at a time; it need not be the same one.

    Whoever begins one finishes or abandons it; a process that is killed leaves a temporary file.
    """

    def write(self, piece: bytes) -> None:
        """Add bytes."""

    def finish(self) -> BlobInfo:
        """Make the blob durable under its name, as `BlobStore.create` does, before returning."""

    def abandon(self) -> None:
        """Drop what was written. Nothing happens after `finish`."""


class BlobStore(Protocol):
    """Named bytes.

    A name is a path of segments `[A-Za-z0-9._=-]{1,128}`, joined by `/`, none of them `.` or `..`
    or beginning with `.tmp-`. Any other raises UsageInvalid.
    """

    def create(self, name: str, pieces: Iterable[bytes]) -> BlobInfo:
        """Store bytes under a new name, durably, before returning.

        If the name exists with the same bytes, that is success; with others, `Damaged` is raised
        and the stored ones stay.
        """

    def begin(self, name: str) -> BlobWriter:
        """Begin a blob whose bytes come piece by piece. Nobody sees it before it is finished."""

    def read(self, name: str) -> Iterator[bytes]:
        """Yield the bytes. A missing blob raises Damaged."""

    def exists(self, name: str) -> bool:
        """Tell whether a blob is there."""

    def delete(self, name: str, *, durable: bool = True) -> None:
        """Remove a blob. A missing one is no error. Not `durable`: it may be there again after a
        power cut, for a caller that finds it then.
        """

    def names(self, prefix: str = "") -> Iterator[str]:
        """Yield the names that begin with `prefix`, sorted. Temporary files are not named."""

    def location(self, name: str) -> str:
        """Return where Spark can read the bytes: an absolute path or a URL."""
