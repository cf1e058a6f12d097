"""The embedded and the memory log: rates of produce and fetch, time of one durable append.

    .venv/bin/python -m bench.log

Records of 1 KiB in batches of 100. The peer is SQLite itself: the same PRAGMAs, one table, one
transaction per batch, no offsets, groups, ids or page checksums. A bare file with fdatasync is what
the disk does.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import apsw

from bench.harness import Size, alone, say
from holdfast.cli.log_race import (
    AT_ONCE,
    RECORD_BYTES,
    TOPIC,
    append_times,
    each,
    fetch_rate,
    fsync_times,
    produce_rate,
)
from holdfast.cli.measure import Figure, in_turn, percentile, ratio, stopwatch
from holdfast.log.contract import QueueBackend
from holdfast.log.embedded import EmbeddedBackend
from holdfast.log.memory import MemoryBackend
from holdfast.store.sqlite.connection import CACHE_KIB, CHECKPOINT_PAGES, PAGE_BYTES

REACH = {"embedded": (50_000, 300_000), "memory": (1_000_000, 500_000)}
"""Records per second, produced and fetched."""
APPENDS = 300
"""Single appends per round: the third largest is the p99."""

Rates = tuple[float, float]


def figures(size: Size, root: Path) -> list[Figure]:
    """Return rates at every number of records, and times of single appends."""
    made: list[Figure] = []
    for count in size.log_records:
        say(f"log: {count:,} records")
        made += rates(count, size.rounds, root)
    made += growth(made, size.log_records)
    say(f"log: {APPENDS} single appends")
    return made + appends(size.rounds, root)


def rates(count: int, rounds: int, root: Path) -> list[Figure]:
    """Return the rates of all sides with so many records."""
    runs: dict[str, Callable[[], Rates]] = {
        "embedded": lambda: log_rates(EmbeddedBackend(fresh(root) / "log.sqlite3"), count),
        "raw SQLite": lambda: raw_rates(fresh(root), count),
        "memory": lambda: log_rates(MemoryBackend("bench"), count),
    }
    found: dict[str, list[Rates]] = {name: [] for name in runs}

    def side(name: str) -> Callable[[], float]:
        def run() -> float:
            found[name].append(runs[name]())
            return found[name][-1][0]

        return run

    in_turn({name: side(name) for name in runs}, rounds, say)
    made = []
    for number, what in enumerate(("produce", "fetch")):
        per_s = {name: tuple(pair[number] for pair in pairs) for name, pairs in found.items()}
        for name, values in per_s.items():
            reach = REACH[name][number] if name in REACH else None
            title = f"log {count:,}: {name}, {what}"
            made.append(Figure(title, "records/s", values, "higher", reach))
        title = f"log {count:,}: {what}, embedded / raw SQLite"
        made.append(ratio(title, per_s["embedded"], per_s["raw SQLite"], better="higher"))
    return made


def growth(made: Sequence[Figure], counts: Sequence[int]) -> list[Figure]:
    """Return how the embedded log's rates at most records compare with those at fewest."""
    named = {one.name: one for one in made}
    if len(counts) < 2:
        return []
    return [
        ratio(
            f"log: embedded, {what}, {counts[-1]:,} / {counts[0]:,} records",
            named[f"log {counts[-1]:,}: embedded, {what}"].values,
            named[f"log {counts[0]:,}: embedded, {what}"].values,
            better="higher",
        )
        for what in ("produce", "fetch")
    ]


def log_rates(log: QueueBackend, count: int) -> Rates:
    """Return how fast a log takes records and gives them back."""
    log.start()
    try:
        return produce_rate(log, count), fetch_rate(log, count)
    finally:
        log.stop()


def raw_rates(directory: Path, count: int) -> Rates:
    """Return the same of one SQLite table."""
    connection = open_raw(directory)
    value = b"x" * RECORD_BYTES

    def produce() -> None:
        for start in range(0, count, AT_ONCE):
            append_raw(connection, [(start + n, value) for n in range(AT_ONCE)])

    def fetch() -> None:
        place = 0
        sql = "SELECT place, value FROM record WHERE place >= ? ORDER BY place LIMIT ?"
        while rows := connection.execute(sql, (place, AT_ONCE)).fetchall():
            place += len(rows)
        assert place == count

    try:
        return count / stopwatch(produce), count / stopwatch(fetch)
    finally:
        connection.close()


def append_raw(connection: apsw.Connection, rows: list[tuple[int, bytes]]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("INSERT INTO record VALUES (?, ?)", rows)
    connection.execute("COMMIT")


def open_raw(directory: Path) -> apsw.Connection:
    """Open a database with the PRAGMAs of our own store."""
    connection = apsw.Connection(str(directory / "raw.sqlite3"))
    connection.pragma("page_size", PAGE_BYTES)
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full")
    connection.pragma("cache_size", -CACHE_KIB)
    connection.pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
    connection.execute("CREATE TABLE record (place INTEGER PRIMARY KEY, value BLOB NOT NULL)")
    return connection


def appends(rounds: int, root: Path) -> list[Figure]:
    """Return the median and the 99th percentile of one durable append."""
    sides: dict[str, Callable[[], list[float]]] = {
        "embedded": lambda: embedded_appends(fresh(root)),
        "raw SQLite": lambda: raw_appends(fresh(root)),
        "bare file": lambda: fsync_times(fresh(root), APPENDS),
    }
    found: dict[str, list[list[float]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            found[name].append(side())
    made = []
    for share, name in ((0.5, "p50"), (0.99, "p99")):
        times = {
            side: tuple(percentile(one, share) * 1000 for one in all_)
            for side, all_ in found.items()
        }
        made += [Figure(f"log: one append, {name}, {side}", "ms", times[side]) for side in times]
        if name == "p50":  # the ratio of two rare stalls says nothing
            title = f"log: one append, {name}, embedded / raw SQLite"
            made.append(ratio(title, times["embedded"], times["raw SQLite"]))
    return made


def embedded_appends(directory: Path) -> list[float]:
    log = EmbeddedBackend(directory / "log.sqlite3")
    log.start()
    log.create_topic(TOPIC)
    times = append_times(log, APPENDS)
    log.stop()
    return times


def raw_appends(directory: Path) -> list[float]:
    connection = open_raw(directory)
    places, value = iter(range(APPENDS)), b"x" * RECORD_BYTES
    times = each(lambda: append_raw(connection, [(next(places), value)]), APPENDS)
    connection.close()
    return times


def fresh(root: Path) -> Path:
    """Return an empty directory; what the last side left there is gone."""
    directory = root / "log"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    return directory


if __name__ == "__main__":
    alone("log", figures)
