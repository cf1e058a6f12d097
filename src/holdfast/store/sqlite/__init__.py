"""The store in one SQLite file, by `apsw`. Tables: docs/internals/store.md.

Fills `holdfast.store.contract.Store`. `SqliteStore.memory()` is the fake: the same code and the
same transactions on a database in memory.
"""

from __future__ import annotations

from pathlib import Path

from holdfast._base.clock import Clock, SystemClock
from holdfast._base.files import os_errors
from holdfast._base.sqlite import require_sqlite
from holdfast.config import DEFAULT, Config
from holdfast.errors import Damaged, StoreOlder
from holdfast.store.sqlite import schema
from holdfast.store.sqlite.base import rows_of
from holdfast.store.sqlite.clients import ClientPart
from holdfast.store.sqlite.connection import Database
from holdfast.store.sqlite.counts import MISCOUNTED
from holdfast.store.sqlite.external import ExternalPart
from holdfast.store.sqlite.forwards import ForwardPart
from holdfast.store.sqlite.intake import IntakePart
from holdfast.store.sqlite.leases import LeasePart
from holdfast.store.sqlite.notices import NoticePart
from holdfast.store.sqlite.runs import RunPart
from holdfast.store.sqlite.schema import (
    create_file,
    is_current,
    migrate,
    sweep_temporary,
    version_of,
)
from holdfast.store.sqlite.topics import TopicPart
from holdfast.store.sqlite.watch import WatchPart
from holdfast.store.sqlite.work import WorkPart

__all__ = ["SqliteStore"]


class SqliteStore(
    LeasePart,
    IntakePart,
    WorkPart,
    RunPart,
    TopicPart,
    NoticePart,
    WatchPart,
    ExternalPart,
    ClientPart,
    ForwardPart,
):
    """The root of truth in one file. Safe for threads and for several processes at once.

    Made by `open` or `memory`. Not usable in a forked child: open it there, or spawn the child.
    """

    @classmethod
    def open(
        cls, path: Path | str, config: Config = DEFAULT, clock: Clock | None = None
    ) -> SqliteStore:
        """Open the store file `path`; make it, and its directory, if it is missing.

        Raises:
            DependencyMissing: the SQLite at hand is known to lose data.
            Damaged: the file is no store, or is unreadable.
            StoreNewer: a newer Holdfast wrote it.
            DiskFull, StorageFailed: the machine refused.
        """
        require_sqlite()
        path = Path(path)
        with os_errors(path):
            if not path.exists():
                create_file(path, config)
            sweep_temporary(path)
            database = Database.file(path, config)
        with database.reading() as connection:
            current = is_current(connection, path=database.label)
        if not current:
            with database.transaction() as connection:
                migrate(connection)
        return cls(database, clock or SystemClock(), config)

    @classmethod
    def look(cls, path: Path | str, config: Config = DEFAULT) -> SqliteStore:
        """Open the store file `path` for questions: nothing is made, removed or migrated.

        Whoever asks holds no lock, so a migration could meet a process of an older Holdfast.

        Raises:
            StoreOlder: it is to be migrated first.
            DependencyMissing, Damaged, StoreNewer, StorageFailed: see `open`.
        """
        require_sqlite()
        with os_errors(path):
            database = Database.file(Path(path), config)
        with database.reading() as connection:
            current = is_current(connection, path=database.label)
            found, known = version_of(connection), len(schema.MIGRATIONS)
        if not current:
            database.close()
            raise StoreOlder(path=database.label, found=found, known=known)
        return cls(database, SystemClock(), config)

    @classmethod
    def memory(cls, config: Config = DEFAULT, clock: Clock | None = None) -> SqliteStore:
        """Make an empty store in memory, for tests. Nothing of it outlives `close`."""
        require_sqlite()
        database = Database.memory(config)
        with database.transaction() as connection:
            migrate(connection)
        return cls(database, clock or SystemClock(), config)

    def store_id(self) -> str:
        """Return the random name this store was given when it was created."""
        with self._database.reading() as connection:
            sql = "SELECT value FROM meta WHERE name = 'store_id'"
            return str(connection.execute(sql).fetchall()[0][0])

    def check(self) -> None:
        """Read everything once. Raises Damaged if the store's own checks fail."""
        with self._database.reading() as connection:
            complaints = [text for (text,) in connection.execute("PRAGMA quick_check")]
            orphans = connection.execute("PRAGMA foreign_key_check").fetchall()
            miscounted = rows_of(connection, MISCOUNTED)
        if complaints != ["ok"]:
            what = f"the store fails its check ({'; '.join(complaints)})"
            raise Damaged(path=self._database.label, what=what)
        if orphans:
            tables = ", ".join(sorted({str(row[0]) for row in orphans}))
            raise Damaged(path=self._database.label, what=f"rows without their parents: {tables}")
        if miscounted:
            names = ", ".join(sorted({name for (name,) in miscounted}))
            raise Damaged(path=self._database.label, what=f"counts and rows differ: {names}")

    def close(self) -> None:
        """Let go of connections. What was committed stays."""
        self._database.close()
