"""The tables, and how older ones become them. Explained in docs/internals/store.md.

The version stands in SQLite's `user_version`. `MIGRATIONS[n]` makes version n + 1 out of version
n, in one transaction. A released migration is never edited: a new one is appended.

A store file is complete or absent. It is made under a temporary name and linked to its own name
when its tables are durable, so an empty or foreign file under that name is damage, never taken
for a new store.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import apsw

from holdfast._base.files import (
    FILE_MODE,
    TEMPORARY_PREFIX,
    fsync_file,
    make_directories,
    os_errors,
)
from holdfast._base.ids import fresh_token
from holdfast.config import Config
from holdfast.errors import Damaged, HoldfastError, StoreNewer
from holdfast.store.rows import CLOSED_STATES, RunState
from holdfast.store.sqlite.connection import Database
from holdfast.store.sqlite.counts import COUNTS, KEPT

APPLICATION_ID = 0x484F4C44
"""`HOLD`: tells a Holdfast store from any other SQLite file."""

OFFSET_BITS = 40
"""A record's key is `shard << 40 | offset`: appends to a shard are neighbours in the tree. 2^40
offsets per shard and 2^23 shards fit into SQLite's 64 bits."""

_STATES = ", ".join(f"'{state}'" for state in RunState)

_RUNS = f"""
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE lease (
    resource TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL CHECK (epoch >= 1),
    owner TEXT NOT NULL,
    beat INTEGER NOT NULL CHECK (beat >= 0)
) STRICT, WITHOUT ROWID;

CREATE TABLE run (
    number INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    client TEXT NOT NULL,
    pipeline TEXT NOT NULL,
    fingerprint TEXT NOT NULL CHECK (json_valid(fingerprint)),
    segments INTEGER NOT NULL CHECK (segments >= 1),
    state TEXT NOT NULL CHECK (state IN ({_STATES})),
    error TEXT,
    inputs_bound INTEGER NOT NULL DEFAULT 0 CHECK (inputs_bound IN (0, 1)),
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE sender (
    run_id TEXT NOT NULL REFERENCES run (run_id),
    tbl TEXT NOT NULL,
    sender TEXT NOT NULL,
    position INTEGER NOT NULL CHECK (position >= 1),
    segment INTEGER NOT NULL CHECK (segment >= 1),
    whole INTEGER NOT NULL CHECK (whole IN (0, 1)),
    produced INTEGER NOT NULL CHECK (produced IN (0, 1)),
    announced INTEGER CHECK (announced >= 0),
    PRIMARY KEY (run_id, tbl, sender),
    UNIQUE (run_id, position)
) STRICT, WITHOUT ROWID;

CREATE TABLE chunk (
    run_id TEXT NOT NULL,
    tbl TEXT NOT NULL,
    sender TEXT NOT NULL,
    ordinal INTEGER NOT NULL CHECK (ordinal >= 1),
    kind TEXT NOT NULL CHECK (kind IN ('blob', 'range', 'files')),
    location TEXT NOT NULL,
    size INTEGER NOT NULL CHECK (size >= 0),
    checksum TEXT NOT NULL,
    format TEXT NOT NULL,
    start INTEGER NOT NULL CHECK (start >= 0),
    stop INTEGER NOT NULL CHECK (stop >= start),
    header TEXT NOT NULL,
    file_size INTEGER NOT NULL CHECK (file_size >= 0),
    mtime_ns INTEGER NOT NULL,
    PRIMARY KEY (run_id, tbl, sender, ordinal),
    FOREIGN KEY (run_id, tbl, sender) REFERENCES sender (run_id, tbl, sender)
) STRICT;
CREATE INDEX chunk_by_blob ON chunk (location) WHERE kind = 'blob';

CREATE TABLE condemned (
    blob TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
"""

_WORK = """
CREATE TABLE work (
    work_id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES run (run_id),
    kind TEXT NOT NULL CHECK (kind IN ('batch', 'series')),
    segment INTEGER NOT NULL CHECK ((kind = 'batch') = (segment >= 1)),
    name TEXT NOT NULL CHECK ((kind = 'series') = (name <> '')),
    number INTEGER NOT NULL CHECK (number >= 1),
    topic_offset INTEGER NOT NULL CHECK (topic_offset >= 0),
    committed_attempt INTEGER,
    series_columns TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(series_columns)),
    pieces INTEGER NOT NULL DEFAULT 0 CHECK (pieces >= 0),
    rows_read INTEGER NOT NULL DEFAULT 0 CHECK (rows_read >= 0),
    bad_rows INTEGER NOT NULL DEFAULT 0 CHECK (bad_rows >= 0),
    UNIQUE (run_id, segment, number),
    FOREIGN KEY (work_id, committed_attempt) REFERENCES attempt (work_id, attempt)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX work_by_series ON work (run_id, name) WHERE kind = 'series';

CREATE TABLE attempt (
    work_id TEXT NOT NULL REFERENCES work (work_id),
    attempt INTEGER NOT NULL CHECK (attempt >= 1),
    outcome TEXT NOT NULL CHECK (outcome IN ('started', 'failed', 'committed')),
    error TEXT CHECK ((error IS NOT NULL) = (outcome = 'failed')),
    PRIMARY KEY (work_id, attempt)
) STRICT, WITHOUT ROWID;

CREATE TABLE planned (
    run_id TEXT NOT NULL,
    segment INTEGER NOT NULL,
    tbl TEXT NOT NULL,
    sender TEXT NOT NULL,
    ordinal INTEGER NOT NULL,
    work_id TEXT NOT NULL REFERENCES work (work_id),
    position INTEGER NOT NULL CHECK (position >= 1),
    PRIMARY KEY (run_id, segment, tbl, sender, ordinal),
    UNIQUE (work_id, position),
    FOREIGN KEY (run_id, tbl, sender, ordinal) REFERENCES chunk (run_id, tbl, sender, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE applied (
    run_id TEXT NOT NULL,
    segment INTEGER NOT NULL,
    tbl TEXT NOT NULL,
    sender TEXT NOT NULL,
    ordinal INTEGER NOT NULL,
    work_id TEXT REFERENCES work (work_id),
    PRIMARY KEY (run_id, segment, tbl, sender, ordinal),
    FOREIGN KEY (run_id, tbl, sender, ordinal) REFERENCES chunk (run_id, tbl, sender, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE barrier (
    run_id TEXT NOT NULL REFERENCES run (run_id),
    segment INTEGER NOT NULL CHECK (segment >= 1),
    PRIMARY KEY (run_id, segment)
) STRICT, WITHOUT ROWID;

CREATE TABLE file (
    work_id TEXT NOT NULL REFERENCES work (work_id),
    position INTEGER NOT NULL CHECK (position >= 1),
    output TEXT NOT NULL,
    path TEXT NOT NULL,
    size INTEGER NOT NULL CHECK (size >= 0),
    checksum TEXT NOT NULL,
    rows INTEGER NOT NULL CHECK (rows >= 0),
    PRIMARY KEY (work_id, position)
) STRICT, WITHOUT ROWID;

CREATE TABLE piece (
    run_id TEXT NOT NULL REFERENCES run (run_id),
    series TEXT NOT NULL,
    ordinal INTEGER NOT NULL CHECK (ordinal >= 1),
    work_id TEXT NOT NULL,
    position INTEGER NOT NULL,
    final INTEGER NOT NULL CHECK (final IN (0, 1)),
    PRIMARY KEY (run_id, series, ordinal),
    UNIQUE (work_id, position),
    FOREIGN KEY (work_id, position) REFERENCES file (work_id, position)
) STRICT, WITHOUT ROWID;

CREATE TABLE export (
    run_id TEXT NOT NULL REFERENCES run (run_id),
    series TEXT NOT NULL,
    checksum TEXT NOT NULL,
    PRIMARY KEY (run_id, series)
) STRICT, WITHOUT ROWID;
"""

_TOPICS = f"""
CREATE TABLE topic (
    topic_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    partitions INTEGER NOT NULL CHECK (partitions >= 1)
) STRICT;

CREATE TABLE shard (
    shard_id INTEGER PRIMARY KEY CHECK (shard_id BETWEEN 1 AND {(1 << 63 - OFFSET_BITS) - 1}),
    topic_id INTEGER NOT NULL REFERENCES topic (topic_id),
    partition INTEGER NOT NULL CHECK (partition >= 0),
    first_offset INTEGER NOT NULL DEFAULT 0 CHECK (first_offset >= 0),
    next_offset INTEGER NOT NULL DEFAULT 0
        CHECK (next_offset BETWEEN first_offset AND {(1 << OFFSET_BITS) - 1}),
    UNIQUE (topic_id, partition)
) STRICT;

CREATE TABLE record (
    place INTEGER PRIMARY KEY,
    value BLOB NOT NULL,
    record_id TEXT CHECK (record_id <> ''),
    record_key BLOB,
    headers TEXT
) STRICT;
CREATE UNIQUE INDEX record_by_id ON record (place >> {OFFSET_BITS}, record_id)
    WHERE record_id IS NOT NULL;

CREATE TABLE topic_group (
    topic_id INTEGER NOT NULL REFERENCES topic (topic_id),
    grp TEXT NOT NULL,
    PRIMARY KEY (topic_id, grp)
) STRICT, WITHOUT ROWID;

CREATE TABLE group_offset (
    shard_id INTEGER NOT NULL REFERENCES shard (shard_id),
    grp TEXT NOT NULL,
    next_offset INTEGER NOT NULL CHECK (next_offset >= 0),
    PRIMARY KEY (shard_id, grp)
) STRICT, WITHOUT ROWID;
"""

_CLIENTS = """
CREATE INDEX run_by_client ON run (client, number);

CREATE TABLE client (
    client TEXT PRIMARY KEY CHECK (client <> ''),
    weight INTEGER NOT NULL CHECK (weight >= 1),
    quotas TEXT NOT NULL CHECK (json_valid(quotas)),
    created_ms INTEGER NOT NULL,
    revoked INTEGER NOT NULL CHECK (revoked IN (0, 1))
) STRICT, WITHOUT ROWID;

CREATE TABLE token (
    token_id TEXT PRIMARY KEY,
    client TEXT NOT NULL REFERENCES client (client),
    checksum TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    left_ms INTEGER CHECK (left_ms >= 0)
) STRICT, WITHOUT ROWID;
CREATE INDEX token_by_client ON token (client);
CREATE INDEX token_in_grace ON token (left_ms) WHERE left_ms > 0;

CREATE TABLE opening (
    run_id TEXT PRIMARY KEY REFERENCES run (run_id),
    client TEXT NOT NULL REFERENCES client (client),
    key TEXT NOT NULL,
    declaration TEXT NOT NULL CHECK (json_valid(declaration)),
    UNIQUE (client, key)
) STRICT, WITHOUT ROWID;
"""

_NOTICES = """
CREATE INDEX run_by_state ON run (state, number) WHERE state <> 'SWEPT';

CREATE TABLE webhook (
    client TEXT PRIMARY KEY CHECK (client <> ''),
    url TEXT NOT NULL CHECK (url <> '')
) STRICT, WITHOUT ROWID;

CREATE TABLE notice (
    number INTEGER PRIMARY KEY,
    notice_id TEXT NOT NULL UNIQUE,
    run_id TEXT NOT NULL REFERENCES run (run_id),
    kind TEXT NOT NULL CHECK (kind IN ('run.done', 'run.failed', 'run.cancelled', 'run.abandoned')),
    url TEXT NOT NULL,
    body TEXT NOT NULL CHECK (json_valid(body)),
    state TEXT NOT NULL CHECK (state IN ('waiting', 'sent', 'dead')),
    attempts INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    failures INTEGER NOT NULL DEFAULT 0 CHECK (failures BETWEEN 0 AND attempts),
    due_ms INTEGER NOT NULL CHECK (due_ms >= 0),
    error TEXT,
    created_ms INTEGER NOT NULL,
    UNIQUE (run_id, kind)
) STRICT;
CREATE INDEX notice_by_due ON notice (due_ms, number) WHERE state = 'waiting';

CREATE TABLE elapsed (
    name TEXT PRIMARY KEY,
    ms INTEGER NOT NULL CHECK (ms >= 0)
) STRICT, WITHOUT ROWID;

CREATE TABLE watch (
    run_id TEXT PRIMARY KEY REFERENCES run (run_id),
    mark TEXT NOT NULL,
    since_ms INTEGER NOT NULL CHECK (since_ms >= 0),
    has_queues INTEGER NOT NULL DEFAULT 1 CHECK (has_queues IN (0, 1)),
    is_cleared INTEGER NOT NULL DEFAULT 0 CHECK (is_cleared IN (0, 1))
) STRICT, WITHOUT ROWID;

CREATE TABLE external (
    run_id TEXT PRIMARY KEY REFERENCES run (run_id),
    producer TEXT NOT NULL CHECK (producer <> ''),
    series TEXT CHECK (json_valid(series))
) STRICT, WITHOUT ROWID;

CREATE TABLE external_total (
    run_id TEXT NOT NULL REFERENCES external (run_id),
    series TEXT NOT NULL,
    total INTEGER NOT NULL CHECK (total >= 0),
    PRIMARY KEY (run_id, series)
) STRICT, WITHOUT ROWID;

CREATE TABLE external_piece (
    run_id TEXT NOT NULL,
    series TEXT NOT NULL,
    ordinal INTEGER NOT NULL CHECK (ordinal >= 1),
    blob TEXT NOT NULL,
    size INTEGER NOT NULL CHECK (size >= 0),
    checksum TEXT NOT NULL,
    rows INTEGER CHECK (rows >= 0),
    PRIMARY KEY (run_id, series, ordinal),
    FOREIGN KEY (run_id, series) REFERENCES external_total (run_id, series)
) STRICT, WITHOUT ROWID;
"""

_FORWARDS = """
CREATE TABLE run_shards (
    run_id TEXT PRIMARY KEY REFERENCES run (run_id),
    shards TEXT NOT NULL CHECK (json_valid(shards))
) STRICT, WITHOUT ROWID;

CREATE TABLE owed_end (
    run_id TEXT NOT NULL REFERENCES run_shards (run_id),
    tbl TEXT NOT NULL,
    sender TEXT NOT NULL,
    PRIMARY KEY (run_id, tbl, sender),
    FOREIGN KEY (run_id, tbl, sender) REFERENCES sender (run_id, tbl, sender)
) STRICT, WITHOUT ROWID;
"""

_WATCHING = f"""
INSERT INTO watch (run_id, mark, since_ms)
SELECT run_id, state, COALESCE((SELECT ms FROM elapsed WHERE name = 'delivery'), 0) FROM run
WHERE state IN ({", ".join(f"'{state}'" for state in sorted(CLOSED_STATES))})
ON CONFLICT DO UPDATE SET mark = excluded.mark, since_ms = excluded.since_ms
WHERE mark <> excluded.mark;
CREATE INDEX watch_by_mark ON watch (mark, has_queues, since_ms) WHERE is_cleared = 0;
"""  # noqa: S608 - constants only
"""From here on whoever ends a run writes its mark, so nobody looks for runs that ended."""

_LOSSES = """
ALTER TABLE attempt ADD COLUMN lost INTEGER NOT NULL DEFAULT 0
    CHECK (lost IN (0, 1) AND (lost = 0 OR outcome = 'failed'));
"""

MIGRATIONS: tuple[str, ...] = (
    _RUNS + _WORK + _TOPICS,
    _CLIENTS + _NOTICES,
    COUNTS,
    _FORWARDS,
    _WATCHING,
    KEPT,
    _LOSSES,
)


def version_of(connection: apsw.Connection) -> int:
    """Return how many migrations a database has seen; 0 for an empty one."""
    return int(connection.pragma("user_version"))


def is_current(connection: apsw.Connection, *, path: str) -> bool:
    """Tell whether a store has the newest version; False: it is to be migrated.

    Raises:
        Damaged: the file is no Holdfast store.
        StoreNewer: a newer Holdfast wrote it.
    """
    version = version_of(connection)
    if version < 1 or connection.pragma("application_id") != APPLICATION_ID:
        raise Damaged(path=path, what="the file is empty or is no Holdfast store")
    if version > len(MIGRATIONS):
        raise StoreNewer(path=path, found=version, known=len(MIGRATIONS))
    return version == len(MIGRATIONS)


def migrate(connection: apsw.Connection) -> None:
    """Bring the database to the newest version, in an open transaction. An empty one is made."""
    version = version_of(connection)
    for script in MIGRATIONS[version:]:
        connection.execute(script)
    if version == 0:
        connection.pragma("application_id", APPLICATION_ID)
        connection.execute("INSERT INTO meta VALUES ('store_id', ?)", (fresh_token(),))
    connection.pragma("user_version", len(MIGRATIONS))


def create_file(path: Path, config: Config) -> None:
    """Make the store file `path`, complete and durable, unless somebody else does it first.

    1. The tables are made under a temporary name, and copied out of the log of that name, which
       the link would leave behind. Crash before the link: temporary files remain, which the next
       opening removes.
    2. `link(2)` gives it its name, unless that is taken.
    3. The directory is fsynced. Crash before: the store is there as a whole, or not at all.
    """
    make_directories(path.parent)
    temporary = path.with_name(f"{_temporary_prefix(path)}{fresh_token()}")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))
    database = Database.file(temporary, config)
    database.label = str(path)
    try:
        with database.transaction() as connection:
            migrate(connection)
        database.gather()
        database.close()
        os.link(temporary, path)
    except (HoldfastError, FileExistsError, FileNotFoundError):
        # The loser of two creators finds the winner's store, and perhaps its own file swept.
        if not path.exists():
            raise
    finally:
        database.close()
        for leftover in path.parent.glob(f"{temporary.name}*"):
            # Its log too: on a full disk each try would leave one, and leave less room.
            leftover.unlink(missing_ok=True)
    fsync_file(path.parent)


def sweep_temporary(path: Path) -> None:
    """Remove what creators of `path` that were killed left behind. `path` exists."""
    with os_errors(path):
        for leftover in path.parent.glob(f"{_temporary_prefix(path)}*"):
            with suppress(FileNotFoundError):
                leftover.unlink()


def _temporary_prefix(path: Path) -> str:
    return f"{TEMPORARY_PREFIX}{path.name}-"
