"""Merging settled files: their rows in order of hash, a range of hashes at a time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.ledger.columns import SCHEMA
from holdfast.ledger.contract import HASH_BYTES
from holdfast.ledger.settled import SettledFile, hashes_of

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
        # Sorted, so what is between is a slice. Not `pc.less`: a scalar to compare with would load
        # pandas, which stays.
        hashes = hashes_of(table)
        at = partial(_at, hashes)
        start = bisect_left(range(table.num_rows), low or b"", key=at)
        stop = table.num_rows if high is None else bisect_left(range(table.num_rows), high, key=at)
        yield table.slice(start, stop - start).cast(SCHEMA)


def _at(hashes: bytes, row: int) -> bytes:
    return hashes[row * HASH_BYTES : (row + 1) * HASH_BYTES]
