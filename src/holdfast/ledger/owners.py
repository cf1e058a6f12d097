"""Owners and segments in SQLite, and the reading-out of dead ones.

Format: docs/internals/ledger.md#sqlite.

Invariant: a dead owner's open slots are in doubt only after each of its segments was read to its
last valid frame, by the one process that holds its lock, in the transaction that says so.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast._base.files import FILE_MODE, fsync_file, os_errors
from holdfast.errors import Damaged
from holdfast.ledger import slots
from holdfast.ledger.database import Database, row_crc, rows_of
from holdfast.ledger.owner import lock_dead
from holdfast.ledger.segment import Placed, read_segment


def register(database: Database, token: str, pid: int, started_ms: int) -> int:
    """Add an owner whose lock is held. Returns its number, which is never given again."""
    with database.transaction() as connection:
        connection.execute("INSERT INTO owner VALUES(NULL,?,?,?,0)", (token, pid, started_ms))
        owner = connection.last_insert_rowid()
        crc = row_crc(owner, token, pid, started_ms)
        connection.execute("UPDATE owner SET crc=? WHERE id=?", (crc, owner))
    return owner


def register_segment(database: Database, owner: int, name: str) -> int:
    """Add a segment whose file is durable. Returns its number."""
    with database.transaction() as connection:
        connection.execute("INSERT INTO segment VALUES(NULL,?,?,NULL,0)", (owner, name))
        segment = connection.last_insert_rowid()
        crc = row_crc(segment, owner, name, None)
        connection.execute("UPDATE segment SET crc=? WHERE id=?", (crc, segment))
    return segment


def seal_segment(database: Database, segment: int, end: int) -> None:
    """Say how long a segment is; nothing is appended to it any more."""
    with database.transaction() as connection:
        slots.seal(connection, segment, end)


def all_of(database: Database) -> list[int]:
    """Return every registered owner."""
    with database.reading() as connection:
        return [owner for (owner,) in connection.execute("SELECT id FROM owner ORDER BY id")]


def _token(database: Database, owner: int) -> str | None:
    with database.reading() as connection:
        found = connection.execute("SELECT token FROM owner WHERE id=?", (owner,)).fetchone()
    return None if found is None else str(found[0])


def reap(database: Database, root: Path, owner: int) -> bool:
    """Read out an owner if it is dead. Returns whether it is dead, or gone already.

    1. Its lock is taken: it is dead, and nobody else reads it out.
    2. Its segments are made durable and read to their last valid frame: it may have been killed
       between a write and its fsync, and what is recorded as settled must not go in a power cut.
    3. One transaction records what they hold and leaves its other open slots in doubt. Crash
       before: the next asker begins at 1. Crash after: only the lock file is left.
    4. The lock file goes.
    """
    token = _token(database, owner)
    if token is None:
        return True
    try:
        lock = lock_dead(root / "owners", token)
    except Damaged:
        if _token(database, owner) is None:
            return True  # somebody else has just read it out and removed the file
        raise
    if lock is None:
        return False
    with lock:
        if _token(database, owner) is not None:
            slots.reap(database, owner, list(_recorded_by(database, root, owner)))
        lock.release(remove=True)
    return True


def _recorded_by(database: Database, root: Path, owner: int) -> Iterator[tuple[int, Placed]]:
    with database.reading() as connection:
        segments = rows_of(
            connection,
            "SELECT id, name, coalesce(sealed, 0),"
            " (SELECT coalesce(max(position + length), 0) FROM slot WHERE segment = segment.id)"
            " FROM segment WHERE owner=? ORDER BY id",
            (owner,),
        )
        change = database.meta("change")
    for segment, name, sealed, known in segments:
        path = root / "segments" / name
        at_least = max(sealed, known)
        with os_errors(path), suppress(FileNotFoundError):  # which is named when it is read
            fsync_file(path)
        for placed in read_segment(path, ledger_id=database.ledger_id, at_least=at_least):
            if placed.entry.change > change:
                what = f"it has lost transactions: {path.name} has seen later ones"
                raise Damaged(path=database.label, what=what)
            yield segment, placed


def sweep_locks(database: Database, directory: Path) -> None:
    """Remove the lock files of owners that died before they were registered or after their end."""
    with database.reading() as connection:
        tokens = {token for (token,) in connection.execute("SELECT token FROM owner")}
    for path in directory.glob("*.lock"):
        if path.stem in tokens:
            continue
        try:
            lock = lock_dead(directory, path.stem)
        except Damaged:
            continue  # removed by somebody else
        if lock is not None:
            with database.reading() as connection:
                row = connection.execute("SELECT 1 FROM owner WHERE token=?", (path.stem,)).get
            lock.release(remove=row is None)


@contextmanager
def try_lock(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold an exclusive lock on a file for the block, or say that somebody else does."""
    with os_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
