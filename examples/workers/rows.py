"""Rows in messages: CSV text as the client sends it, JSON between workers. Money is whole units."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

ROWS_PER_CHUNK = 1000
UNITS_PER_ONE = 200
"""Money is counted in units of 0.005, so sums do not depend on their order."""


def read_csv(payload: bytes) -> Iterator[dict[str, str]]:
    """Yield the rows of a chunk: a whole CSV document with its header."""
    return csv.DictReader(io.StringIO(payload.decode(), newline=""))


def csv_chunks(text: str, rows_per_chunk: int) -> Iterator[bytes]:
    """Cut a CSV document into documents of so many rows, each with the header."""
    rows = csv.reader(io.StringIO(text, newline=""))
    header = next(rows, None)
    if header is None:
        return
    for block in blocks(rows, rows_per_chunk):
        out = io.StringIO(newline="")
        csv.writer(out, lineterminator="\n").writerows([header, *block])
        yield out.getvalue().encode()


def blocks(rows: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield rows in lists of `size`, the last one shorter."""
    block: list[Any] = []
    for row in rows:
        block.append(row)
        if len(block) == size:
            yield block
            block = []
    if block:
        yield block


def encode_rows(rows: Iterable[Sequence[Any]]) -> bytes:
    """Return rows as they travel between workers."""
    return json.dumps(list(rows), separators=(",", ":")).encode("ascii")


def decode_rows(payload: bytes) -> list[list[Any]]:
    """Return the rows that `encode_rows` wrote."""
    rows: list[list[Any]] = json.loads(payload)
    return rows


def units(amount: str) -> int:
    """Return an amount as a whole number of units."""
    return int(Decimal(amount) * UNITS_PER_ONE)


def money(amount: int) -> str:
    """Return units as a plain decimal with at least one digit behind the dot, and none too many."""
    whole, rest = divmod(amount * 1000 // UNITS_PER_ONE, 1000)
    return f"{whole}.{rest:03d}".rstrip("0").ljust(len(str(whole)) + 2, "0")
