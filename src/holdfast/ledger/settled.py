"""Settled files: outcomes in Parquet, sorted by slot hash.

Format: docs/internals/ledger.md#parquet.

A file never changes. Its layout (where each row group begins, its checksum, its first hash) is
in SQLite, not trusted to the file's own footer: a flipped bit in a statistic would hide an answer
and buy it again. A lookup reads the hash column of the row groups its hashes fall into, and the
other columns of those that hit; it never replays history.

Memory: at most HASH_CACHE_BYTES of hash columns, plus one row group while answers are taken out.
"""

from __future__ import annotations

import bisect
import os
import sys
import zlib
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast._base.files import fsync_file, os_errors
from holdfast.errors import Damaged
from holdfast.ledger.columns import SCHEMA, numbers
from holdfast.ledger.contract import HASH_BYTES, Outcome, Slot, SlotHash, Status
from holdfast.ledger.layout import Group, Layout
from holdfast.ledger.segment import Entry

GROUP_ROWS = 4096
GROUP_BYTES = 4 << 20
"""A row group ends at whichever comes first. Smaller: more groups to list and to open. Larger:
more is decoded, and held in memory, for one answer."""

HASH_CACHE_BYTES = 64 << 20
"""Four million slots' hashes. Smaller: hash columns of a large ledger are decoded again and again.
Larger: every worker process holds that much."""

_HALF = HASH_BYTES // 2
_Halves = tuple["array[int]", "array[int]"]
"""The hashes of a row group as two columns of numbers, the first of them sorted: they are searched
without an object for each, and every new slot is searched in every settled file."""


def entry_of(row: Mapping[str, Any]) -> Entry:
    """Return what a row of a settled file says."""
    slot = Slot(SlotHash(row["hash"]), row["step"], row["key"], row["inputs"])
    outcome = Outcome(
        slot,
        Status(row["status"]),
        row["answer"],
        row["reason"],
        row["attempts"],
        row["cost_micros"],
        row["recorded_ms"],
        row["dead_letter"],
    )
    return Entry(outcome, 0, row["blob"])


def write_settled(path: Path, tables: Iterable[pa.Table]) -> Layout:
    """Write sorted tables as a settled file, durable with its name. Returns its layout."""
    firsts: list[tuple[int, bytes]] = []
    with os_errors(path):
        # A path would load pyarrow's file systems, S3's among them: seconds on a busy machine.
        with (
            pa.OSFile(str(path), "wb") as sink,
            pq.ParquetWriter(
                sink, SCHEMA, compression="zstd", use_dictionary=False, write_page_checksum=True
            ) as writer,
        ):
            for table in tables:
                for group in _groups_of(table):
                    firsts.append((group.num_rows, group.column("hash")[0].as_py()))
                    writer.write_table(group, row_group_size=group.num_rows)
        fsync_file(path)
        fsync_file(path.parent)
        return _layout_of(path, firsts)


def _groups_of(table: pa.Table) -> Iterator[pa.Table]:
    if table.num_rows == 0:
        return
    rows_by_size = max(1, GROUP_BYTES * table.num_rows // max(1, table.nbytes))
    step = min(GROUP_ROWS, rows_by_size)
    for start in range(0, table.num_rows, step):
        yield table.slice(start, step)


def _layout_of(path: Path, firsts: Sequence[tuple[int, bytes]]) -> Layout:
    with pa.OSFile(str(path)) as source:
        metadata = pq.ParquetFile(source).metadata
    size = path.stat().st_size
    footer = size - 8 - metadata.serialized_size
    starts = [
        metadata.row_group(i).column(0).data_page_offset for i in range(metadata.num_row_groups)
    ]
    # The first group answers for the magic bytes before it, too.
    bounds = [0, *starts[1:], footer] if starts else [footer]
    with path.open("rb") as file:
        crcs = [zlib.crc32(file.read(b - a)) for a, b in pairwise(bounds)]
        footer_crc = zlib.crc32(file.read())
    groups = tuple(
        Group(offset, crc, rows, first)
        for offset, crc, (rows, first) in zip(bounds, crcs, firsts, strict=False)
    )
    return Layout(groups, footer, footer_crc, size)


class SettledFile:
    """One settled file, open for lookups."""

    def __init__(self, path: Path, layout: Layout) -> None:
        """Open the file and check its footer.

        Raises:
            FileNotFoundError: it was merged into another one in the meantime.
            Damaged: it is cut or altered.
        """
        self.path, self.layout = path, layout
        self._file = os.open(path, os.O_RDONLY)
        try:
            if os.fstat(self._file).st_size != layout.size:
                raise Damaged(path=str(path), what=f"it has not the recorded {layout.size} bytes")
            self._check(layout.footer, layout.size, layout.footer_crc)
            self._source = pa.OSFile(str(path))
        except BaseException:  # whatever it is, the descriptor must not be left behind
            os.close(self._file)
            raise
        self._parquet = pq.ParquetFile(
            self._source, page_checksum_verification=True, pre_buffer=False
        )
        self._firsts = [group.first for group in layout.groups]
        self._checked: set[int] = set()

    def _check(self, start: int, stop: int, crc: int) -> None:
        if zlib.crc32(os.pread(self._file, stop - start, start)) != crc:
            what = f"bytes {start} to {stop} are altered"
            raise Damaged(path=str(self.path), what=what)

    def _checked_group(self, number: int) -> None:
        if number not in self._checked:
            groups = self.layout.groups
            behind = groups[number + 1].offset if number + 1 < len(groups) else self.layout.footer
            self._check(groups[number].offset, behind, groups[number].crc)
            self._checked.add(number)

    def group_of(self, hash_: bytes) -> int | None:
        """Return the only row group that can hold a hash."""
        number = bisect.bisect_right(self._firsts, hash_) - 1
        return number if number >= 0 else None

    def hashes(self, number: int) -> bytes:
        """Return the hashes of a row group, one after the other."""
        return hashes_of(self.table(number, columns=["hash"]))

    def table(self, number: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return a row group, or some of its columns."""
        self._checked_group(number)
        return self._parquet.read_row_group(number, columns=columns)

    def entries(self, number: int, rows: Sequence[int]) -> list[Entry]:
        """Return some rows of a row group."""
        # Not `take(rows)`: a list would load pandas, a second or two before the first call.
        chosen = self.table(number).take(numbers("q", rows))
        return [entry_of(row) for row in chosen.to_pylist()]

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            self._parquet.close()
            self._source.close()
            os.close(self._file)
            self._file = -1


def hashes_of(table: pa.Table) -> bytes:
    """Return the hashes of a row group's rows, one after the other."""
    chunk = table.column("hash").combine_chunks()
    chunk = chunk.chunk(0) if isinstance(chunk, pa.ChunkedArray) else chunk
    start = chunk.offset * HASH_BYTES
    return bytes(chunk.buffers()[1][start : start + len(chunk) * HASH_BYTES])


def _halves_of(hashes: bytes) -> _Halves:
    numbers_ = array("Q", hashes)
    if sys.byteorder == "little":
        numbers_.byteswap()
    return numbers_[::2], numbers_[1::2]


def _size_of(halves: _Halves) -> int:
    return sum(len(half) * half.itemsize for half in halves)


class SettledTable:
    """All settled files of one generation, newest first."""

    def __init__(self) -> None:
        self.generation = -1
        self._files: dict[str, SettledFile] = {}
        self._cache: OrderedDict[tuple[str, int], _Halves] = OrderedDict()
        self.cached_bytes = 0

    def show(self, generation: int, layouts: Mapping[str, Layout], directory: Path) -> None:
        """Change to the files of another generation; those that stay keep what is cached.

        Raises:
            FileNotFoundError: a file is gone; the generation is not the newest any more.
        """
        files = {
            name: self._files.get(name) or SettledFile(directory / name, layout)
            for name, layout in layouts.items()
        }
        gone = set(self._files) - set(files)
        for name in gone:
            self._files[name].close()
        for key in [key for key in self._cache if key[0] in gone]:
            self.cached_bytes -= _size_of(self._cache.pop(key))
        self._files, self.generation = files, generation

    def find(self, hashes: Iterable[SlotHash]) -> dict[SlotHash, Entry]:
        """Return the outcomes of those hashes that are settled."""
        found: dict[SlotHash, Entry] = {}
        missing = sorted(hashes)
        for name, file in self._files.items():
            hits: defaultdict[int, list[int]] = defaultdict(list)
            rest: list[SlotHash] = []
            for hash_ in missing:
                place = self._place(name, file, hash_)
                if place is None:
                    rest.append(hash_)
                else:
                    hits[place[0]].append(place[1])
            for group, rows in hits.items():
                for entry in file.entries(group, rows):
                    found[entry.outcome.slot.hash] = entry
            missing = rest
        return found

    def _place(self, name: str, file: SettledFile, hash_: bytes) -> tuple[int, int] | None:
        group = file.group_of(hash_)
        if group is None:
            return None
        firsts, seconds = self._hashes(name, file, group)
        first = int.from_bytes(hash_[:_HALF], "big")
        row = bisect.bisect_left(firsts, first)
        while row < len(firsts) and firsts[row] == first:
            if seconds[row] == int.from_bytes(hash_[_HALF:], "big"):
                return group, row
            row += 1
        return None

    def _hashes(self, name: str, file: SettledFile, group: int) -> _Halves:
        halves = self._cache.get((name, group))
        if halves is None:
            halves = self._cache[name, group] = _halves_of(file.hashes(group))
            self.cached_bytes += _size_of(halves)
            while self.cached_bytes > HASH_CACHE_BYTES:
                self.cached_bytes -= _size_of(self._cache.popitem(last=False)[1])
        else:
            self._cache.move_to_end((name, group))
        return halves

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files = {}
