"""How long a worker needs to open its journal after a crash, by what the journal holds.

    .venv/bin/python -m bench.worker_journal

Each journal is written in one rewrite, then opened as a restarted worker does: every frame is read
and checked, what stands is in memory. The peer reads as many payloads from a table of SQLite.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw

from bench.harness import Size, alone, say
from holdfast._base.ids import digest
from holdfast.cli.measure import Figure, ratio, stopwatch
from holdfast.worker.books import (
    KIND_DATA,
    covers_of,
    message_record,
    send_records,
    state_record,
)
from holdfast.worker.journal import Journal, Record
from holdfast.worker.messages import Chunk, ChunkId
from holdfast.worker.persistence import COMMIT_INTERVAL, PersistenceService

REACH_S = 1.0
FEW, MANY = 10_000, 100_000
PAYLOAD = b"x" * 64


def chunks(count: int) -> Iterator[Chunk]:
    return (Chunk("ada", "sales", "north", number, PAYLOAD) for number in range(1, count + 1))


def uncounted(count: int) -> Iterator[Record]:
    """Every chunk came, none is in a state commit: the most a worker may find."""
    return (message_record(KIND_DATA, chunk) for chunk in chunks(count))


def batches(count: int, *, sends: bool = True, states: bool = True) -> Iterator[Record]:
    """Every chunk came, with commits every ten, and nothing was ever compacted."""
    ids: list[ChunkId] = []
    for chunk in chunks(count):
        yield message_record(KIND_DATA, chunk)
        ids.append(chunk.id)
        if len(ids) == COMMIT_INTERVAL:
            if sends:
                yield from send_records("ada", (digest("send", *one) for one in ids))
            if states:
                yield state_record(ids[-1], covers_of(ids), b"state" * 20, forgets_sends=True)
            ids.clear()


def figures(size: Size, root: Path) -> list[Figure]:
    """Return the seconds of an opening, beside SQLite's and beside those of a tenth."""
    journals = {
        "uncounted": written(root / "uncounted", uncounted(MANY)),
        "counted": written(root / "counted", batches(MANY, sends=False)),
        "sent": written(root / "sent", batches(MANY, states=False)),
        "sent and counted": written(root / "both", batches(MANY)),
        "a tenth": written(root / "tenth", uncounted(FEW)),
    }
    raw = filled(root / "raw.sqlite3", MANY)
    times: dict[str, list[float]] = {name: [] for name in (*journals, "raw")}
    for number in range(size.rounds):
        for name, directory in journals.items():
            times[name].append(opening_s(directory))
        times["raw"].append(stopwatch(lambda: read_rows(raw)))
        shown = ", ".join(f"{name} {found[-1]:.3f}" for name, found in times.items())
        say(f"  round {number + 1} of {size.rounds}: {shown}")
    title = f"worker journal of {MANY:,} chunks"
    kinds = ("uncounted", "counted", "sent", "sent and counted")
    return [
        *(Figure(f"{title}, {name}", "s", tuple(times[name]), reach=REACH_S) for name in kinds),
        Figure(f"{MANY:,} rows, raw SQLite", "s", tuple(times["raw"])),
        ratio(f"{title}, uncounted / raw SQLite", times["uncounted"], times["raw"]),
        ratio(f"worker journal, {MANY:,} / {FEW:,} chunks", times["uncounted"], times["a tenth"]),
    ]


def written(directory: Path, records: Iterator[Record]) -> Path:
    directory.mkdir()
    journal = Journal(directory, "bench")
    journal.rewrite(records)
    journal.close()
    return directory


def opening_s(directory: Path) -> float:
    opened: list[PersistenceService] = []
    took_s = stopwatch(lambda: opened.append(PersistenceService(directory, "bench")))
    opened[0].close()
    return took_s


def filled(path: Path, count: int) -> Path:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE chunk (number INTEGER PRIMARY KEY, payload BLOB)")
    rows = [(chunk.ordinal, chunk.payload) for chunk in chunks(count)]
    with connection:
        connection.executemany("INSERT INTO chunk VALUES (?, ?)", rows)
    connection.close()
    return path


def read_rows(path: Path) -> None:
    connection = apsw.Connection(str(path))
    assert len(connection.execute("SELECT * FROM chunk ORDER BY number").fetchall()) == MANY
    connection.close()


if __name__ == "__main__":
    alone("worker_journal", figures)
