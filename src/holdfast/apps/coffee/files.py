"""Writes one CSV file of the data set: line ends, final newline, counts, rename when complete.

A file is written under a name that starts with a dot and ends in `.part`, and gets its own name
when it is complete. So a reader sees a whole file or none; a power cut may still lose it.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self


@dataclass(frozen=True, slots=True)
class FileStyle:
    """How the lines of a file end, and whether the last one does."""

    eol: str = "\n"
    final_newline: bool = True


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A complete file; rows without the header."""

    name: str
    table: str
    rows: int
    bytes: int


class TableFile:
    """A CSV file being written, used as a context manager; `written` is set when it ends well."""

    written: WrittenFile

    def __init__(self, path: Path, *, table: str, header: str, style: FileStyle) -> None:
        """Open the file under its temporary name and write the header."""
        self.style = style
        self._path = path
        self._table = table
        self._rows = 0
        self._part = path.with_name(f".{path.name}.part")
        self._file = self._part.open("xb")
        self._file.write((header + style.eol).encode())

    def write(self, lines: bytes) -> None:
        """Append whole lines, each with its end."""
        self._rows += lines.count(b"\n")
        self._file.write(lines)

    def write_rows(self, rows: Iterable[Sequence[str]]) -> None:
        """Append rows, with quotes only where a field needs them."""
        self.write(csv_lines(rows, self.style.eol))

    def __enter__(self) -> Self:
        """Return the file, open since it was made."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Rename the complete file, or remove what there is of it after an error."""
        size = self._file.tell()
        if not self.style.final_newline:
            size -= len(self.style.eol)
            self._file.truncate(size)
        self._file.close()
        if kind is not None:
            self._part.unlink()
            return
        self._part.rename(self._path)
        self.written = WrittenFile(self._path.name, self._table, self._rows, size)


def csv_lines(rows: Iterable[Sequence[str]], eol: str) -> bytes:
    """Return rows as CSV text, with quotes only where a field needs them."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=eol).writerows(rows)
    return text.getvalue().encode()


def write_empty(path: Path, *, table: str) -> WrittenFile:
    """Write a file of zero bytes: not even a header."""
    path.touch(exist_ok=False)
    return WrittenFile(path.name, table, 0, 0)
