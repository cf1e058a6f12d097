"""What Holdfast keeps, as Spark tables: `spark.read.format("holdfast").option("ledger", path)`.

Options choose the kind of table: `ledger` is every slot of a ledger (columns: docs/paid-calls.md),
with `step` those of one step. A partition is a range of slot hashes, so each slot is in exactly
one of them, whatever is bought or compacted between planning and reading. Each partition is a view
of its own moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from holdfast.errors import UsageInvalid
from holdfast.ledger.books import Choice, HashRange, ranges_of
from holdfast.ledger.opening import check_url, open_books
from holdfast.ledger.table import SCHEMA, record_batches
from holdfast.spark.paid_task import as_text

_PART_ROWS = 100_000
"""Slots of one partition, about. Fewer: tasks that cost more than they read. More: few tasks."""
_KINDS = ("ledger",)


class DefaultSource(DataSource):
    """The data source `holdfast`. The name of the class is the one Spark looks for."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "holdfast"

    def schema(self) -> StructType:
        """Return the columns of the table that the options choose."""
        with as_text():
            _ledger_of(self.options)
        return from_arrow_schema(SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads it."""
        del schema
        with as_text():
            return LedgerReader(_ledger_of(self.options), self.options.get("step"))


def _ledger_of(options: Mapping[str, str]) -> str:
    """Return the ledger's URL, or refuse the options by name."""
    unknown = sorted(set(options) - {*_KINDS, "step"})
    if "ledger" not in options or unknown:
        what = f"it has no table {unknown[0]!r}" if unknown else "it was not told which table"
        raise UsageInvalid(
            what=f"format holdfast: {what}", remedy="Give option('ledger', 'file:///a/path')."
        )
    check_url(options["ledger"])
    return options["ledger"]


@dataclass(frozen=True)
class LedgerPart(InputPartition):
    """The slots of a range of hashes."""

    within: HashRange


class LedgerReader(DataSourceReader):
    """Reads the slots of a ledger."""

    def __init__(self, url: str, step: str | None) -> None:
        """Choose a ledger, and one step of it or all."""
        self._url, self._choice = url, Choice(step)

    def partitions(self) -> list[LedgerPart]:
        """Cut the slots into ranges."""
        with as_text(), closing(open_books(self._url)) as books:
            books.chosen_steps(self._choice)
            return [LedgerPart(part) for part in ranges_of(1 + books.rows() // _PART_ROWS)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the slots of one range."""
        with as_text(), closing(open_books(self._url)) as books:
            yield from record_batches(books.slots(self._choice, partition.within))
