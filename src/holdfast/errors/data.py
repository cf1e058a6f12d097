"""Errors of the bytes: doing the same again gives the same."""

from __future__ import annotations

from typing import ClassVar

from holdfast.errors.tree import DataError


class BadRows(DataError):
    """Rows that do not fit the declared schema. Correct them, or choose the quarantine policy."""

    code: ClassVar[str] = "BAD_ROWS"
    template: ClassVar[str] = (
        "{path}: {count} bad row(s), the first at line {line}: {reason}."
        " Correct the file, or set the input's on_bad_rows='quarantine'."
    )
    path: str
    line: int
    reason: str
    count: int


class HeaderWrong(DataError):
    """A CSV header differs from the declared columns. Correct the file or the schema."""

    code: ClassVar[str] = "HEADER_WRONG"
    template: ClassVar[str] = (
        "{path}: the header is {found}, the schema of table {table} wants {wanted}."
        " Correct the file or the schema."
    )
    path: str
    table: str
    found: str
    wanted: str


class InputChanged(DataError):
    """An input file is not the one that was bound when the run began."""

    code: ClassVar[str] = "INPUT_CHANGED"
    template: ClassVar[str] = "{path} {what} since the run began. Undo that, or use a new state."
    path: str
    what: str


class Damaged(DataError):
    """A stored file is missing, cut or altered, and cannot be repaired. Restore a backup."""

    code: ClassVar[str] = "DAMAGED"
    template: ClassVar[str] = "{path}: {what}. Restore it from a backup, or start a new run."
    path: str
    what: str


class RecordsDropped(DataError):
    """Records of a topic were dropped before a reader got to them. What it would give is not all.

    A stream with the option `group` keeps them from being dropped until it has read them.
    """

    code: ClassVar[str] = "RECORDS_DROPPED"
    template: ClassVar[str] = (
        "topic {topic}, partition {partition}: records from offset {wanted} on were asked for, the"
        " log holds those from {first} on. Begin with a new checkpoint, and give the stream a"
        " group."
    )
    topic: str
    partition: int
    wanted: int
    first: int


class StoreOlder(DataError):
    """An older Holdfast wrote this state, and questions change nothing. `holdfast run` does."""

    code: ClassVar[str] = "STORE_OLDER"
    template: ClassVar[str] = (
        "{path} has format {found}, not {known}, and a question must not change it. Run the"
        " pipeline again, which brings it up to date, or ask with the Holdfast that wrote it."
    )
    path: str
    found: int
    known: int


class StoreNewer(DataError):
    """A newer Holdfast wrote this state. Upgrade; an older one would misread it."""

    code: ClassVar[str] = "STORE_NEWER"
    template: ClassVar[str] = "{path} has format {found}, not {known} or older. Upgrade Holdfast."
    path: str
    found: int
    known: int
