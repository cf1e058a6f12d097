"""What a blob store must do. A blob has a name and bytes, is created once and never changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """What is known of a blob without reading it."""

    name: str
    size: int
    checksum: str


class BlobStore(Protocol):
    """Named bytes.

    A name is a path of segments `[A-Za-z0-9._=-]{1,128}`, joined by `/`, none of them `.` or `..`.
    """

    def create(self, name: str, pieces: Iterable[bytes]) -> BlobInfo:
        """Store bytes under a new name, durably, before returning.

        If the name exists with the same bytes, that is success; with others, `Damaged` is raised
        and the stored ones stay.
        """

    def read(self, name: str) -> Iterator[bytes]:
        """Yield the bytes. A missing blob raises Damaged."""

    def exists(self, name: str) -> bool:
        """Tell whether a blob is there."""

    def delete(self, name: str) -> None:
        """Remove a blob. A missing one is no error."""

    def names(self, prefix: str = "") -> Iterator[str]:
        """Yield the names that begin with `prefix`, sorted. Temporary files are not named."""

    def location(self, name: str) -> str:
        """Return where Spark can read the bytes: an absolute path or a URL."""
