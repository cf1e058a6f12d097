"""One connection to a ledger's server: transactions, named errors, and what to do when it is lost.

The only importer of psycopg. Invariants:

* A transaction is READ COMMITTED, and durable when it is committed, whatever the server's defaults.
* A question is one moment of the ledger and can change nothing: REPEATABLE READ, READ ONLY.
* A transaction whose connection was lost is run again on a new one. Whether the lost one was
  committed is unknown then, so its work must bear that (`ledger.py` counts turns).
* A client that hangs inside a transaction is thrown out by the server: it keeps nobody waiting.
* One thread at a time; never across a fork.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from holdfast._base.clock import Clock
from holdfast.errors import (
    Damaged,
    DependencyMissing,
    DiskFull,
    HoldfastError,
    InvariantViolated,
    LedgerRefused,
    LedgerUnreachable,
    StorageFailed,
    UsageInvalid,
)
from holdfast.ledger.postgres.address import Address

try:
    import psycopg
    from psycopg import errors as sql_errors
except ImportError as error:
    raise DependencyMissing(
        what="a ledger in PostgreSQL needs the package psycopg",
        install="pip install 'holdfast[postgres]'",
    ) from error

T = TypeVar("T")

RECONNECT_S = 60.0
"""How long a transaction waits for a server that went away. Shorter: a restart of the server fails
jobs. Longer: a server that is gone for good is reported later."""

_PAUSE_FIRST_S, _PAUSE_MOST_S = 0.05, 1.0
"""Between two attempts to connect. Shorter: many clients storm a server that starts. Longer: work
stands still after it is back."""

_CONNECT_S = 10
_STATEMENT = "60s"
"""A statement takes milliseconds; one that takes a minute hangs, and holds locks."""
_HANGING = "10s"
"""A client between two statements of a transaction for so long has stopped. It must be shorter
than a user would wait, and longer than any pause of a busy machine."""

_BEGIN = (
    "SELECT set_config('statement_timeout', %s, true),"
    " set_config('idle_in_transaction_session_timeout', %s, true),"
    " CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')"
    " THEN set_config('synchronous_commit', 'on', true) END"
)

_READING = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"


def _is_of_the_client(error: psycopg.Error) -> bool:
    """Tell whether the server did not say it: the line broke, in one of libpq's many words.

    The connection may not know yet that it is lost; nothing more is asked of it.
    """
    aborted = isinstance(error, sql_errors.PipelineAborted)
    return isinstance(error, psycopg.OperationalError) and error.sqlstate is None and not aborted


class Sql:
    """Statements inside one transaction."""

    def __init__(self, cursor: psycopg.Cursor[tuple[Any, ...]]) -> None:
        self._cursor = cursor

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        # S608 is checked where statements are made: values never become part of their text.
        return self._cursor.execute(statement.encode(), values).fetchall()

    def one(self, statement: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """Run a statement and return its first row."""
        return self._cursor.execute(statement.encode(), values).fetchone()

    def run(self, statement: str, values: Sequence[Any] = ()) -> None:
        """Run a statement that has no rows; it may share its journey with the next one."""
        self._cursor.execute(statement.encode(), values)


class Server:
    """A connection that is opened when it is needed, and again when it was lost."""

    def __init__(self, address: Address, clock: Clock, *, patience_s: float = RECONNECT_S) -> None:
        self._address, self._clock, self._patience_s = address, clock, patience_s
        self._pid = os.getpid()
        self._turn = threading.RLock()
        self._closed = threading.Event()
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._was_open = False

    def ask(self, work: Callable[[Sql], T]) -> T:
        """Run `work`, which only reads, on one view of the ledger. Raises as `transact` does."""
        return self.transact(work, reading=True)

    def transact(self, work: Callable[[Sql], T], *, reading: bool = False) -> T:
        """Run `work` as one transaction, and again if the connection was lost meanwhile.

        Raises:
            LedgerUnreachable: no connection, at once at first, later after `RECONNECT_S`.
            LedgerRefused, StorageFailed, DiskFull, Damaged: see `holdfast.errors`.
        """
        if os.getpid() != self._pid:
            raise UsageInvalid(
                what=f"ledger {self._address.label} was opened before a fork",
                remedy="Open it in the child.",
            )
        with self._turn:
            began_s, pause_s = self._clock.monotonic_s(), _PAUSE_FIRST_S
            while True:
                try:
                    return self._try(work, reading=reading)
                except LedgerUnreachable:
                    waited_s = self._clock.monotonic_s() - began_s
                    if not self._was_open or waited_s > self._patience_s:
                        raise
                if self._closed.wait(pause_s):
                    raise LedgerUnreachable(ledger=self._address.label, error="it was closed here")
                pause_s = min(2 * pause_s, _PAUSE_MOST_S)

    def _try(self, work: Callable[[Sql], T], *, reading: bool) -> T:
        connection = self._opened()
        try:
            with (
                connection.pipeline(),
                connection.transaction(),
                connection.cursor(binary=True) as cursor,
            ):
                if reading:
                    cursor.execute(_READING)
                cursor.execute(_BEGIN, (_STATEMENT, _HANGING))
                return work(Sql(cursor))
        except psycopg.Error as error:
            if connection.closed or _is_of_the_client(error):
                connection.close()
                # `from None`, here and below: a chain of errors may quote the connection's text.
                raise LedgerUnreachable(
                    ledger=self._address.label, error=self._address.safe(error)
                ) from None
            raise self._named(error) from None

    def _opened(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._closed.is_set():
            raise UsageInvalid(what=f"{self._address.label} was closed", remedy="Open it again.")
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
            self._was_open = True
        return self._connection

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        try:
            connection = psycopg.connect(
                self._address.url,
                client_encoding="utf8",
                connect_timeout=_CONNECT_S,
                fallback_application_name="holdfast ledger",
                # A half-open connection is noticed in a minute, not in two hours.
                keepalives_idle=20,
                keepalives_interval=10,
                keepalives_count=3,
                tcp_user_timeout=60_000,
                # Statements prepared on the server would tie us to one session of it.
                prepare_threshold=None,
            )
        except psycopg.ProgrammingError:
            raise UsageInvalid(
                what=f"the URL of ledger {self._address.label} has an option that does not exist",
                remedy="See the PostgreSQL manual, 'Connection URIs'.",
            ) from None
        except psycopg.OperationalError as error:
            raise self._not_connected(error) from None
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        return connection

    def _not_connected(self, error: psycopg.OperationalError) -> HoldfastError:
        text = self._address.safe(error)
        # What the server itself says has a severity before it, in the server's language.
        said = re.search(r"failed: [^\s:]+: {2}(.*)", str(error))
        # It took us before: whatever it says now, it may just be starting.
        if self._was_open or said is None:
            return LedgerUnreachable(ledger=self._address.label, error=text)
        return LedgerRefused(ledger=self._address.label, error=self._address.safe(said[1]))

    def _named(self, error: psycopg.Error) -> HoldfastError:
        """Return the error with a code for one that the server reported."""
        label, text = self._address.label, self._address.safe(error)
        if isinstance(error, sql_errors.DiskFull):
            return DiskFull(path=label)
        if isinstance(error, (sql_errors.InsufficientPrivilege, sql_errors.InvalidSchemaName)):
            return LedgerRefused(ledger=label, error=text)
        if isinstance(error, (sql_errors.UndefinedTable, sql_errors.UndefinedColumn)):
            return Damaged(path=label, what=f"a table of the ledger is not as it was made ({text})")
        if isinstance(error, (sql_errors.DataCorrupted, sql_errors.IndexCorrupted)):
            return Damaged(path=label, what=text)
        if isinstance(error, psycopg.OperationalError | sql_errors.ReadOnlySqlTransaction):
            return StorageFailed(path=label, error=text)
        return InvariantViolated(what=f"{label}: {type(error).__name__}: {text}")

    def close(self) -> None:
        """Close the connection; a second time does nothing. Whoever waits for it stops waiting."""
        self._closed.set()
        if os.getpid() == self._pid:
            with self._turn:
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None
