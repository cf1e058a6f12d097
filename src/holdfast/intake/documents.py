"""What a document that is handed in must be, by its table. Looked at before its chunk is bound.

What can be known from a document's beginning or end is refused at the door, where its sender
hears of it; what stands in its rows is known only when somebody reads them all. Every door asks
here. Nothing is held in memory but a header.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast._base.ids import digest
from holdfast.blobs.contract import BlobStore
from holdfast.config import Config
from holdfast.errors import DocumentRefused, FormatRefused
from holdfast.intake.csv_rows import header_of
from holdfast.intake.ddl import column_names
from holdfast.intake.footer import check_footer
from holdfast.intake.header import fault_of
from holdfast.intake.tables import TableSpec
from holdfast.store.rows import Chunk

FORMATS = ("csv", "json", "parquet")
"""What the chunks of a table with declared columns may be."""
_HEAD_BYTES = 1 << 16
"""Read of a document to find its header, and twice as much as the wanted one: every quote in it may
be doubled. A first line that is longer is wrong, whatever it holds."""
_KEPT_CHARACTERS = 600
"""Of a document's columns, with its chunk's row and its reference. More: a small chunk of many
columns takes more room in the store than its bytes do. Less: a refusal names fewer columns."""


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents that the tables of one pipeline take."""

    tables: tuple[TableSpec, ...]
    unpacked_bytes: int
    unpacked_rows_max: int

    @classmethod
    def of(cls, tables: tuple[TableSpec, ...], config: Config) -> Documents:
        """Return what these tables take, within the limits of the settings."""
        return cls(tables, config.unpacked_bytes, config.unpacked_rows_max)

    def formats(self, table: str) -> tuple[str, ...]:
        """Return the formats a table takes; of one that is not there, whoever binds says so."""
        declared = self._input(table)
        if declared is not None and declared.format == "binaryFile":
            return ("binaryFile",)
        if declared is not None and not declared.schema:
            return ("parquet",)
        return FORMATS

    def check_format(self, chunk: Chunk) -> None:
        """Refuse a chunk whose table cannot be read from its format.

        Raises:
            FormatRefused: it is refused.
        """
        allowed = self.formats(chunk.table)
        if chunk.format not in allowed:
            what = f"chunk {chunk.ordinal} of table {chunk.table} is {chunk.format}"
            raise FormatRefused(what=what, remedy=f"Send {' or '.join(allowed)}.")

    def check(self, blobs: BlobStore, chunk: Chunk, name: str) -> str:
        """Refuse a document, as it lies in a blob, that no run could read.

        Returns what all chunks of its table must have alike: the columns, where none are declared.

        Raises:
            DocumentRefused: its sender is told why.
        """
        declared = self._input(chunk.table)
        columns = column_names(declared.schema) if declared and declared.schema else []
        if chunk.format == "parquet":
            kinds = check_footer(
                Path(blobs.location(name)),
                chunk,
                columns,
                bytes_max=self.unpacked_bytes,
                rows_max=self.unpacked_rows_max,
            )
            return "" if columns else _bounded(kinds)
        if chunk.format == "csv" and columns:
            _check_csv(blobs, chunk, name, columns)
        return ""

    def _input(self, table: str) -> TableSpec | None:
        inputs = (one for one in self.tables if not one.produced)
        return next((one for one in inputs if one.name == table), None)


def _bounded(kinds: str) -> str:
    """Return columns as they are kept with every chunk: by their hash where they are many."""
    return kinds if len(kinds) <= _KEPT_CHARACTERS else f"many: {digest(kinds)}"


def _check_csv(blobs: BlobStore, chunk: Chunk, name: str, columns: list[str]) -> None:
    """Refuse a document that does not begin with the header. One without bytes has no rows."""
    wanted = ",".join(columns)
    head = _beginning(blobs, name, _HEAD_BYTES + 2 * len(wanted.encode()))
    if not head:
        return
    fault = fault_of(header_of(head)[0], columns)
    if fault is not None:
        raise DocumentRefused(
            table=chunk.table,
            ordinal=chunk.ordinal,
            what=f"its header is {fault}",
            remedy=f"Begin every chunk with the line {wanted}",
        )


def _beginning(blobs: BlobStore, name: str, size: int) -> bytes:
    found = bytearray()
    for piece in blobs.read(name):
        found += piece[: size - len(found)]
        if len(found) >= size:
            break
    return bytes(found)
