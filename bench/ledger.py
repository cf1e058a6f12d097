"""What the ledger costs: settled outcomes per second, time added to calls, resume.

    .venv/bin/python bench/ledger.py [--rows 20000] [--settled 1000000]

Ratios are measured side by side in one run. Peers: a bare SQLite (WAL, FULL) with one row and one
commit per call, and the same calls without any ledger.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import apsw

from holdfast.ledger.asking import Asker, Pending
from holdfast.ledger.caller import Caller, Limits
from holdfast.ledger.contract import (
    Claim,
    Limit,
    Outcome,
    Slot,
    Status,
    inputs_hash,
    slot_hash,
)
from holdfast.ledger.file_ledger import FileLedger
from holdfast.ledger.rules import Policy

Function = Callable[[str], Awaitable[str]]
IN_FLIGHT = 32


def sleeping(seconds: float) -> Function:
    async def function(key: str) -> str:
        if seconds:
            await asyncio.sleep(seconds)
        return key

    return function


def slot_of(step: int, key: str) -> Slot:
    return Slot(slot_hash(step, key), step, key, inputs_hash(key.encode()))


def with_ledger(directory: Path, rows: int, function: Function, limits: Limits) -> float:
    ledger = FileLedger(f"file://{directory}")
    step = ledger.step("bench", {"v": "1"}, on_change="refuse").id
    asker = Asker(
        function, lambda v: json.dumps([v]).encode(), "bench", ledger.id, Policy(), is_async=True
    )
    caller = Caller(ledger, asker, limits=limits, budget=Limit())

    def chunks() -> Iterator[list[Pending]]:
        for start in range(0, rows, 10_000):
            keys = map(str, range(start, min(rows, start + 10_000)))
            yield [Pending(slot_of(step, key), key) for key in keys]

    started = time.perf_counter()
    count = sum(len(taken) for taken in caller.answers(chunks()))
    took = time.perf_counter() - started
    assert count == rows
    ledger.close()
    return took


def without_ledger(rows: int, function: Function) -> float:
    async def main() -> None:
        keys = iter(map(str, range(rows)))

        async def worker() -> None:
            for key in keys:
                await function(key)

        await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))

    started = time.perf_counter()
    asyncio.run(main())
    return time.perf_counter() - started


def bare_sqlite(directory: Path, rows: int) -> float:
    connection = apsw.Connection(str(directory / "peer.sqlite"))
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full")
    connection.execute("CREATE TABLE answer(key TEXT PRIMARY KEY, value TEXT)")
    started = time.perf_counter()
    for number in range(rows):
        connection.execute("INSERT INTO answer VALUES(?,?)", (str(number), "x"))
    took = time.perf_counter() - started
    connection.close()
    return took


def fill(directory: Path, rows: int) -> None:
    """Record many outcomes without calls, as a long job would have left them."""
    ledger = FileLedger(f"file://{directory}")
    step = ledger.step("bench", {"v": "1"}, on_change="refuse").id
    for start in range(0, rows, 20_000):
        slots = [slot_of(step, f"old{n}") for n in range(start, min(rows, start + 20_000))]
        generation = ledger.lookup([slots[0].hash]).generation
        granted = ledger.claim(
            [Claim(slot) for slot in slots], generation=generation, limit=Limit()
        ).attempts
        while not granted:  # a compaction came between
            generation = ledger.lookup([slots[0].hash]).generation
            granted = ledger.claim(
                [Claim(slot) for slot in slots], generation=generation, limit=Limit()
            ).attempts
        ledger.settle([Outcome(s, Status.BOUGHT, b'["%s"]' % s.key.encode()) for s in slots])
    ledger.close()


def first_call(directory: Path) -> tuple[float, float]:
    """Return the time to the first new call and the looked-up slots per second, on a resume."""
    started = time.perf_counter()
    ledger = FileLedger(f"file://{directory}", create=False)
    step = ledger.step("bench", {"v": "1"}, on_change="refuse").id
    called: list[float] = []

    async def function(key: str) -> str:
        called.append(time.perf_counter() - started)
        return key

    asker = Asker(function, str.encode, "bench", ledger.id, Policy(), is_async=True)
    caller = Caller(ledger, asker, limits=Limits(), budget=Limit())
    keys = [f"old{n * 37}" for n in range(50)] + ["new"]
    for _ in caller.answers([[Pending(slot_of(step, key), key) for key in keys]]):
        pass
    looked = time.perf_counter()
    ledger.lookup([slot_of(step, f"old{n * 11}").hash for n in range(10_000)])
    rate = 10_000 / (time.perf_counter() - looked)
    ledger.close()
    return called[0], rate


def rss_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--settled", type=int, default=1_000_000)
    parser.add_argument("--dir", default=None, help="a directory on the disk to measure")
    options = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=options.dir))
    try:
        measure(base, options.rows, options.settled)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def measure(base: Path, rows: int, settled: int) -> None:
    peer = bare_sqlite(base, rows // 10) * 10
    print(f"bare SQLite, one commit per call: {rows / peer:,.0f} rows/s")
    for ahead in (32, 96, 480):
        limits = Limits(max_in_flight=IN_FLIGHT if ahead < 100 else 128, intent_ahead=ahead)
        took = with_ledger(base / f"noop{ahead}", rows, sleeping(0), limits)
        print(
            f"no-op calls, {limits.max_in_flight} in flight + {ahead} ahead:"
            f" {rows / took:,.0f} settled/s ({peer / took:.1f} x the peer), {rss_mib():.0f} MiB"
        )
    for milliseconds, count in ((2, rows), (100, max(640, rows // 16))):
        plain = without_ledger(count, sleeping(milliseconds / 1000))
        for ahead in (32, 96):
            limits = Limits(max_in_flight=IN_FLIGHT, intent_ahead=ahead)
            paid = with_ledger(
                base / f"{milliseconds}-{ahead}", count, sleeping(milliseconds / 1000), limits
            )
            print(
                f"{milliseconds} ms a call, 32 in flight + {ahead} ahead:"
                f" {plain:.2f} s without, {paid:.2f} s with: {paid / plain - 1:+.1%}"
            )
    if settled:
        fill(base / "old", settled)
        first, rate = first_call(base / "old")
        print(
            f"resume with {settled:,} settled: first new call after {first:.2f} s,"
            f" {rate:,.0f} recorded answers/s read, {rss_mib():.0f} MiB"
        )


if __name__ == "__main__":
    main()
