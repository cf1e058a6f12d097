"""What the footer of a Parquet document says of its size and columns, without a Parquet library.

A document of a few kilobytes may unpack to terabytes. Its footer says to how many bytes and rows;
what says too much is refused before anybody unpacks it. And Spark takes the columns of one file
for those of all, so one that lacks a declared column would be read as null, and no one be told.

The footer is a Thrift structure in the compact protocol:
https://parquet.apache.org/docs/file-format/. Only the few fields needed are looked at, the rest is
stepped over; a library for all of it would double the gateway's memory.

    "PAR1" ... footer, its length in 4 bytes (little endian), "PAR1"
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast._base.files import os_errors
from holdfast.errors import DocumentRefused
from holdfast.intake.csv_rows import shown
from holdfast.store.rows import Chunk

_MAGIC = b"PAR1"
_FOOTER_BYTES_MAX = 4 << 20
"""Largest footer read. Real ones have kilobytes; a larger one is an attack on memory."""
_VALUES_MAX = 200_000
"""Most values in a footer: a thousand columns have about 20,000 a row group. Each is an object."""
_DEPTH_MAX = 16
"""Nested structures of a footer are four deep."""
_SHOWN_CHARACTERS = 200
"""Of the columns that are missing, in their error."""

_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(
    13
)
_VARINTS = (_I16, _I32, _I64)

_TYPES = ("bool", "int32", "int64", "int96", "float", "double", "bytes", "fixed")
_REPEATED = 2

# Fields by number, as the format's description has them.
_FILE_SCHEMA, _FILE_ROWS, _FILE_GROUPS = _FILE_LOOKED_AT = 2, 3, 4
_ELEMENT_TYPE, _ELEMENT_REPETITION, _ELEMENT_NAME, _ELEMENT_CHILDREN = 1, 3, 4, 5
_ELEMENT_FACTS = (2, 5, 6, 7, 8, 10)
"""Its length, its children, and what it stands for: a date, a text, a decimal of some scale."""
_GROUP_COLUMNS, _GROUP_BYTES, _GROUP_ROWS = 1, 2, 3
_COLUMN_FACTS, _FACTS_UNPACKED = 3, 6


@dataclass(frozen=True, slots=True)
class Footer:
    """What a document holds when it is unpacked, by its own account."""

    size: int
    rows: int
    columns: tuple[str, ...]
    kinds: str
    """The columns with their types, as text: equal for documents that Spark reads alike."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What speaks against a document, and what to do about it."""

    what: str
    remedy: str


NO_DOCUMENT = Fault("it is no Parquet document", "Send a whole Parquet file.")


def check_footer(
    path: Path, chunk: Chunk, columns: Sequence[str], *, bytes_max: int, rows_max: int
) -> str:
    """Refuse a chunk that is no Parquet document, lacks a column, or unpacks to too much.

    Returns the columns that it has, with their types, as text.

    Raises:
        DocumentRefused: its sender is told why.
    """
    found = read_footer(path)
    fault = footer_fault(found, columns)
    if isinstance(found, Footer) and found.size > bytes_max:
        what = f"it unpacks to {found.size} bytes, {bytes_max} are allowed"
        fault = Fault(what, "Send smaller chunks.")
    elif isinstance(found, Footer) and found.rows > rows_max:
        what = f"it has {found.rows} rows, {rows_max} are allowed"
        fault = Fault(what, "Send smaller chunks.")
    if fault is not None:
        raise DocumentRefused(
            table=chunk.table, ordinal=chunk.ordinal, what=fault.what, remedy=fault.remedy
        )
    return found.kinds if isinstance(found, Footer) else ""


def footer_fault(found: Footer | Fault, columns: Sequence[str]) -> Fault | None:
    """Return what speaks against a document, whatever the limits where it goes. Pure."""
    if isinstance(found, Fault):
        return found
    names = set(found.columns)
    missing = [name for name in columns if name not in names]
    if not missing:
        return None
    what = f"it has no column {shown(', '.join(missing).encode(), _SHOWN_CHARACTERS)}"
    return Fault(what, "Send the declared columns, by their names.")


def _too_large(what: str) -> Fault:
    return Fault(f"its footer is too large: {what}", "Write fewer row groups into one file.")


def read_footer(path: Path) -> Footer | Fault:
    """Return what a Parquet file's footer says, or why it says nothing."""
    with os_errors(path), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        tail = file.read(8)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != _MAGIC or length > size - 12:
            return NO_DOCUMENT
        file.seek(0)
        if file.read(4) != _MAGIC:
            return NO_DOCUMENT
        if length > _FOOTER_BYTES_MAX:
            return _too_large(f"{length} bytes, {_FOOTER_BYTES_MAX} are allowed")
        file.seek(size - 8 - length)
        footer = file.read(length)
    return parse_footer(footer)


def parse_footer(footer: bytes) -> Footer | Fault:
    """Return what a footer says, or why it says nothing. Pure."""
    try:
        found = _Reader(footer).struct(0)
        groups = _structs(found, _FILE_GROUPS)
        size = sum(max(_number(group, _GROUP_BYTES), _columns_size(group)) for group in groups)
        grouped = sum(_number(group, _GROUP_ROWS) for group in groups)
        rows = max(_number(found, _FILE_ROWS), grouped)
        schema = _structs(found, _FILE_SCHEMA)
        return Footer(size, rows, _columns(schema), _kinds(schema))
    except _TooMany:
        return _too_large(f"more than {_VALUES_MAX} values")
    except (IndexError, ValueError):
        return NO_DOCUMENT


def _columns(schema: list[dict[int, Any]]) -> tuple[str, ...]:
    """Return the names below the root: the schema is a tree, its parents before their children."""
    names = []
    nested = 0
    for element in schema[1:]:
        name = element.get(_ELEMENT_NAME, b"")
        if not isinstance(name, bytes):
            raise ValueError(_ELEMENT_NAME)
        if nested:
            nested -= 1
        else:
            names.append(name.decode())
        nested += _number(element, _ELEMENT_CHILDREN)
    return tuple(names)


def _kinds(schema: list[dict[int, Any]]) -> str:
    """Return all columns and their types. Neither their order matters nor which may be null."""
    columns: list[list[str]] = []
    nested = 0
    for element in schema[1:]:
        if nested:
            nested -= 1
        else:
            columns.append([])
        columns[-1].append(_kind(element))
        nested += _number(element, _ELEMENT_CHILDREN)
    return ", ".join(sorted(" ".join(parts) for parts in columns))


def _kind(element: dict[int, Any]) -> str:
    name = element.get(_ELEMENT_NAME, b"").decode()
    plain = _TYPES[_number(element, _ELEMENT_TYPE)] if _ELEMENT_TYPE in element else "group"
    repeated = " repeated" if element.get(_ELEMENT_REPETITION) == _REPEATED else ""
    facts = "".join(f" {n}={value}" for n, value in sorted(element.items()) if n in _ELEMENT_FACTS)
    return f"{name!r} {plain}{repeated}{facts}"


def _columns_size(group: dict[int, Any]) -> int:
    facts = [one.get(_COLUMN_FACTS, {}) for one in _structs(group, _GROUP_COLUMNS)]
    return sum(_number(one, _FACTS_UNPACKED) for one in facts if isinstance(one, dict))


def _structs(struct: dict[int, Any], field: int) -> list[dict[int, Any]]:
    """Return a list of structures. Whoever made the footer chose what stands there."""
    value = struct.get(field, [])
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ValueError(field)
    return value


def _number(struct: dict[int, Any], field: int) -> int:
    """Return a number of a structure. A negative one is a lie."""
    value = struct.get(field, 0)
    if type(value) is not int or value < 0:
        raise ValueError(field)
    return value


class _TooMany(ValueError):
    """A footer has more values than are read."""


class _Reader:
    """Reads the compact protocol. Raises IndexError or ValueError where it is broken.

    Of what is not looked at, as little as can be is kept: four megabytes of short texts would be
    forty of objects.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._values = data, 0, 0
        self._keeps_texts = False

    def struct(self, depth: int) -> dict[int, Any]:
        if depth > _DEPTH_MAX:
            raise ValueError("too deep")
        found: dict[int, Any] = {}
        field = 0
        while (head := self._byte()) & 0x0F != _STOP:
            kind, step = head & 0x0F, head >> 4
            field = field + step if step else _zigzag(self._varint())
            self._count()
            if depth == 0:
                self._keeps_texts = field == _FILE_SCHEMA
            # In a structure the kind itself is the value of a Boolean.
            value = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
            if depth or field in _FILE_LOOKED_AT:
                found[field] = value
        return found

    def _count(self) -> None:
        self._values += 1
        if self._values > _VALUES_MAX:
            raise _TooMany

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _VARINTS:
            return _zigzag(self._varint())
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._byte()
        if kind == _DOUBLE:
            return self._step(8)
        if kind == _BINARY:
            start = self._step(self._varint())
            return self._data[start : self._at] if self._keeps_texts else None
        if kind in (_LIST, _SET):
            return self._list(depth + 1)
        if kind == _MAP:
            return self._map(depth + 1)
        if kind == _STRUCT:
            return self.struct(depth + 1)
        raise ValueError(kind)

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        count = head >> 4 if head >> 4 != 15 else self._varint()
        # Each element takes a byte at least: a count cannot make us loop for ever.
        if count > len(self._data) - self._at or depth > _DEPTH_MAX:
            raise ValueError(count)
        return [self._element(head & 0x0F, depth) for _ in range(count)]

    def _map(self, depth: int) -> None:
        count = self._varint()
        if count > len(self._data) - self._at or depth > _DEPTH_MAX:
            raise ValueError(count)
        kinds = self._byte() if count else 0
        for _ in range(count):
            self._element(kinds >> 4, depth)
            self._element(kinds & 0x0F, depth)

    def _element(self, kind: int, depth: int) -> Any:
        self._count()
        return self._value(kind, depth)

    def _byte(self) -> int:
        value = self._data[self._at]
        self._at += 1
        return value

    def _varint(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("too long a number")

    def _step(self, count: int) -> int:
        """Step over bytes; returns where they began."""
        if count > len(self._data) - self._at:
            raise IndexError(count)
        self._at += count
        return self._at - count


def _zigzag(value: int) -> int:
    return (value >> 1) ^ -(value & 1)
