"""The tables of a shared ledger. Format: docs/internals/ledger-postgres.md#tables.

Made once, under an advisory lock of the database: any number of tasks may open a new ledger at
the same moment. Tables live in the first schema of the search path.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from holdfast._base.crashpoint import crashpoint
from holdfast._base.ids import fresh_token
from holdfast.errors import LedgerRefused, StoreNewer, StoreOlder
from holdfast.ledger.postgres.connection import Server, Sql

_LOCK = 0x484C4447
"""The number of the advisory lock; the same letters as the file ledger's application id."""

_FIRST = (
    """CREATE TABLE holdfast_ledger_meta(
      one boolean PRIMARY KEY DEFAULT true CHECK (one),
      ledger text NOT NULL, version integer NOT NULL)""",
    """CREATE TABLE holdfast_ledger_step(
      id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL,
      generation integer NOT NULL, fingerprint text NOT NULL, UNIQUE (name, generation))""",
    """CREATE TABLE holdfast_ledger_owner(
      id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, beat bigint NOT NULL DEFAULT 0,
      turn bigint NOT NULL DEFAULT 0, host text NOT NULL, pid integer NOT NULL,
      started_ms bigint NOT NULL)""",
    """CREATE TABLE holdfast_ledger_tally(
      step integer NOT NULL REFERENCES holdfast_ledger_step, owner bigint NOT NULL,
      calls bigint NOT NULL DEFAULT 0, spent bigint NOT NULL DEFAULT 0,
      reserved bigint NOT NULL DEFAULT 0, dearest bigint NOT NULL DEFAULT 0,
      bought bigint NOT NULL DEFAULT 0, parked bigint NOT NULL DEFAULT 0,
      failed bigint NOT NULL DEFAULT 0, PRIMARY KEY (step, owner))""",
    """CREATE TABLE holdfast_ledger_blob(
      name bytea PRIMARY KEY CHECK (length(name) = 32), data bytea NOT NULL)""",
    """CREATE TABLE holdfast_ledger_slot(
      hash bytea PRIMARY KEY CHECK (length(hash) = 16),
      step integer NOT NULL REFERENCES holdfast_ledger_step, key text NOT NULL,
      inputs bytea NOT NULL, owner bigint, attempts integer NOT NULL, held bigint NOT NULL,
      status text CHECK (status IN ('bought', 'parked', 'failed')), answer bytea,
      blob bytea REFERENCES holdfast_ledger_blob, reason text, cost bigint, recorded_ms bigint,
      dead_letter boolean, crc bigint,
      CHECK ((status IS NULL) = (crc IS NULL)), CHECK (answer IS NULL OR blob IS NULL))""",
    """CREATE INDEX holdfast_ledger_slot_open ON holdfast_ledger_slot(owner, step)
      WHERE status IS NULL""",
    """CREATE INDEX holdfast_ledger_slot_dead ON holdfast_ledger_slot(step)
      WHERE dead_letter""",
)
_SECOND = (
    """CREATE TABLE holdfast_ledger_reuse(
      step integer PRIMARY KEY, answers bigint NOT NULL, saved bigint NOT NULL)""",
    """CREATE INDEX holdfast_ledger_slot_blob ON holdfast_ledger_slot(blob)
      WHERE blob IS NOT NULL""",
)
_FORMATS = (_FIRST, _SECOND)
"""What each format added. Only the last statement of one may wait for owners at work: two locks on
tables of theirs could be taken in another order than theirs."""
VERSION = len(_FORMATS)


@dataclass(frozen=True, slots=True)
class Meta:
    """What a ledger says of itself."""

    ledger: str
    version: int


def read_meta(sql: Sql) -> Meta | None:
    """Return what the ledger here says of itself; None if there is none."""
    # Not by to_regclass: it may answer from what this session knew before it waited for the lock.
    there = "SELECT 1 FROM pg_class WHERE relname = 'holdfast_ledger_meta' AND relkind = 'r'"
    if sql.one(f"{there} AND pg_table_is_visible(oid)") is None:
        return None
    row = sql.one("SELECT ledger, version FROM holdfast_ledger_meta")
    return None if row is None else Meta(*row)


def open_schema(server: Server, label: str, *, create: bool) -> Meta | None:
    """Find the ledger; if `create` allows, make it, or bring an older one up to date.

    Raises:
        StoreOlder: an older Holdfast made it, and `create` does not allow to change it.
        StoreNewer: a newer Holdfast made it.
        LedgerRefused: the server would not keep what it acknowledges, or cannot hold any text.
    """
    meta = server.transact(lambda sql: _checked(sql, label))
    if create and (meta is None or meta.version < VERSION):
        meta = server.transact(_make)
        crashpoint("postgres.schema.after")
    if meta is not None and meta.version > VERSION:
        raise StoreNewer(path=label, found=meta.version, known=VERSION)
    if meta is not None and meta.version < VERSION:
        raise StoreOlder(path=label, found=meta.version, known=VERSION)
    return meta


def _checked(sql: Sql, label: str) -> Meta | None:
    row = sql.one(
        "SELECT current_setting('fsync'), current_setting('server_encoding'), pg_is_in_recovery()"
    )
    fsync, encoding, standby = row or ("", "", False)
    if fsync != "on":
        what = "it runs with fsync=off and would forget recorded answers in a power cut"
        raise LedgerRefused(ledger=label, error=what)
    if encoding != "UTF8":
        raise LedgerRefused(ledger=label, error=f"the database's encoding is {encoding}, not UTF8")
    if standby:
        raise LedgerRefused(ledger=label, error="it is a standby and takes no writes")
    return read_meta(sql)


def _make(sql: Sql) -> Meta:
    """Make the tables that are missing, unless somebody else just did.

    One transaction. Crash before its end: all is as it was. Crash after: a whole ledger.
    """
    sql.one("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
    found = read_meta(sql)
    made = 0 if found is None else found.version
    if found is not None and made >= VERSION:
        return found
    for statement in chain.from_iterable(_FORMATS[made:]):
        sql.run(statement)
    meta = Meta(fresh_token() if found is None else found.ledger, VERSION)
    sql.run(
        "INSERT INTO holdfast_ledger_meta(ledger, version) VALUES (%s, %s)"
        " ON CONFLICT (one) DO UPDATE SET version = excluded.version",
        (meta.ledger, meta.version),
    )
    sql.rows("SELECT 1")  # every statement above has reached the server
    crashpoint("postgres.schema.before")
    return meta
