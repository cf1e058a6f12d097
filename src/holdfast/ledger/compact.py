"""Compaction: sealed segments into settled files, and small settled files into larger ones.

Format: docs/internals/ledger.md#compaction. Order, each time: the new file is durable; one
transaction switches to it and raises the generation; the old files go. Invariants:

* At every moment an outcome is found in exactly one place, its segment or a settled file.
* One process compacts at a time: it holds the lock on `compact.lock`.
* A segment that SQLite does not know is removed only if each of its outcomes is settled.

Crash points: `ledger.parquet.after`, `ledger.switch.before`, `ledger.switch.after`,
`ledger.delete.after`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import apsw

from holdfast._base import frames
from holdfast._base.crashpoint import crashpoint
from holdfast._base.ids import fresh_token
from holdfast.errors import Damaged
from holdfast.ledger.columns import table_of
from holdfast.ledger.contract import HASH_BYTES
from holdfast.ledger.database import Database, row_crc, rows_of
from holdfast.ledger.layout import Layout
from holdfast.ledger.merging import merged
from holdfast.ledger.segment import read_payloads, read_segment
from holdfast.ledger.settled import SettledFile, SettledTable, write_settled

SEALED_BYTES = 4 << 20
SEALED_COUNT = 16
"""Segments are compacted when so many bytes or files wait. Less: many small settled files. More:
longer index tables, read whole when the ledger is opened."""

ROUND_BYTES = 8 << 20
"""Most bytes of segments taken in one round. Larger: as objects they take several times as much
memory, which the process keeps. Smaller: more settled files to merge."""

MERGE_FILES = 8
"""So many settled files of one level become one of the next: a lookup then searches at most seven
files a level, and an outcome is rewritten once a level."""


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A sealed segment as SQLite knows it."""

    id: int
    name: str
    sealed: int


@dataclass(frozen=True, slots=True)
class SettledRow:
    """A settled file as SQLite knows it."""

    id: int
    name: str
    level: int
    rows: int
    layout: Layout


def settled_rows(database: Database) -> tuple[int, list[SettledRow]]:
    """Return the generation and its settled files, newest first."""
    with database.reading() as connection:
        generation = database.meta("generation")
        rows = rows_of(
            connection,
            "SELECT id, name, level, rows, bytes, layout, crc FROM settled ORDER BY id DESC",
        )
    for row in rows:
        if row[-1] != row_crc(*row[:-1]):
            raise Damaged(path=database.label, what=f"the row of settled file {row[0]} is altered")
    return generation, [
        SettledRow(id_, name, level, count, Layout.from_text(layout))
        for id_, name, level, count, _, layout, _ in rows
    ]


def refresh(table: SettledTable, database: Database, directory: Path) -> None:
    """Make `table` show the settled files of the current generation."""
    while True:
        generation, rows = settled_rows(database)
        try:
            table.show(generation, {row.name: row.layout for row in rows}, directory)
        except FileNotFoundError as error:
            if database.meta("generation") == generation:
                what = "a settled file is missing"
                raise Damaged(path=str(error.filename), what=what) from error
            continue
        return


def waiting(database: Database) -> list[SegmentRow]:
    """Return the sealed segments, oldest first."""
    with database.reading() as connection:
        rows = rows_of(
            connection,
            "SELECT id, name, sealed FROM segment WHERE sealed IS NOT NULL ORDER BY id",
        )
    return [SegmentRow(*row) for row in rows]


def due(segments: Sequence[SegmentRow]) -> bool:
    """Tell whether it is worth compacting."""
    return len(segments) >= SEALED_COUNT or sum(s.sealed for s in segments) >= SEALED_BYTES


def round_of(segments: Sequence[SegmentRow]) -> list[SegmentRow]:
    """Return the segments of one round: at least one, and no more bytes than a round may have."""
    chosen: list[SegmentRow] = []
    total = 0
    for segment in segments:
        if chosen and total + segment.sealed > ROUND_BYTES:
            break
        chosen.append(segment)
        total += segment.sealed
    return chosen


def bind(
    database: Database, connection: apsw.Connection, name: str, level: int, layout: Layout
) -> None:
    """Make a settled file count, inside a transaction, and raise the generation."""
    rows = sum(group.rows for group in layout.groups)
    connection.execute(
        "INSERT INTO settled VALUES(NULL,?,?,?,?,?,0)",
        (name, level, rows, layout.size, layout.to_text()),
    )
    id_ = connection.last_insert_rowid()
    crc = row_crc(id_, name, level, rows, layout.size, layout.to_text())
    connection.execute("UPDATE settled SET crc=? WHERE id=?", (crc, id_))
    database.set_meta("generation", database.meta("generation") + 1)


class Compactor:
    """Compacts one ledger's files. The caller holds the lock."""

    def __init__(self, database: Database, segments: Path, settled: Path) -> None:
        self._database, self._segments, self._settled = database, segments, settled

    def compact(self, chosen: Sequence[SegmentRow]) -> bool:
        """Move the outcomes of sealed segments into one settled file. Returns whether any moved.

        1. The Parquet file is durable. Crash after: an orphan, swept by the next round.
        2. One transaction binds it, forgets slots and segments, raises the generation. Crash
           before: as if nothing happened. Crash after: the segments are swept later.
        3. The segments are removed.
        """
        held = {segment: self._outcomes(segment) for segment in chosen}
        chosen = [segment for segment in chosen if held[segment] is not None]
        outcomes = [outcome for found in held.values() for outcome in found or ()]
        name = f"{fresh_token()}.parquet"
        layout = write_settled(self._settled / name, [table_of(outcomes)]) if outcomes else None
        if chosen:
            self._switch(name, 0, layout, segments=chosen)
        return bool(chosen)

    def _switch(
        self,
        name: str,
        level: int,
        layout: Layout | None,
        *,
        segments: Sequence[SegmentRow] = (),
        files: Sequence[SettledRow] = (),
    ) -> None:
        crashpoint("ledger.parquet.after")
        with self._database.transaction() as connection:
            for segment in segments:
                connection.execute("DELETE FROM slot WHERE segment=?", (segment.id,))
                connection.execute("DELETE FROM segment WHERE id=?", (segment.id,))
            for file in files:
                connection.execute("DELETE FROM settled WHERE id=?", (file.id,))
            if layout is not None:
                bind(self._database, connection, name, level, layout)
            crashpoint("ledger.switch.before")
        crashpoint("ledger.switch.after")
        old = [self._segments / segment.name for segment in segments]
        for path in old + [self._settled / file.name for file in files]:
            path.unlink(missing_ok=True)
            crashpoint("ledger.delete.after")

    def _outcomes(self, segment: SegmentRow) -> list[bytes] | None:
        """Return a segment's outcomes as they stand there; None if rows do not know them all yet.

        That is so while their owner has still to show them, or died before it could: removing the
        segment would lose them, so it stays until its owner was read out.
        """
        path = self._segments / segment.name
        with self._database.reading() as connection:
            wanted = dict(
                connection.execute("SELECT sequence, hash FROM slot WHERE segment=?", (segment.id,))
            )
        found = read_payloads(path, ledger_id=self._database.ledger_id, at_least=segment.sealed)
        outcomes: list[bytes] = []
        for sequence, (_, outcome) in enumerate(found, 1):
            hash_ = wanted.pop(sequence, None)
            if hash_ is None:
                return None
            if hash_ != outcome[:HASH_BYTES]:
                raise Damaged(path=str(path), what=f"record {sequence} is another's")
            outcomes.append(outcome)
        if wanted:
            raise Damaged(path=str(path), what=f"{len(wanted)} recorded outcome(s) are missing")
        return outcomes

    def merge(self) -> bool:
        """Make one larger settled file of many small ones. Returns whether there was a need.

        The same three steps as `compact`, with settled files in place of segments.
        """
        _, rows = settled_rows(self._database)
        levels = sorted({row.level for row in rows})
        for level in levels:
            chosen = [row for row in rows if row.level == level]
            if len(chosen) >= MERGE_FILES:
                self._merge(chosen, level + 1)
                return True
        return False

    def _merge(self, chosen: Sequence[SettledRow], level: int) -> None:
        files = [SettledFile(self._settled / row.name, row.layout) for row in chosen]
        name = f"{fresh_token()}.parquet"
        try:
            pieces = merged(files, sum(row.rows for row in chosen))
            layout = write_settled(self._settled / name, pieces)
        finally:
            for file in files:
                file.close()
        self._switch(name, level, layout, files=chosen)

    def sweep(self) -> None:
        """Remove files that no row names: what a crash between the steps left behind.

        Raises:
            Damaged: an unknown segment holds an outcome that is not settled. SQLite has lost
                transactions; removing the file would buy that answer again.
        """
        with self._database.reading() as connection:
            settled = {name for (name,) in connection.execute("SELECT name FROM settled")}
        for path in self._settled.iterdir():
            if path.name not in settled:
                path.unlink(missing_ok=True)
        table = SettledTable()
        refresh(table, self._database, self._settled)
        try:
            for path in self._segments.iterdir():
                self._sweep_segment(path, table)
        finally:
            table.close()

    def _sweep_segment(self, path: Path, table: SettledTable) -> None:
        with self._database.reading() as connection:
            known = connection.execute("SELECT 1 FROM segment WHERE name=?", (path.name,)).get
            token = path.name.partition("-")[0]
            lives = connection.execute("SELECT 1 FROM owner WHERE token=?", (token,)).get
        if known or lives or not path.exists():
            return
        # Nothing but a torn header: its owner died while it made the file.
        if frames.scan(path.read_bytes(), path=str(path)).frames:
            placed_all = read_segment(path, ledger_id=self._database.ledger_id)
            hashes = {placed.entry.outcome.slot.hash for placed in placed_all}
            if hashes - set(table.find(hashes)):
                what = "it holds outcomes that the ledger's database has lost"
                raise Damaged(path=str(path), what=what)
        path.unlink(missing_ok=True)
