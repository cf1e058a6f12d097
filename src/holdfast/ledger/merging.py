"""Merging settled files: their rows in order of hash, a range of hashes at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.ledger.columns import SCHEMA
from holdfast.ledger.contract import HASH_BYTES
from holdfast.ledger.settled import SettledFile

MERGE_ROWS = 32_768
"""Rows per piece of a merge, about: bounds memory."""


def merged(files: Sequence[SettledFile], rows: int) -> Iterator[pa.Table]:
    """Yield the rows of all files in order of hash, a range of hashes at a time.

    Hashes are evenly spread, so equal ranges hold about equally many rows.
    """
    count = max(1, rows // MERGE_ROWS)
    edges = [_edge(number, count) for number in range(count)] + [None]
    for low, high in pairwise(edges):
        parts = [part for file in files for part in _between(file, low, high)]
        if parts:
            whole = pa.concat_tables(parts).combine_chunks()
            yield whole.take(pc.sort_indices(whole["hash"].cast(pa.binary())))


def _edge(number: int, count: int) -> bytes:
    return (number * (1 << 8 * HASH_BYTES) // count).to_bytes(HASH_BYTES, "big")


def _between(file: SettledFile, low: bytes | None, high: bytes | None) -> Iterator[pa.Table]:
    groups = file.layout.groups
    for number, group in enumerate(groups):
        behind = groups[number + 1].first if number + 1 < len(groups) else None
        if (high is not None and group.first >= high) or (
            behind is not None and behind < (low or b"")
        ):
            continue
        table = file.table(number)
        hashes = table["hash"].cast(pa.binary())
        keep: Any = pc.greater_equal(hashes, pa.scalar(low or b"", pa.binary()))
        if high is not None:
            keep = pc.and_(keep, pc.less(hashes, pa.scalar(high, pa.binary())))
        yield table.filter(keep).cast(SCHEMA)
