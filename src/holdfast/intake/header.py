"""Checks the header line of a CSV document against the declared columns: names and order.

The columns of every row are taken by position, so a header in another order would put each value
into the wrong column without any other sign.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyarrow import csv

from holdfast.errors import HeaderWrong
from holdfast.intake.csv_rows import shown

_SHOWN_CHARACTERS = 1000
"""Of a wrong header in its error: a file that is no CSV at all may have no line end."""


def check_header(header: bytes, columns: Sequence[str] | None, *, path: str, table: str) -> str:
    """Return the header line as text. It has no byte order mark and no line end.

    Without `columns` it is only looked at as text: who knows the schema is somebody else.

    Raises:
        HeaderWrong: it does not name exactly `columns` in that order, or is not UTF-8 text.
    """
    wanted = "column names" if columns is None else ",".join(columns)
    try:
        text = header.decode()
        found = _names(header)
    except UnicodeDecodeError as error:
        what = f"{shown(header, _SHOWN_CHARACTERS)} (not UTF-8 text)"
        raise HeaderWrong(path=path, table=table, found=what, wanted=wanted) from error
    except pa.ArrowInvalid as error:
        what = f"{shown(header, _SHOWN_CHARACTERS)} (a quote is never closed)"
        raise HeaderWrong(path=path, table=table, found=what, wanted=wanted) from error
    if columns is not None and found != list(columns):
        what = f"{shown(header, _SHOWN_CHARACTERS)} ({_difference(found, columns)})"
        raise HeaderWrong(path=path, table=table, found=what, wanted=wanted)
    return text


def _names(header: bytes) -> list[str]:
    if not header:
        return [""]
    # By the parser itself, so that there is no second opinion on quotes.
    read = csv.ReadOptions(use_threads=False, block_size=len(header) + 2)
    parsing = csv.ParseOptions(newlines_in_values=True)
    names: list[str] = csv.read_csv(pa.BufferReader(header + b"\n"), read, parsing).column_names
    return names


def _difference(found: Sequence[str], columns: Sequence[str]) -> str:
    parts = {
        "missing": [name for name in columns if name not in found],
        "extra": [name for name in found if name not in columns],
        "twice": sorted({name for name in found if found.count(name) > 1}),
    }
    named = [f"{word}: {', '.join(names[:5])}" for word, names in parts.items() if names]
    moved = [have for have, want in zip(found, columns, strict=False) if have != want]
    return "; ".join(named) or f"in another order: {', '.join(moved)}"
