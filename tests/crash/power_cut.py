"""A disk that remembers what a power cut would leave: bytes that were fsynced, names whose
directory was fsynced, transactions that were committed.

It watches a real directory: the calls of `os` that make things durable are wrapped and still do
their work. At every such call, before and after it, `moments` gets one entry, from which
`restore` builds what the disk would hold. SQLite is trusted to keep what it committed (`FULL`) and
nothing else; its file is taken as it stands after each COMMIT.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from holdfast.ledger.database import Database

Variant = Literal["dropped", "named", "torn"]
VARIANTS: tuple[Variant, ...] = ("dropped", "named", "torn")
"""What becomes of what was not fsynced: all of it is lost; names are kept but their bytes are not;
names are kept with half of their bytes."""

Bytes = Mapping[int, bytes]
Names = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Moment:
    """A moment at which the power may fail."""

    what: str
    durable_bytes: Bytes
    durable_names: Names
    now_bytes: Bytes
    now_names: Names
    database: bytes | None
    notes: tuple[str, ...]


class Disk:
    """Watches `root`. `notes` is for the test: what the outside world has seen so far."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self.moments: list[Moment] = []
        self.notes: list[str] = []
        self._bytes: dict[int, bytes] = {}
        self._names: dict[str, dict[str, int]] = {}
        self._database: bytes | None = None
        real = {name: getattr(os, name) for name in ("fsync", "fdatasync", "replace", "unlink")}
        real_commit = Database._commit

        def synced(name: str, descriptor: int) -> None:
            self._moment(f"before {name}")
            real[name](descriptor)
            self._sync(descriptor)
            self._moment(f"after {name}")

        def moved(name: str, *arguments: Any, **options: Any) -> None:
            real[name](*arguments, **options)
            self._moment(f"after {name}")

        def commit(database: Database, connection: Any) -> None:
            self._moment("before commit")
            real_commit(database, connection)
            self._database = connection.serialize("main")
            self._moment("after commit")

        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, lambda fd, name=name: synced(name, fd))
        for name in ("replace", "unlink"):
            monkeypatch.setattr(os, name, lambda *a, name=name, **o: moved(name, *a, **o))
        monkeypatch.setattr(Database, "_commit", commit)

    def _sync(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if not path.is_relative_to(self._root.parent):
            return
        if stat.S_ISDIR(status.st_mode):
            self._names[self._name(path)] = _entries(path)
        else:
            self._bytes[status.st_ino] = path.read_bytes()

    def _name(self, path: Path) -> str:
        return os.path.relpath(path, self._root)

    def _moment(self, what: str) -> None:
        now_bytes: dict[int, bytes] = {}
        now_names: dict[str, dict[str, int]] = {"..": _entries(self._root.parent)}
        for directory, _, names in os.walk(self._root):
            now_names[self._name(Path(directory))] = _entries(Path(directory))
            for name in names:
                path = Path(directory, name)
                # Never open SQLite's own files: closing them would drop its locks.
                if not name.startswith("ledger.sqlite"):
                    now_bytes[path.stat().st_ino] = path.read_bytes()
        names_copy = {name: dict(found) for name, found in self._names.items()}
        self.moments.append(
            Moment(
                *(what, dict(self._bytes), names_copy, now_bytes, now_names, self._database),
                tuple(self.notes),
            )
        )


def _entries(directory: Path) -> dict[str, int]:
    return {
        entry.name: entry.inode()
        for entry in os.scandir(directory)
        if not entry.name.startswith("ledger.sqlite")
    }


def restore(moment: Moment, variant: Variant, root: Path) -> None:
    """Build below `root` what the disk holds when the power fails at a moment."""
    names = moment.durable_names if variant == "dropped" else moment.now_names
    directories = [name for name in moment.now_names if name != ".."]
    for name in sorted(directories):
        parent, _, own = name.rpartition("/") if name != "." else ("..", "", "")
        known = names.get(parent or ".", {})
        if name != "." and own not in known:
            continue
        (root / name).mkdir(parents=True, exist_ok=True)
        for file, inode in names.get(name, {}).items():
            if f"{name}/{file}".removeprefix("./") in moment.now_names:
                continue
            (root / name / file).write_bytes(_bytes_of(moment, variant, inode))
    if moment.database is not None:
        root.mkdir(parents=True, exist_ok=True)
        (root / "ledger.sqlite").write_bytes(moment.database)


def _bytes_of(moment: Moment, variant: Variant, inode: int) -> bytes:
    durable = moment.durable_bytes.get(inode, b"")
    if variant != "torn":
        return durable
    now = moment.now_bytes.get(inode, durable)
    return now[: len(durable) + (len(now) - len(durable)) // 2] if len(now) > len(durable) else now
