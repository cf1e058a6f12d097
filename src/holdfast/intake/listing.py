"""Which files of an input directory belong to which declared table.

A table `sales` in format csv owns `sales.csv`, `sales_*.csv` and all `*.csv` right below `sales/`;
a binaryFile table owns every file below its directory, however deep. Where two tables could own a
name (`sales` and `sales_old`, file `sales_old_1.csv`), the longer table name does. Names that
begin with `.` or `_` are hidden and belong to nobody.

`belongs_to` decides from a relative path alone; only `list_tables` looks at the disk. Links are
followed for files; what is listed is what the operating system says at that moment.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from holdfast.errors import UsageInvalid
from holdfast.intake import compressed
from holdfast.intake.tables import TableSpec

EXTENSIONS = {
    "csv": (".csv",),
    "json": (".json", ".jsonl", ".ndjson"),
    "parquet": (".parquet",),
}
"""By format; binaryFile has none, because any file is one."""

_HIDDEN = (".", "_")


def list_tables(
    directory: Path, tables: Sequence[TableSpec], *, ignore_unknown: bool = False
) -> dict[str, list[Path]]:
    """Return the files of each table, absolute and sorted by path; optional tables may have none.

    Raises:
        UsageInvalid: the directory cannot be read, a table that is needed has no file, a file is
            compressed, or a file belongs to no table (unless `ignore_unknown`).
    """
    wanted = [table for table in tables if not table.produced]
    found: dict[str, list[Path]] = {table.name: [] for table in wanted}
    for path in files_below(directory):
        relative = PurePosixPath(path.relative_to(directory))
        owner = belongs_to(relative, wanted)
        if owner is not None:
            found[owner].append(path.absolute())
        elif method := _compressed_input(relative, wanted):
            raise compressed.refusal(path, method)
        elif not ignore_unknown:
            raise UsageInvalid(
                what=f"{path} belongs to none of the tables {_names(wanted)}",
                remedy="Move it away, name it after its table, or give --ignore-unknown.",
            )
    for table in wanted:
        if not found[table.name] and not table.optional:
            raise UsageInvalid(
                what=f"{directory} has no file for table {table.name}",
                remedy=f"Add {_example(table)}, or declare the table optional.",
            )
        found[table.name].sort()
    return found


def belongs_to(relative: PurePosixPath, tables: Iterable[TableSpec]) -> str | None:
    """Return the name of the table that owns a file, given its path below the input directory."""
    owners = [table.name for table in tables if _owns(table, relative)]
    return max(owners, key=len, default=None)


def _owns(table: TableSpec, relative: PurePosixPath) -> bool:
    inside = relative.parts[0] == table.name and len(relative.parts) > 1
    if table.format == "binaryFile":
        return inside
    if relative.suffix not in EXTENSIONS[table.format]:
        return False
    if len(relative.parts) == 1:
        return relative.stem == table.name or relative.stem.startswith(f"{table.name}_")
    return inside and len(relative.parts) == 2


def _compressed_input(relative: PurePosixPath, tables: Iterable[TableSpec]) -> str | None:
    """Return how a file is compressed that would belong to a table otherwise."""
    method = compressed.EXTENSIONS.get(relative.suffix)
    return method if belongs_to(relative.with_suffix(""), tables) is not None else None


def files_below(directory: Path) -> list[Path]:
    """Return every file below a directory that is not hidden, sorted by path.

    Raises:
        UsageInvalid: it is no directory, or cannot be read.
    """
    if not directory.exists():
        raise UsageInvalid(
            what=f"input directory {directory} does not exist", remedy="Give one that does."
        )
    if not directory.is_dir():
        raise UsageInvalid(what=f"{directory} is not a directory", remedy="Give its directory.")
    files: list[Path] = []
    for parent, directories, names in os.walk(directory, onerror=_unreadable, followlinks=True):
        directories[:] = [name for name in directories if not name.startswith(_HIDDEN)]
        files += [Path(parent, name) for name in names if not name.startswith(_HIDDEN)]
    return sorted(files)


def _unreadable(error: OSError) -> None:
    raise UsageInvalid(
        what=f"{error.filename} cannot be read ({error.strerror})",
        remedy="Give this user the right to read it.",
    ) from error


def _example(table: TableSpec) -> str:
    if table.format == "binaryFile":
        return f"a file below {table.name}/"
    extension = EXTENSIONS[table.format][0]
    return f"{table.name}{extension}, {table.name}_*{extension} or {table.name}/*{extension}"


def _names(tables: Iterable[TableSpec]) -> str:
    return ", ".join(sorted(table.name for table in tables))
