"""Checks the header line of a CSV document against the declared columns: names and order.

The columns of every row are taken by position, so a header in another order would put each value
into the wrong column without any other sign. Python's reader cuts a header as the parser of the
rows does (Arrow's), which would take half of the gateway's memory; a test compares the two.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence

from holdfast.errors import HeaderWrong
from holdfast.intake.csv_rows import ends_in_quotes, shown

_SHOWN_CHARACTERS = 1000
"""Of a wrong header in its error: a file that is no CSV at all may have no line end."""
_NAME_CHARACTERS = 100
"""Of one name in it."""


def check_header(header: bytes, columns: Sequence[str] | None, *, path: str, table: str) -> str:
    """Return the header line as text. It has no byte order mark and no line end.

    Without `columns` it is only looked at as text: who knows the schema is somebody else.

    Raises:
        HeaderWrong: it does not name exactly `columns` in that order, or is not UTF-8 text.
    """
    fault = fault_of(header, columns)
    if fault is not None:
        wanted = "column names" if columns is None else ",".join(columns)
        raise HeaderWrong(path=path, table=table, found=fault, wanted=wanted)
    return header.decode()


def fault_of(header: bytes, columns: Sequence[str] | None) -> str | None:
    """Return a header that is wrong, and why; None: it is right. See `check_header`."""
    try:
        found = names_in(header)
    except UnicodeDecodeError:
        reason = "not UTF-8 text"
    except csv.Error as error:
        reason = str(error)
    else:
        if columns is None or found == list(columns):
            return None
        reason = _difference(found, columns)
    return f"{shown(header, _SHOWN_CHARACTERS)} ({reason})"


def names_in(header: bytes) -> list[str]:
    """Return the names that a header line has.

    Raises:
        UnicodeDecodeError, csv.Error: it has none.
    """
    text = header.decode()
    if ends_in_quotes(header):
        raise csv.Error("a quote is never closed")
    return next(csv.reader([text]), []) or [""]


def _difference(found: Sequence[str], columns: Sequence[str]) -> str:
    # A header that is wrong may have as many names as its sender likes: each is looked at once.
    counts, wanted = Counter(found), set(columns)
    parts = {
        "missing": [name for name in columns if name not in counts],
        "extra": [name for name in found if name not in wanted],
        "twice": sorted(name for name, count in counts.items() if count > 1),
    }
    named = [f"{word}: {_some(names)}" for word, names in parts.items() if names]
    moved = [have for have, want in zip(found, columns, strict=False) if have != want]
    return "; ".join(named) or f"in another order: {_some(moved)}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(shown(name.encode(), _NAME_CHARACTERS) for name in names[:5])
