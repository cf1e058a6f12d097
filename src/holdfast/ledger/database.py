"""The SQLite file of a ledger: connection, schema, transactions, and a checksum on every row.

Format: docs/internals/ledger.md#sqlite. Invariants:

* Every change is one `BEGIN IMMEDIATE` transaction; COMMIT returns after the fsync of the
  write-ahead log (`synchronous=FULL`).
* Every row carries a checksum of its other columns. SQLite has none of its own, and a flipped bit
  in a slot's hash would hide a recorded answer and buy it again.
* One connection per ledger object, used by one thread at a time, never across a fork.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from holdfast._base.ids import fresh_token
from holdfast._base.invariant import invariant
from holdfast._base.sqlite import make_log_durable, require_sqlite, sqlite_errors
from holdfast.errors import Damaged, StorageFailed, StoreNewer, UsageInvalid

FORMAT = 1
APPLICATION_ID = 0x484C4447

PAGE_BYTES = 1024
"""Slots are hashes, so each claim and each record of one dirties a page of its own. Larger: more
bytes go through the log for a row of about a hundred. Smaller: long texts need chains of pages."""

CHECKPOINT_PAGES = 4000
"""SQLite's log is written back when it has so many pages: 4 MB, as by default with larger pages.
Fewer: the same pages are written back and synced again and again, in a claim's commit. More: a
longer log to read when the ledger is opened."""

BUSY_WAIT_S = 60.0
"""How long a transaction waits for another process's. They take milliseconds; a longer wait means
that the other one hangs."""

COLUMNS = {
    "meta": ("name", "value"),
    "step": (
        *("id", "name", "generation", "fingerprint"),
        *("calls", "spent", "reserved", "dearest", "bought", "parked", "failed"),
    ),
    "owner": ("id", "token", "pid", "started_ms"),
    "segment": ("id", "owner", "name", "sealed"),
    "slot": (
        *("hash", "step", "key", "inputs", "owner", "attempts", "held"),
        *("segment", "sequence", "position", "length"),
    ),
    "settled": ("id", "name", "level", "rows", "bytes", "layout"),
    "dead_letter": ("hash", "step", "key", "reason", "recorded_ms"),
}
"""The columns of each table that its row checksum covers, in order."""

_SCHEMA = """
CREATE TABLE meta(name TEXT PRIMARY KEY, value, crc INTEGER) WITHOUT ROWID;
CREATE TABLE step(id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, generation INTEGER,
  fingerprint TEXT, calls INTEGER, spent INTEGER, reserved INTEGER, dearest INTEGER,
  bought INTEGER, parked INTEGER, failed INTEGER, crc INTEGER, UNIQUE(name, generation));
CREATE TABLE owner(id INTEGER PRIMARY KEY AUTOINCREMENT, token TEXT UNIQUE, pid INTEGER,
  started_ms INTEGER, crc INTEGER);
CREATE TABLE segment(id INTEGER PRIMARY KEY AUTOINCREMENT, owner INTEGER, name TEXT UNIQUE,
  sealed INTEGER, crc INTEGER);
CREATE TABLE slot(hash BLOB PRIMARY KEY, step INTEGER, key TEXT, inputs BLOB, owner INTEGER,
  attempts INTEGER, held INTEGER, segment INTEGER, sequence INTEGER, position INTEGER,
  length INTEGER, crc INTEGER) WITHOUT ROWID;
CREATE TABLE settled(id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, level INTEGER,
  rows INTEGER, bytes INTEGER, layout TEXT, crc INTEGER);
CREATE TABLE dead_letter(hash BLOB PRIMARY KEY, step INTEGER, key TEXT, reason TEXT,
  recorded_ms INTEGER, crc INTEGER) WITHOUT ROWID;
"""


def row_crc(*values: Any) -> int:
    """Return the checksum of a row's values."""
    return zlib.crc32(repr(values).encode())


def rows_of(
    connection: apsw.Connection, statement: str, values: Sequence[Any] = ()
) -> list[tuple[Any, ...]]:
    """Return all rows of a query; their types are those of the schema."""
    return connection.execute(statement, tuple(values)).fetchall()


def crc_of(table: str) -> str:
    """Return the SQL expression of a row's checksum, from its columns."""
    return f"row_crc({', '.join(COLUMNS[table])})"


class Database:
    """One connection to a ledger's database."""

    def __init__(self, path: Path, *, create: bool) -> None:
        """Open the file; make it when it is new and `create` allows.

        Raises:
            DependencyMissing, Damaged, StoreNewer, StorageFailed: see `holdfast.errors`.
        """
        require_sqlite()
        self.label = str(path)
        self._pid = os.getpid()
        self._turn = threading.RLock()
        self._failure: str | None = None
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
        with sqlite_errors(self.label, what="ledger"):
            self._connection = apsw.Connection(self.label, flags=flags)
            self._connection.set_busy_timeout(int(BUSY_WAIT_S * 1000))
            self._connection.pragma("page_size", PAGE_BYTES)  # counts for a new file only
            self._connection.pragma("journal_mode", "wal")
            self._connection.pragma("synchronous", "full")
            self._connection.pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
            self._connection.pragma("trusted_schema", "on")  # row_crc is called in statements
            self._connection.create_scalar_function("row_crc", row_crc, deterministic=True)
            make_log_durable(self._connection)
        if create:
            self._make_schema()
        self._check_format()
        self.ledger_id = str(self.meta("ledger"))

    def _make_schema(self) -> None:
        with self.transaction() as connection:
            if connection.pragma("user_version") == 0:
                connection.execute(_SCHEMA)
                connection.pragma("application_id", APPLICATION_ID)
                connection.pragma("user_version", FORMAT)
                for name, value in (("ledger", fresh_token()), ("generation", 0), ("change", 0)):
                    self.set_meta(name, value)

    def _check_format(self) -> None:
        with self.reading() as connection:
            found = connection.pragma("user_version")
            ours = connection.pragma("application_id") == APPLICATION_ID
        if not ours or found == 0:
            raise Damaged(path=self.label, what="it is not the database of a ledger")
        if found > FORMAT:
            raise StoreNewer(path=self.label, found=found, known=FORMAT)

    def _own(self) -> apsw.Connection:
        if os.getpid() != self._pid:
            raise UsageInvalid(
                what=f"{self.label} was opened before a fork", remedy="Open it in the child."
            )
        if self._failure is not None:
            raise StorageFailed(path=self.label, error=self._failure)
        return self._connection

    @contextmanager
    def transaction(self) -> Iterator[apsw.Connection]:
        """Run the block as one writing transaction, durable when the block has been left."""
        with self._turn, sqlite_errors(self.label, what="ledger"):
            connection = self._own()
            invariant(not connection.in_transaction, "a transaction began inside a transaction")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                self._commit(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def _commit(self, connection: apsw.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except apsw.IOError as error:
            # A failed fsync cannot be tried again: the kernel has forgotten what was dirty.
            self._failure = f"a commit failed ({error}); end this process and start it again"
            # Whatever it was, also a full disk: the commit may stand in the log all the same.
            raise StorageFailed(path=self.label, error=self._failure) from error

    @contextmanager
    def reading(self) -> Iterator[apsw.Connection]:
        """Run the block on one unchanging view."""
        with self._turn, sqlite_errors(self.label, what="ledger"):
            connection = self._own()
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("COMMIT")

    def meta(self, name: str) -> Any:
        """Return a value of the ledger as a whole, checked."""
        with self._turn, sqlite_errors(self.label, what="ledger"):
            row = self._own().execute("SELECT value, crc FROM meta WHERE name=?", (name,)).get
        if row is None or row[1] != row_crc(name, row[0]):
            raise Damaged(path=self.label, what=f"its entry {name!r} is missing or altered")
        return row[0]

    def set_meta(self, name: str, value: Any) -> None:
        """Set a value of the ledger as a whole, inside a transaction."""
        self._connection.execute(
            "INSERT OR REPLACE INTO meta VALUES(?,?,?)", (name, value, row_crc(name, value))
        )

    def verify(self) -> None:
        """Read everything and compare all checksums.

        Raises:
            Damaged: a page or a row is not what was written.
        """
        with self.reading() as connection:
            for (text,) in connection.execute("PRAGMA integrity_check(1)").fetchall():
                if text != "ok":
                    raise Damaged(path=self.label, what=f"the ledger's database: {text}")
            for table in COLUMNS:
                # S608: names come from the constant table above.
                bad = f"SELECT count(*) FROM {table} WHERE crc IS NOT {crc_of(table)}"  # noqa: S608
                if count := connection.execute(bad).get:
                    raise Damaged(path=self.label, what=f"{count} row(s) of {table} are altered")

    def close(self) -> None:
        """Close the connection; a second time does nothing."""
        if os.getpid() == self._pid:
            with self._turn, sqlite_errors(self.label, what="ledger"):
                self._connection.close()
