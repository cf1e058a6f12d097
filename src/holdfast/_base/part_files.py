"""A directory of numbered Parquet files, which readers take for one table.

    q1.parquet/part-00001.parquet, part-00002.parquet, ...

A reader sees the directory that stood there, a whole new one, or none. Crash point:
`parts.replace.aside`.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from holdfast._base.crashpoint import crashpoint
from holdfast._base.files import TEMPORARY_PREFIX, fsync_file
from holdfast._base.ids import digest
from holdfast.errors import UsageInvalid

_PART = re.compile(r"part-[0-9]{5,}\.parquet")
_HIDDEN = (".", "_")
"""What readers of a directory pass over."""
_MARK = re.compile(r"_SUCCESS|\..*\.crc")
"""What Spark leaves beside parts, and nobody misses."""


def part_name(ordinal: int) -> str:
    """Return the name of a part; by name they are in order up to 99,999."""
    return f"part-{ordinal:05d}.parquet"


def part_names(directory: Path) -> list[str]:
    """Return what a reader takes for data, in order; nothing if it is no directory."""
    if not directory.is_dir():
        return []
    names = [name for name in os.listdir(directory) if not name.startswith(_HIDDEN)]
    return sorted(names, key=lambda name: (len(name), name))


def replace_parts(temporary: Path, target: Path) -> None:
    """Give a durable directory of parts its name, in place of what stands there.

    1. What stands there gets a temporary name. Crash after: none, until the caller comes again.
    2. The new one gets its name, and the directory above is made durable.
    3. What stood there is removed. Crash before: the next call for this target removes it.

    Raises:
        UsageInvalid: what stands there is something else, and would be lost.
    """
    old = target.parent / f"{TEMPORARY_PREFIX}{digest('replaced', target.name)}"
    shutil.rmtree(old, ignore_errors=True)
    found = sorted(os.listdir(target)) if target.is_dir() else []
    strange = [name for name in found if not (_PART.fullmatch(name) or _MARK.fullmatch(name))]
    if strange or target.is_file() or target.is_symlink():
        what = f"holds {strange[0]}, which is no part of a result" if strange else "is no directory"
        raise UsageInvalid(what=f"{target} {what}", remedy="Move it away.")
    if target.is_dir():
        os.rename(target, old)
        crashpoint("parts.replace.aside")
    os.rename(temporary, target)
    fsync_file(target.parent)
    shutil.rmtree(old, ignore_errors=True)
