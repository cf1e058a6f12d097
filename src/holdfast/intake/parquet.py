"""Columns of Parquet files, looked at before anything is bound.

Spark takes the columns of one file for those of all: a column that another file lacks is read as
null, one that only another has is dropped, and no one is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import Damaged, HeaderWrong


def _schema(path: Path) -> Any:
    try:
        return pq.read_schema(path)
    except pa.ArrowInvalid as error:
        raise Damaged(path=str(path), what=f"it is no Parquet file ({error})") from error


def check_columns(path: Path, table: str, columns: Sequence[str]) -> None:
    """Refuse a file that lacks a declared column."""
    found = _schema(path).names
    if missing := [name for name in columns if name not in found]:
        wanted = f"also {', '.join(missing)}"
        raise HeaderWrong(path=str(path), table=table, found=", ".join(found), wanted=wanted)


def check_alike(paths: Sequence[Path], table: str) -> None:
    """Refuse files of one undeclared table that differ in the names or types of their columns."""
    if not paths:
        return
    first = {field.name: str(field.type) for field in _schema(paths[0])}
    for path in paths[1:]:
        found = {field.name: str(field.type) for field in _schema(path)}
        if found != first:
            raise HeaderWrong(
                path=str(path),
                table=table,
                found=", ".join(f"{name} {kind}" for name, kind in found.items()),
                wanted=", ".join(f"{name} {kind}" for name, kind in first.items()),
            )
