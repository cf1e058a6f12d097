"""A tape of what reaches the disk: the order of fsync, link, rename and the like, with real effect.

A test that asserts the whole tape turns red when an fsync is removed or moved behind the call
that makes its file visible.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

_TEMPORARY = re.compile(r"\.tmp-\S*[0-9a-f]{32}")


class Tape:
    """Wraps the calls of `os` that make files durable or visible, and writes each one down.

    Paths are relative to `root`; temporary names are all written `.tmp`. The fsync of a file is
    written with the number of bytes it made durable.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root.resolve()
        self.calls: list[str] = []
        real_fsync, real_link, real_mkdir = os.fsync, os.link, os.mkdir
        real_replace, real_unlink = os.replace, os.unlink

        def fsync(descriptor: int) -> None:
            real_fsync(descriptor)
            status = os.fstat(descriptor)
            size = f" {status.st_size}" if stat.S_ISREG(status.st_mode) else ""
            self._note("fsync", self._of_descriptor(descriptor), size)

        def link(source: Any, target: Any, **options: Any) -> None:
            real_link(source, target, **options)
            self._note("link", self._name(target, options.get("dst_dir_fd")))

        def mkdir(path: Any, *arguments: Any, **options: Any) -> None:
            real_mkdir(path, *arguments, **options)
            self._note("mkdir", self._name(path, options.get("dir_fd")))

        def replace(source: Any, target: Any) -> None:
            real_replace(source, target)
            self._note("replace", self._name(target, None))

        def unlink(path: Any, **options: Any) -> None:
            real_unlink(path, **options)
            self._note("unlink", self._name(path, options.get("dir_fd")))

        for name, call in locals().items():
            if name in ("fsync", "link", "mkdir", "replace", "unlink"):
                monkeypatch.setattr(os, name, call)

    def _note(self, what: str, name: str, size: str = "") -> None:
        self.calls.append(f"{what} {_TEMPORARY.sub('.tmp', name)}{size}")

    def _name(self, path: Any, directory: int | None) -> str:
        base = self._root if directory is None else self._root / self._of_descriptor(directory)
        return os.path.relpath(base / os.fspath(path), self._root)

    def _of_descriptor(self, descriptor: int) -> str:
        return os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), self._root)
