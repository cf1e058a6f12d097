"""The ledger's speed beside its peers, in one run: `python -m bench --only ledger`.

Peers: SQLite (WAL, FULL) with one row per call, a `dbos` workflow of steps on SQLite, and the same
calls without any ledger. Ledger and peers take turns. A million outcomes are settled once, and the
ledger so made is what a resume is measured on. At the normal size: seven minutes on a quiet
machine; the disk's fsync is part of what is measured, so anybody else's writing is, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import apsw
from tests.proof.trial import witness

from bench.harness import Size, alone, say
from holdfast.cli.measure import Figure, in_turn, ratio
from holdfast.ledger.asking import Asker, Pending
from holdfast.ledger.caller import Caller, Limits
from holdfast.ledger.contract import Limit, Slot, inputs_hash, slot_hash
from holdfast.ledger.file_ledger import FileLedger
from holdfast.ledger.rules import Policy

Function = Callable[[str], Awaitable[str]]
IN_FLIGHT = 32
LIMITS = Limits(max_in_flight=IN_FLIGHT, intent_ahead=32)
WIDE = Limits(max_in_flight=128, intent_ahead=480)
READ_ROWS = 256


@dataclass(frozen=True, slots=True)
class Amounts:
    """How many calls of each kind are made."""

    quick: int
    slow: int
    seen_20_ms: int
    seen_100_ms: int
    settled: int


AMOUNTS = {
    "quick": Amounts(4_000, 320, 640, 320, 20_000),
    "normal": Amounts(20_000, 3_200, 4_000, 1_600, 1_000_000),
}


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
    function: Function,
    limits: Limits,
    *,
    each: Callable[[int], None] = lambda _: None,
) -> float:
    """Settle so many calls. Returns the seconds it took; `each` hears of the progress."""
    ledger = FileLedger(f"file://{directory}")
    step = ledger.step("bench", {"v": "1"}, on_change="refuse").id
    encode = json.JSONEncoder(separators=(",", ":")).encode
    asker = Asker(
        function, lambda v: encode([v]).encode(), "bench", ledger.id, Policy(), is_async=True
    )
    caller = Caller(ledger, asker, limits=limits, budget=Limit())

    def chunks() -> Iterator[list[Pending]]:
        for start in range(0, rows, READ_ROWS):
            keys = map(str, range(start, min(rows, start + READ_ROWS)))
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
    keys = [str(n * 37) for n in range(50)] + ["new"]
    for _ in caller.answers([[Pending(slot_of(step, key), key) for key in keys]]):
        pass
    looked = time.perf_counter()
    found = ledger.lookup([slot_of(step, str(n)).hash for n in range(10_000)])
    rate = 10_000 / (time.perf_counter() - looked)
    assert len(found.outcomes) == 10_000
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


class Connections:
    """Asks the witness over connections that stay open, as a provider's own client does."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def __call__(self, key: str) -> str:
        asked = {"case": "bench", "key": key, "idempotency_key": key, "pid": os.getpid()}
        body = json.dumps(asked).encode()
        pair = self._free.pop() if self._free else await self._opened()
        reader, writer = pair
        writer.write(b"POST /call HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]
        answer: str = json.loads(await reader.readexactly(int(length)))["answer"]
        self._free.append(pair)
        return answer

    async def _opened(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port)


def in_flight(base: Path, milliseconds: int, rows: int, *, paid: bool) -> float:
    """Return the share of 32 calls that were in flight while input remained, as a witness saw it.

    From the moment when 32 were first reached to the start of the last call: before it there is
    nothing to keep up, after it there is no input. Unless `paid`, without a ledger: what this
    machine and the client allow at best.
    """
    log = base / "witness.log"
    with witness(log) as provider:
        provider.rules("bench", delay_s=milliseconds / 1000)
        function = Connections(provider.port)
        if paid:
            with_ledger(base / "ledger", rows, function, LIMITS)
        else:
            without_ledger(rows, function)
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


def figures(size: Size, root: Path) -> list[Figure]:
    """Return everything that is measured of a ledger."""
    amounts = AMOUNTS.get(size.name, AMOUNTS["normal"])
    return [
        *no_op(amounts.quick, size.rounds, root),
        *added(amounts, size.rounds, root),
        *flight(amounts, size.rounds, root),
        *long_lived(amounts.settled, root),
    ]


def fresh(root: Path) -> Path:
    """Return an empty directory; what the last side left there is gone."""
    directory = root / "turn"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    return directory


def no_op(rows: int, rounds: int, root: Path) -> list[Figure]:
    """Calls that do nothing: all that is measured is the ledger."""

    def settled(limits: Limits) -> float:
        return rows / with_ledger(fresh(root) / "ledger", rows, sleeping(0), limits)

    sides: dict[str, Callable[[], float]] = {
        "32 in flight + 32": lambda: settled(LIMITS),
        "128 in flight + 480": lambda: settled(WIDE),
        "SQLite, a row a call": lambda: rows // 20 / bare_sqlite(fresh(root), rows // 20),
        "dbos steps": lambda: rows // 100 / dbos_steps(fresh(root), rows // 100),
    }
    found = in_turn(sides, rounds, say)
    mine, _, sqlite, dbos = found.values()
    reach = dict(zip(sides, (10_000.0, None, None, None), strict=True))
    return [
        *(
            Figure(f"ledger: no-op calls, {name}", "settled/s", tuple(rates), "higher", reach[name])
            for name, rates in found.items()
        ),
        ratio("ledger: no-op calls, ledger / SQLite", mine, sqlite, better="higher"),
        ratio("ledger: no-op calls, ledger / dbos", mine, dbos, better="higher"),
    ]


def added(amounts: Amounts, rounds: int, root: Path) -> list[Figure]:
    """What the ledger adds to the same calls without one, 32 in flight."""
    made = []

    def ledger(rows: int, function: Function) -> float:
        return with_ledger(fresh(root) / "ledger", rows, function, LIMITS)

    for milliseconds, rows, reach in ((2, amounts.quick, 1.5), (100, amounts.slow, 1.01)):
        function = sleeping(milliseconds / 1000)
        sides: dict[str, Callable[[], float]] = {
            "without": partial(without_ledger, rows, function),
            "ledger": partial(ledger, rows, function),
        }
        found = in_turn(sides, rounds, say)
        name = f"ledger: {milliseconds} ms a call, with / without"
        made.append(ratio(name, found["ledger"], found["without"], reach=reach))
    return made


def flight(amounts: Amounts, rounds: int, root: Path) -> list[Figure]:
    """How many of 32 calls were in flight while input remained, as the witness saw it."""
    made = []

    def seen(milliseconds: int, rows: int, *, paid: bool) -> float:
        return in_flight(fresh(root), milliseconds, rows, paid=paid)

    for milliseconds, rows in ((20, amounts.seen_20_ms), (100, amounts.seen_100_ms)):
        sides: dict[str, Callable[[], float]] = {
            "ledger": partial(seen, milliseconds, rows, paid=True),
            "without": partial(seen, milliseconds, rows, paid=False),
        }
        found = in_turn(sides, rounds, say)
        name = f"ledger: in flight of 32 at {milliseconds} ms"
        shares = {side: tuple(100 * one for one in values) for side, values in found.items()}
        made.append(Figure(f"{name}, ledger", "%", shares["ledger"], "higher", 95.0))
        made.append(Figure(f"{name}, without", "%", shares["without"], "higher"))
    return made


def long_lived(rows: int, root: Path) -> list[Figure]:
    """Settle many outcomes, looking at memory on the way; then resume on what that left."""
    marks: list[float] = []

    def mark(done: int) -> None:
        if done * 10 // rows > len(marks):
            marks.append(rss_mib())
            say(f"  {done:,} settled: {marks[-1]:.0f} MiB")

    place = root / "many"
    rate = rows / with_ledger(place, rows, sleeping(0), WIDE, each=mark)
    before = rss_mib()
    first, read = first_call(place)
    shutil.rmtree(place)
    name = f"ledger, {rows:,} settled"
    return [
        Figure(f"{name}: rate", "settled/s", (rate,), "higher", 10_000.0),
        Figure(f"{name}: memory at the first tenth", "MiB", (marks[0],)),
        Figure(f"{name}: memory at the end", "MiB", (marks[-1],)),
        Figure(f"{name}: resume, first new call", "s", (first,), reach=1.0),
        Figure(f"{name}: resume, recorded answers", "read/s", (read,), "higher"),
        Figure(f"{name}: resume, memory added", "MiB", (max(0.0, rss_mib() - before),)),
    ]


if __name__ == "__main__":
    alone("ledger", figures)
