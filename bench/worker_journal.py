"""How long a worker needs after a crash, by what its journal holds.

    .venv/bin/python -m bench.worker_journal

Each journal is written in one rewrite, then opened as a restarted worker does: every frame is read
and checked, what stands is in memory. A whole worker also applies again what is not counted, and
commits its state. The peer reads as many payloads from a table of SQLite.

Whether it grows in line with the journal is told by sides that take equally long, so that a busy
moment of the machine strikes both alike: one journal, and ten of a tenth.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import apsw

from bench.harness import Size, alone, say
from holdfast._base.ids import digest
from holdfast.cli.measure import Figure, in_turn, ratio, stopwatch
from holdfast.log.memory import MemoryBackend
from holdfast.worker.books import (
    KIND_DATA,
    covers_of,
    message_record,
    send_records,
    state_record,
)
from holdfast.worker.journal import Journal, Record
from holdfast.worker.loop import Worker
from holdfast.worker.messages import Chunk, ChunkId
from holdfast.worker.persistence import COMMIT_INTERVAL, PersistenceService
from holdfast.worker.ports import LogInbox
from holdfast.worker.roles import NoState, Output, Part

REACH_S = 1.0
MANY, PARTS = 100_000, 10
OPENINGS = 3
"""Per round; the median counts. One alone tells more of the machine than of the journal."""
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
    """Return the seconds of an opening, beside SQLite's, a whole worker's and those of a tenth."""
    journals = {
        "uncounted": written(root / "uncounted", uncounted(MANY)),
        "counted": written(root / "counted", batches(MANY, sends=False)),
        "sent": written(root / "sent", batches(MANY, states=False)),
        "sent and counted": written(root / "both", batches(MANY)),
    }
    tenths = [written(root / f"tenth-{n}", uncounted(MANY // PARTS)) for n in range(PARTS)]
    raw = filled(root / "raw.sqlite3", MANY)
    sides: dict[str, Callable[[], float]] = {
        # Beside the whole one, which comes next.
        "ten tenths": lambda: sum(opening_s(one) for one in tenths),
        **{name: partial(opening_s, directory) for name, directory in journals.items()},
    }
    sides["worker"] = lambda: recovery_s(journals["uncounted"], root / "copy")
    sides["raw"] = lambda: stopwatch(lambda: read_rows(raw))
    steady = {name: partial(median_of, side) for name, side in sides.items()}
    times = in_turn(steady, size.rounds, say)
    title = f"worker journal of {MANY:,} chunks"
    return [
        *(Figure(f"{title}, {name}", "s", tuple(times[name]), reach=REACH_S) for name in journals),
        Figure(
            f"worker, {MANY:,} chunks applied again", "s", tuple(times["worker"]), reach=REACH_S
        ),
        Figure(f"{MANY:,} rows, raw SQLite", "s", tuple(times["raw"])),
        ratio(f"{title}, uncounted / raw SQLite", times["uncounted"], times["raw"]),
        ratio(f"{title} / {PARTS} of {MANY // PARTS:,}", times["uncounted"], times["ten tenths"]),
    ]


def median_of(side: Callable[[], float]) -> float:
    """Return the median of some runs.

    The collector of garbage does not go through what was there before: a worker that was started
    again has nothing else in its memory.
    """
    found: list[float] = []
    for _ in range(OPENINGS):
        gc.collect()
        gc.freeze()
        found.append(side())
    return median(found)


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


class Take:
    """A role that costs nothing: what is left is the kit's own."""

    outputs, first = (Output("nobody", "nothing"),), ()

    def start(self) -> NoState:
        return NoState()

    def apply(self, state: NoState, chunk: Chunk) -> list[Part]:
        del state, chunk
        return []

    def results(self, state: NoState) -> list[Part]:
        del state
        return []


class Nowhere:
    """An outbox that is not used: nobody said END."""

    def send(self, messages: object) -> None:
        raise AssertionError(messages)


def recovery_s(directory: Path, copy: Path) -> float:
    """Return what a whole worker needs; it counts the chunks, so it is given a copy."""
    shutil.copytree(directory, copy)
    log = MemoryBackend("bench")
    log.create_topic("in")
    inbox = LogInbox(log, "in", "bench")
    senders = {"sales": ["north"]}
    opened: list[PersistenceService] = []

    def start() -> None:
        opened.append(PersistenceService(copy, "bench"))
        Worker("bench", Take(), opened[0], inbox, {"nobody": Nowhere()}, senders=senders)

    took_s = stopwatch(start)
    opened[0].close()
    shutil.rmtree(copy)
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
