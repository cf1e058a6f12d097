"""The files of a directory as chunks to be sent: each a whole document, cut at row boundaries.

The same files and the same chunk size always give the same documents under the same ordinals, so
a later process finds out what is left to send by asking the server for the ordinals it has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from holdfast._base.files import os_errors, read_pieces, sha256_of
from holdfast._base.ids import digest
from holdfast.client.answers import InputInfo
from holdfast.errors import SubmissionChanged, UsageInvalid
from holdfast.intake.compressed import EXTENSIONS as COMPRESSED
from holdfast.intake.compressed import refusal
from holdfast.intake.footer import footer_fault, read_footer
from holdfast.intake.listing import EXTENSIONS, belongs_to, files_below, list_tables
from holdfast.intake.split import Piece, head_of, split_file
from holdfast.intake.tables import TableSpec

_FORMATS = {ending: name for name, endings in EXTENSIONS.items() for ending in endings}


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file, and where it is cut."""

    path: Path
    relative: PurePosixPath
    format: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A chunk to be: a header line where one is needed, then a byte range of a file."""

    table: str
    ordinal: int
    path: Path
    format: str
    head: bytes
    start: int
    stop: int
    checksum: str

    @property
    def size(self) -> int:
        """Return its bytes."""
        return len(self.head) + self.stop - self.start

    def pieces(self) -> Iterator[bytes]:
        """Yield its bytes.

        Raises:
            SubmissionChanged: the file has become shorter.
        """
        if self.head:
            yield self.head
        left = self.stop - self.start
        with os_errors(self.path):
            for piece in read_pieces(self.path, self.start, self.stop):
                left -= len(piece)
                yield piece
        if left:
            raise self.changed()

    def is_unchanged(self) -> bool:
        """Tell whether the file still has these bytes."""
        return sha256_of(self.pieces()) == self.checksum

    def changed(self) -> SubmissionChanged:
        """Return the error for a file that changed under our hands."""
        return SubmissionChanged(path=str(self.path), what="changed while it was being sent")


def find_files(
    directory: Path,
    tables: Sequence[TableSpec] | None,
    *,
    ignore_unknown: bool = False,
    empty: Sequence[str] = (),
) -> list[tuple[Path, TableSpec]]:
    """Return the files to send, each with what is known of its table. Reads none of them.

    `tables`: the pipeline's, where it is known; else tables are what the names may mean.
    `empty`: tables that are known to be allowed to have no file.

    Raises:
        UsageInvalid: there is no such directory, or its files do not fit the tables.
    """
    folder = directory.absolute()
    if tables is None:
        files = [path for path in files_below(folder) if path.suffix in _FORMATS]
        return [(path, _unknown(path.stem, _FORMATS[path.suffix])) for path in files]
    lenient = [replace(one, optional=one.optional or one.name in empty) for one in tables]
    found = list_tables(folder, lenient, ignore_unknown=ignore_unknown)
    for table in lenient:
        if table.format not in EXTENSIONS and found.get(table.name):
            raise _binary(table.name)
    return sorted((path, one) for one in lenient for path in found.get(one.name, ()))


def cut_files(
    directory: Path,
    found: Sequence[tuple[Path, TableSpec]],
    *,
    chunk_bytes: int,
    inputs: Sequence[InputInfo] = (),
) -> list[InputFile]:
    """Read every file that was found once, and return where each is cut, in order of their paths.

    Formats and columns are checked by what the server says of its `inputs`: what it would refuse is
    known before it has a run.

    Raises:
        UsageInvalid, HeaderWrong, BadRows, StorageFailed: as `holdfast run` would refuse them.
    """
    folder = directory.absolute()
    specs = _specs(inputs)
    _refuse_formats(folder, specs, inputs)
    columns = {one.table: list(one.columns) or None for one in inputs}

    def cut(path: Path, table: TableSpec) -> InputFile:
        relative = PurePosixPath(path.relative_to(folder))
        wanted = columns.get(belongs_to(relative, specs) or "")
        if table.format == "parquet" and (fault := footer_fault(read_footer(path), wanted or ())):
            raise UsageInvalid(what=f"{path}: {fault.what}", remedy=fault.remedy)
        pieces = split_file(path, table, wanted, chunk_bytes, documents=True)
        return InputFile(path, relative, table.format, tuple(pieces))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda pair: cut(*pair), found))


def _refuse_formats(folder: Path, specs: Sequence[TableSpec], inputs: Sequence[InputInfo]) -> None:
    """Refuse files of a format that their table does not take."""
    takes = {one.table: one for one in inputs}
    for path in files_below(folder):
        relative = PurePosixPath(path.relative_to(folder))
        owner = takes.get(belongs_to(relative, specs) or "")
        if owner is None:
            continue
        if owner.format not in EXTENSIONS:
            raise _binary(owner.table)
        if owner.is_parquet_only and _FORMATS[relative.suffix] != "parquet":
            what = f"{path} is {_FORMATS[relative.suffix]}, and table {owner.table} takes Parquet"
            raise UsageInvalid(what=f"{what} only", remedy="Write it as Parquet.")


def _binary(table: str) -> UsageInvalid:
    what = f"table {table} is made of binary files, which cannot be handed in"
    return UsageInvalid(what=what, remedy="Run it where the files are: holdfast run.")


def _unknown(name: str, fmt: str) -> TableSpec:
    return TableSpec(name=name, format=fmt, schema="", segment=1, optional=True)


def _specs(inputs: Sequence[InputInfo]) -> list[TableSpec]:
    """Return tables that own their files whatever their format; one of binary files, all of its."""
    return [
        _unknown(one.table, fmt)
        for one in inputs
        for fmt in (EXTENSIONS if one.format in EXTENSIONS else (one.format,))
    ]


def key_of(files: Sequence[InputFile]) -> str:
    """Return the key of a run that was given none: the same for the same names and bytes.

    It has the cuts in it too: other cuts are other chunks, and another run.
    """
    parts: list[str | int] = []
    for file in files:
        parts += [str(file.relative), len(file.pieces), *(piece.checksum for piece in file.pieces)]
    return digest("submission", *parts)


def number(
    directory: Path,
    files: Sequence[InputFile],
    tables: Sequence[InputInfo],
    *,
    ignore_unknown: bool = False,
    empty: Sequence[str] = (),
) -> list[Document]:
    """Return the documents of a pipeline's tables, each under its ordinal.

    `empty`: tables that are known to be allowed to have no file.

    Raises:
        UsageInvalid: a file belongs to no table, or a table has no file.
    """
    names = sorted(table.table for table in tables)
    specs = _specs(tables)
    _refuse_strangers(directory.absolute(), specs, names, ignore_unknown)
    documents: list[Document] = []
    count = dict.fromkeys(names, 0)
    with_files = set()
    for file in files:
        owner = belongs_to(file.relative, specs)
        if owner is None:
            continue
        with_files.add(owner)
        for piece in file.pieces:
            count[owner] += 1
            documents.append(_document(owner, count[owner], file, piece))
    optional = {table.table for table in tables if table.optional} | set(empty)
    for table in tables:
        name = table.table
        if name not in with_files and name not in optional:
            if table.format not in EXTENSIONS:
                raise _binary(name)
            end = EXTENSIONS[table.format][0]
            what = f"{directory} has no file for table {name}"
            remedy = f"Add {name}{end}, {name}_*{end} or {name}/*{end}, or say so: --empty {name}."
            raise UsageInvalid(what=what, remedy=remedy)
    return documents


def _refuse_strangers(
    folder: Path, specs: Sequence[TableSpec], names: Sequence[str], ignore_unknown: bool
) -> None:
    for path in files_below(folder):
        relative = PurePosixPath(path.relative_to(folder))
        if belongs_to(relative, specs) is not None:
            continue
        method = COMPRESSED.get(relative.suffix)
        if method and belongs_to(relative.with_suffix(""), specs) is not None:
            raise refusal(path, method)
        if not ignore_unknown:
            raise UsageInvalid(
                what=f"{path} belongs to none of the tables {', '.join(names)}",
                remedy="Move it away, name it after its table, or give --ignore-unknown.",
            )


def _document(table: str, ordinal: int, file: InputFile, piece: Piece) -> Document:
    return Document(
        table=table,
        ordinal=ordinal,
        path=file.path,
        format=file.format,
        head=head_of(piece),
        start=piece.start,
        stop=piece.stop,
        checksum=piece.checksum,
    )
