"""Connections to one SQLite file: one per thread, none across a fork; transactions; errors by name.

Invariants:

* Every writing transaction begins with `BEGIN IMMEDIATE`, so that it never reads what another one
  is about to change. COMMIT returns after the fsync of the write-ahead log (`synchronous=FULL`),
  and no other connection sees the change before that: whoever sees it may acknowledge it. What
  a killed process left in the log is made durable by the next one that opens the file.
* A connection is used by the thread that opened it. It is never used, nor closed, in a forked
  child: a child has none of the parent's file locks, but SQLite's memory, copied by the fork,
  says that it has them. The same memory would mislead a connection that the child opens anew to
  the same file, so that is refused too. Open the store in the child alone, or spawn the child.
* Every page of the file carries a checksum (`pages`), compared whenever it is read.
* The database file is never opened by Python: closing it would drop SQLite's locks on it.

Crash points: `store.transaction.before`, `store.transaction.after`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from holdfast._base.crashpoint import crashpoint
from holdfast._base.ids import fresh_token
from holdfast._base.invariant import invariant
from holdfast._base.sqlite import make_log_durable, sqlite_errors
from holdfast.config import Config
from holdfast.errors import Damaged, EnvironmentFailed, StorageFailed, UsageInvalid
from holdfast.store.sqlite.pages import CHECKSUM_BYTES, load_checksums

CACHE_KIB = 16 * 1024
"""16 MiB of pages per connection. Smaller: appends to a large topic read index pages again.
Larger: a server with a few threads leaves its 100 MiB of memory."""

PAGE_BYTES = 8192
"""Fixed when a store is made. Smaller: three records of 1 KiB fill a 4 KiB page and waste a
quarter of it, and fetching is a sixth slower. Larger: a small transaction writes more."""

CHECKPOINT_PAGES = 2000
"""16 MiB of log before it is copied into the database. Smaller: more fsyncs of the database, and
hot pages copied more often. Larger: opening after a crash reads a longer log, readers search it."""


class Database:
    """The connections of this process to one database.

    `uri` is what SQLite opens; `label` names it in errors; `identity` is its device and inode.
    """

    def __init__(
        self, uri: str, *, label: str, identity: tuple[int, int] | None, config: Config
    ) -> None:
        self.label = label
        self._uri = uri
        self._identity = identity
        self._wait_s = config.transaction_wait_s
        self._pid = os.getpid()
        self._local = threading.local()
        self._turn = threading.Lock()
        self._guard = threading.Lock()
        self._connections: weakref.WeakSet[apsw.Connection] = weakref.WeakSet()
        self._anchor: apsw.Connection | None = None
        self._failure: str | None = None
        self._closed = False
        _live.add(self)

    @classmethod
    def file(cls, path: Path, config: Config) -> Database:
        """Return the database in an existing file."""
        _refuse_inherited(path)
        status = path.stat()
        identity = (status.st_dev, status.st_ino)
        return cls(
            f"{path.absolute().as_uri()}?mode=rw&vfs={load_checksums()}",
            label=str(path),
            identity=identity,
            config=config,
        )

    @classmethod
    def memory(cls, config: Config) -> Database:
        """Return a new database in this process's memory, shared by its threads.

        It lives as long as one connection does, so one is held until `close`.
        """
        name = f"/holdfast-{fresh_token()}"
        database = cls(
            f"file:{name}?vfs=memdb", label=f"memory:{name}", identity=None, config=config
        )
        database._anchor = database.connection()
        return database

    def connection(self) -> apsw.Connection:
        """Return this thread's connection, opened on first use.

        Raises:
            UsageInvalid: the store was closed, or opened before a fork.
            StorageFailed: a commit of this process failed earlier.
        """
        if os.getpid() != self._pid:
            raise _across_fork(self.label)
        if self._closed:
            raise UsageInvalid(what=f"{self.label} was closed", remedy="Open it again.")
        if self._failure is not None:
            raise StorageFailed(path=self.label, error=self._failure)
        found: apsw.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            with self._guard, sqlite_errors(self.label, what="store"):
                found = self._open()
                self._connections.add(found)
            self._local.connection = found
        return found

    def _open(self) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI
        if self._identity is None:
            flags |= apsw.SQLITE_OPEN_CREATE
        connection = apsw.Connection(self._uri, flags=flags)
        connection.set_busy_timeout(int(self._wait_s * 1000))
        connection.pragma("page_size", PAGE_BYTES)
        if self._identity is not None:
            connection.reserve_bytes("main", CHECKSUM_BYTES)
            connection.pragma("journal_mode", "wal")
            if str(connection.pragma("checksum_verification")) != "1":
                raise Damaged(path=self.label, what="the store's pages have no checksums")
            self._trust_log(connection)
        connection.pragma("synchronous", "full")
        connection.pragma("foreign_keys", "on")
        connection.pragma("trusted_schema", "off")
        connection.pragma("cache_size", -CACHE_KIB)
        connection.pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
        return connection

    def _trust_log(self, connection: apsw.Connection) -> None:
        try:
            make_log_durable(connection)
        except EnvironmentFailed as error:
            # As with a commit: another try could succeed on pages that the kernel gave up.
            self._failure = f"its log could not be made durable ({error}); start this process again"
            raise

    @contextmanager
    def transaction(self) -> Iterator[apsw.Connection]:
        """Run the block as one writing transaction. It is durable when the block has been left.

        1. `BEGIN IMMEDIATE` takes the right to write, waiting for whoever has it.
        2. The block reads and writes. An exception undoes all of it.
        3. COMMIT fsyncs the log. Crash before its end: nothing happened. Crash after: all did,
           and whoever asks again finds it.
        """
        connection = self.connection()
        invariant(not connection.in_transaction, "a transaction began inside a transaction")
        if not self._turn.acquire(timeout=self._wait_s):
            raise StorageFailed(
                path=self.label, error="another thread holds the store for too long"
            )
        try:
            with sqlite_errors(self.label, what="store"):
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    crashpoint("store.transaction.before")
                    self._commit(connection)
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
        finally:
            self._turn.release()
        crashpoint("store.transaction.after")

    def _commit(self, connection: apsw.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except apsw.IOError as error:
            # A failed fsync cannot be tried again: the kernel has forgotten what was dirty. So
            # this process acknowledges nothing more; a new one recovers from what is on disk.
            self._failure = f"a commit failed ({error}); end this process and start it again"
            # Whatever it was, also a full disk: the commit may stand in the log all the same, so
            # nobody may be told that it was undone.
            raise StorageFailed(path=self.label, error=self._failure) from error

    @contextmanager
    def reading(self) -> Iterator[apsw.Connection]:
        """Run the block on one unchanging view. Keep it short: the log cannot shrink meanwhile."""
        connection = self.connection()
        invariant(not connection.in_transaction, "a view began inside a transaction")
        with sqlite_errors(self.label, what="store"):
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("COMMIT")

    def gather(self) -> None:
        """Copy the log into the database file, durably: the file alone is then the whole store.

        Closing does so too, but says nothing if it could not.
        """
        with sqlite_errors(self.label, what="store"):
            self.connection().wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def close(self) -> None:
        """Close every thread's connection. Later calls are refused; a second close does nothing."""
        if os.getpid() != self._pid or self._closed:
            return
        self._closed = True
        with self._guard, sqlite_errors(self.label, what="store"):
            for connection in list(self._connections):
                # One that its thread is using right now is closed when that thread lets go of it.
                with suppress(apsw.ThreadingViolationError):
                    connection.close()
            self._anchor = None

    def inherit(self) -> None:
        """Keep the parent's connections from being closed in this forked child: leak them."""
        connections = list(self._connections)
        if self._identity is not None and connections and not self._closed:
            _inherited.append((self._identity, connections))


_live: weakref.WeakSet[Database] = weakref.WeakSet()
_inherited: list[tuple[tuple[int, int], list[apsw.Connection]]] = []


def _after_fork_in_child() -> None:
    for database in list(_live):
        database.inherit()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _across_fork(label: str) -> UsageInvalid:
    return UsageInvalid(
        what=f"{label} was opened before this process was forked",
        remedy="Open it in the child only, or start the child by spawn.",
    )


def _refuse_inherited(path: Path) -> None:
    status = path.stat()
    if any(identity == (status.st_dev, status.st_ino) for identity, _ in _inherited):
        raise _across_fork(str(path))
