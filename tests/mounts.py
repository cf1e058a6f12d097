"""Small and read-only disks: file systems in memory, mounted for the length of a block.

Mounting needs root, in CI too.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Disk:
    """A mounted file system of a size that can be changed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def resize(self, kib: int) -> None:
        """Give it this size; what is on it stays."""
        _mount("-o", f"remount,size={kib}k", str(self.path))

    def make_read_only(self, wanted: bool = True) -> None:
        """Refuse all writes, or take them again."""
        _mount("-o", f"remount,{'ro' if wanted else 'rw'}", str(self.path))


@contextmanager
def small_disk(path: Path, kib: int) -> Iterator[Disk]:
    """Mount a disk of `kib` KiB at `path`."""
    path.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(path))
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)
