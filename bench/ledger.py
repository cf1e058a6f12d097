"""The ledger's speed, beside its peers, in one run: python -m bench.ledger [--rows N] [--dir D]

Peers: SQLite (WAL, FULL) with one row per call, and a `dbos` workflow of steps on SQLite. Ratios
are what counts: ledger and peers take turns, medians of three.

    python -m bench.ledger                   everything but the long ones
    python -m bench.ledger --million         settle 1,000,000 outcomes, showing memory on the way
    python -m bench.ledger --settled 0       without the resume over 1,000,000 settled calls
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
from tests.proof.asking import Ask
from tests.proof.trial import witness

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


def with_ledger(
    directory: Path,
    rows: int,
    function: Callable[[str], Any],
    limits: Limits,
    *,
    is_async: bool = True,
    each: Callable[[int], None] = lambda _: None,
) -> float:
    """Settle so many calls. Returns the seconds it took; `each` hears of the progress."""
    ledger = FileLedger(f"file://{directory}")
    step = ledger.step("bench", {"v": "1"}, on_change="refuse").id
    encode = json.JSONEncoder(separators=(",", ":")).encode
    asker = Asker(
        function, lambda v: encode([v]).encode(), "bench", ledger.id, Policy(), is_async=is_async
    )
    caller = Caller(ledger, asker, limits=limits, budget=Limit())

    def chunks() -> Iterator[list[Pending]]:
        for start in range(0, rows, 10_000):
            keys = map(str, range(start, min(rows, start + 10_000)))
            yield [Pending(slot_of(step, key), key) for key in keys]

    started = time.perf_counter()
    count = 0
    for taken in caller.answers(chunks()):
        count += len(taken)
        each(count)
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


def dbos_steps(directory: Path, rows: int) -> float:
    """A durable workflow whose steps are the calls, 32 at once, in a process of its own."""
    program = Path(__file__).with_name("ledger_dbos.py")
    done = subprocess.run(
        [sys.executable, str(program), str(directory), str(rows), str(IN_FLIGHT)],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout.split()[-1])


def in_flight(base: Path, milliseconds: int, rows: int, *, paid: bool) -> float:
    """Return the share of 32 calls that were in flight while input remained, as a witness saw it.

    From the moment when 32 were first reached to the start of the last call: before it there is
    nothing to keep up, after it there is no input. Unless `paid`, by 32 threads without a ledger:
    what this machine and the client allow at best.
    """
    name = f"{milliseconds}-{paid}"
    log = base / f"witness-{name}.log"
    with witness(log) as provider:
        provider.rules("bench", delay_s=milliseconds / 1000)
        ask = Ask(provider.port, "bench")
        if paid:
            limits = Limits(max_in_flight=IN_FLIGHT, intent_ahead=32)
            with_ledger(base / f"seen-{name}", rows, ask.key, limits, is_async=False)
        else:
            with ThreadPoolExecutor(IN_FLIGHT) as pool:
                list(pool.map(ask.key, map(str, range(rows))))
    return share_in_flight([json.loads(line) for line in log.read_text().splitlines()])


def share_in_flight(events: list[dict[str, Any]]) -> float:
    steps = sorted((e["at"], 1 if e["event"] == "start" else -1) for e in events)
    last = max(at for at, step in steps if step == 1)
    now, area, before, since = 0, 0.0, 0.0, None
    for at, step in steps:
        if at > last:
            break
        if since is not None:
            area += now * (at - before)
        now, before = now + step, at
        if since is None and now == IN_FLIGHT:
            since = at
    return area / (last - since) / IN_FLIGHT if since is not None else 0.0


def rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--settled", type=int, default=1_000_000)
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--dir", default=None, help="a directory on the disk to measure")
    options = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=options.dir))
    try:
        if options.million:
            memory(base, 1_000_000)
            return
        settled(base, options.rows)
        added(base, options.rows)
        flight(base)
        if options.settled:
            resume(base, options.settled)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def settled(base: Path, rows: int) -> None:
    """No-op calls: all that is measured is the ledger."""
    for ahead in (32, 96, 480):
        limits = Limits(max_in_flight=IN_FLIGHT if ahead < 100 else 128, intent_ahead=ahead)
        mine, sqlite, dbos = [], [], []
        for turn in range(3):
            place = base / f"noop{ahead}-{turn}"
            place.mkdir()
            sqlite.append(bare_sqlite(place, rows // 20) * 20)
            mine.append(with_ledger(place / "ledger", rows, sleeping(0), limits))
            dbos.append(dbos_steps(place, rows // 100) * 100)
        took, peer, other = (statistics.median(times) for times in (mine, sqlite, dbos))
        print(
            f"no-op calls, {limits.max_in_flight} in flight + {ahead} ahead: {rows / took:,.0f}"
            f" settled/s; SQLite row by row {rows / peer:,.0f}/s ({peer / took:.1f} x),"
            f" dbos {rows / other:,.0f}/s ({other / took:.1f} x)"
        )


def added(base: Path, rows: int) -> None:
    """What the ledger adds to the same job without one."""
    for milliseconds, count in ((2, rows), (100, max(640, rows // 16))):
        for ahead in (32, 96):
            limits = Limits(max_in_flight=IN_FLIGHT, intent_ahead=ahead)
            function, shares = sleeping(milliseconds / 1000), []
            for turn in range(3):
                plain = without_ledger(count, function)
                place = base / f"{milliseconds}-{ahead}-{turn}"
                shares.append(with_ledger(place, count, function, limits) / plain - 1)
            print(
                f"{milliseconds} ms a call, 32 in flight + {ahead} ahead: added"
                f" {statistics.median(shares):+.1%} ({', '.join(f'{s:+.1%}' for s in shares)})"
            )


def flight(base: Path) -> None:
    for milliseconds, rows in ((20, 4000), (100, 1600)):
        plain, paid = (in_flight(base, milliseconds, rows, paid=paid) for paid in (False, True))
        print(
            f"in flight at {milliseconds} ms a call, as the witness saw it: {paid:.1%} of 32,"
            f" without a ledger {plain:.1%} ({paid / plain:.1%} of that)"
        )


def resume(base: Path, count: int) -> None:
    fill(base / "old", count)
    before = rss_mib()
    first, rate = first_call(base / "old")
    print(
        f"resume with {count:,} settled: first new call after {first:.2f} s,"
        f" {rate:,.0f} recorded answers/s read, {rss_mib() - before:+.0f} MiB"
    )


def memory(base: Path, rows: int) -> None:
    marks: list[str] = []

    def mark(done: int) -> None:
        if done * 10 // rows > len(marks):
            marks.append(f"{rss_mib():.0f}")

    limits = Limits(max_in_flight=128, intent_ahead=480)
    took = with_ledger(base / "million", rows, sleeping(0), limits, each=mark)
    print(f"{rows:,} outcomes: {rows / took:,.0f}/s, MiB at each tenth: {', '.join(marks)}")


if __name__ == "__main__":
    main()
