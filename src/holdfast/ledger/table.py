"""A ledger's slots as a table: its columns, and files of it. Columns: docs/paid-calls.md.

The same columns are read by `spark.read.format("holdfast")`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from holdfast._base.files import TEMPORARY_PREFIX, fsync_file, os_errors
from holdfast._base.ids import fresh_token
from holdfast.ledger.books import SlotView
from holdfast.ledger.contract import MICROS

SCHEMA = pa.schema(
    [
        pa.field("step", pa.string(), nullable=False),
        pa.field("generation", pa.int32(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("answer", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("attempts", pa.int32(), nullable=False),
        pa.field("cost_usd", pa.decimal128(18, 6), nullable=False),
        pa.field("recorded", pa.timestamp("us", tz="UTC")),
        pa.field("dead_letter", pa.bool_(), nullable=False),
        pa.field("slot", pa.string(), nullable=False),
    ]
)
_BATCH_ROWS = 4096
"""Rows held at once: bounds memory, as a row group of a settled file does."""


def record_batches(views: Iterable[SlotView]) -> Iterator[pa.RecordBatch]:
    """Yield slots as Arrow batches of the table's columns."""
    left = iter(views)
    while some := [_row(view) for view in islice(left, _BATCH_ROWS)]:
        yield pa.RecordBatch.from_pylist(some, schema=SCHEMA)


def _row(view: SlotView) -> dict[str, Any]:
    return {
        "step": view.step,
        "generation": view.generation,
        "key": view.key,
        "state": view.state.value,
        "answer": view.answer,
        "reason": view.reason,
        "attempts": view.attempts,
        "cost_usd": Decimal(view.cost_micros) / MICROS,
        "recorded": view.recorded_ms * 1000 if view.recorded_ms else None,
        "dead_letter": view.dead_letter,
        "slot": view.slot,
    }


def write_table(path: Path, views: Iterable[SlotView]) -> int:
    """Write slots to a file, whole or not at all, in the format its ending names. Returns rows."""
    temporary = path.parent / f"{TEMPORARY_PREFIX}{fresh_token()}"
    counted = _Counted(record_batches(views))
    with os_errors(path):
        try:
            FORMATS[path.suffix](temporary, counted)
            fsync_file(temporary)
            os.replace(temporary, path)
            fsync_file(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
    return counted.rows


class _Counted:
    """Batches, and how many rows went by."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches, self.rows = batches, 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch


def _write_parquet(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
    with pa.OSFile(str(path), "wb") as sink, pq.ParquetWriter(sink, SCHEMA) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _write_csv(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa_csv.CSVWriter(sink, SCHEMA) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _write_lines(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in chain.from_iterable(batch.to_pylist() for batch in batches):
            _write_line(file, row)


def _write_line(file: IO[str], row: dict[str, Any]) -> None:
    row["cost_usd"] = float(row["cost_usd"])
    row["recorded"] = None if row["recorded"] is None else row["recorded"].isoformat()
    file.write(json.dumps(row) + "\n")


FORMATS: dict[str, Callable[[Path, Iterable[pa.RecordBatch]], None]] = {
    ".parquet": _write_parquet,
    ".csv": _write_csv,
    ".jsonl": _write_lines,
}
