"""Taking settled outcomes out of a ledger in files: `holdfast calls retry` and `forget`.

A slot whose outcome was taken out was never asked: the next job asks it anew, with the same
idempotency key. Settled files never change, so a file that holds such outcomes is written again
without them. Steps' counters follow; what was spent stays spent.

Invariant: an outcome is in its settled file or it is out, for every reader, by one transaction.

Crash points: `calls.rewrite.after`, `calls.drop.before`, `calls.drop.after`, `calls.delete.after`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pyarrow as pa
import pyarrow.compute as pc

from holdfast._base.crashpoint import crashpoint
from holdfast._base.ids import fresh_token
from holdfast.errors import LedgerInUse
from holdfast.ledger import steps
from holdfast.ledger.books import Choice, SlotState
from holdfast.ledger.budget import Sums
from holdfast.ledger.columns import SCHEMA
from holdfast.ledger.compact import (
    Compactor,
    SettledRow,
    bind,
    round_of,
    settled_rows,
    waiting,
)
from holdfast.ledger.contract import Status
from holdfast.ledger.database import rows_of
from holdfast.ledger.layout import Layout
from holdfast.ledger.owners import try_lock
from holdfast.ledger.segment import read_segment
from holdfast.ledger.settled import SettledFile, write_settled

if TYPE_CHECKING:
    from holdfast.ledger.file_books import FileBooks


@dataclass(slots=True)
class _Rewritten:
    """A settled file and what stands for it: another one, or nothing if all of it goes."""

    old: SettledRow
    name: str = ""
    layout: Layout | None = None
    dropped: list[bytes] = field(default_factory=list)
    counts: Counter[tuple[int, str]] = field(default_factory=Counter)


def drop(books: FileBooks, choice: Choice) -> int:
    """Take the chosen outcomes out of the ledger. Returns how many.

    1. Everything sealed is compacted, so that outcomes stand in settled files.
    2. Files that hold chosen outcomes are written again without them, durable. Crash after:
       nothing has happened; the new files are orphans, which the next compaction sweeps.
    3. One transaction puts the new files in the old ones' place, takes the outcomes from the
       steps' counters and from the dead letters, and raises the generation, so that a claim by
       somebody who read the old files is not granted. Crash after: it has happened.
    4. The old files go. Crash before: the next compaction sweeps them.

    Raises:
        LedgerInUse: a process that still lives holds some of them in its own segment.
    """
    root, database = books.path, books.database
    with try_lock(root / "compact.lock", wait=True):
        compactor = Compactor(database, root / "segments", root / "settled")
        while (sealed := waiting(database)) and compactor.compact(round_of(sealed)):
            pass
        _refuse_held(books, choice)
        rewritten = list(_rewrite(books, choice))
        known = set(books.chosen_steps(choice))
        crashpoint("calls.rewrite.after")
        with database.transaction() as connection:
            count = _drop_in_doubt(connection, choice, known)
            for one in rewritten:
                connection.execute("DELETE FROM settled WHERE id=?", (one.old.id,))
                if one.layout is not None:
                    bind(database, connection, one.name, one.old.level, one.layout)
                _forget(connection, one)
            database.set_meta("generation", database.meta("generation") + 1)
            crashpoint("calls.drop.before")
        crashpoint("calls.drop.after")
        for one in rewritten:
            (root / "settled" / one.old.name).unlink(missing_ok=True)
            crashpoint("calls.delete.after")
        compactor.sweep()
    return count + sum(len(one.dropped) for one in rewritten)


def _refuse_held(books: FileBooks, choice: Choice) -> None:
    if held := sum(1 for _ in books.recorded(books.unsettled(choice), choice)):
        with books.database.reading() as connection:
            pids = [str(pid) for (pid,) in connection.execute("SELECT pid FROM owner ORDER BY id")]
        raise LedgerInUse(path=str(books.path), count=held, pids=", ".join(pids))


def _rewrite(books: FileBooks, choice: Choice) -> Iterator[_Rewritten]:
    _, rows = settled_rows(books.database)
    for row in rows:
        file = SettledFile(books.path / "settled" / row.name, row.layout)
        try:
            one = _Rewritten(row)
            for number in range(len(row.layout.groups)):
                table = file.table(number, columns=["hash", "step", "key", "status"])
                gone = table.filter(books.mask(table, choice))
                one.dropped += gone["hash"].to_pylist()
                one.counts.update(
                    zip(gone["step"].to_pylist(), gone["status"].to_pylist(), strict=True)
                )
            if not one.dropped:
                continue
            if len(one.dropped) < row.rows:
                one.name = f"{fresh_token()}.parquet"
                path = books.path / "settled" / one.name
                one.layout = write_settled(path, _kept(file, one.dropped))
            yield one
        finally:
            file.close()


def _kept(file: SettledFile, dropped: Sequence[bytes]) -> Iterator[pa.Table]:
    """Yield a file's rows without the dropped ones, a row group at a time."""
    gone = pa.array(sorted(dropped), pa.binary())
    for number in range(len(file.layout.groups)):
        table = file.table(number)
        mask = pc.is_in(table["hash"].cast(pa.binary()), value_set=gone)
        yield table.filter(pc.invert(mask)).cast(SCHEMA)


def _forget(connection: apsw.Connection, one: _Rewritten) -> None:
    """Take outcomes from the counters and the dead letters, inside the transaction."""
    for (step, status), count in one.counts.items():
        gone = Sums(
            bought=-count if status == Status.BOUGHT else 0,
            parked=-count if status == Status.PARKED else 0,
            failed=-count if status == Status.FAILED else 0,
        )
        steps.add(connection, step, gone)
    for hash_ in one.dropped:
        connection.execute("DELETE FROM dead_letter WHERE hash=?", (hash_,))


def _drop_in_doubt(connection: apsw.Connection, choice: Choice, known: set[int]) -> int:
    """Forget chosen slots in doubt; what their claims reserved is given back."""
    if not choice.takes(SlotState.IN_DOUBT):
        return 0
    count = 0
    for hash_, step, key, held in rows_of(
        connection,
        "SELECT hash, step, key, held FROM slot WHERE owner IS NULL AND segment IS NULL",
    ):
        if step in known and choice.key in (None, key):
            connection.execute("DELETE FROM slot WHERE hash=?", (hash_,))
            steps.add(connection, step, Sums(held=held))
            count += 1
    return count


def sweep_blobs(books: FileBooks) -> bool:
    """Remove answers' blobs that no outcome names. Returns False while a job might write one.

    Inside one transaction: nobody can become an owner, and write a blob, until it is over; and
    since before the names were read nobody was one, or has claimed anything.
    """
    with try_lock(books.path / "compact.lock", wait=True):
        with books.database.transaction() as connection:
            if connection.execute("SELECT 1 FROM owner").get:
                return False
            change = books.database.meta("change")
        named = set(_blobs_named(books))
        with books.database.transaction() as connection:
            if connection.execute("SELECT 1 FROM owner").get or books.database.meta("change") != (
                change
            ):
                return False
            for path in (books.path / "blobs").iterdir():
                if path.name not in named:
                    path.unlink(missing_ok=True)
    return True


def _blobs_named(books: FileBooks) -> Iterator[str]:
    _, rows = settled_rows(books.database)
    for row in rows:
        file = SettledFile(books.path / "settled" / row.name, row.layout)
        try:
            for number in range(len(row.layout.groups)):
                yield from filter(None, file.table(number, columns=["blob"])["blob"].to_pylist())
        finally:
            file.close()
    for path in (books.path / "segments").iterdir():
        yield from _blobs_of(path, books)


def _blobs_of(path: Path, books: FileBooks) -> Iterator[str]:
    for placed in read_segment(path, ledger_id=books.database.ledger_id):
        if placed.entry.blob is not None:
            yield placed.entry.blob
