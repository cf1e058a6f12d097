"""Every log and RabbitMQ's queues through the adapter and raw: `python -m bench.backends`.

    --only kafka            one backend; may be given again
    --piece 1024            one piece: 1024, 256, latency, recovery, huge; may be given again
    --huge                  the piece huge too: 10,000,000 records of 4 KiB, consumed and truncated
    --scale 0.1             a tenth of all records
    --quick                 a fiftieth, one round, nothing is written

Each piece of each backend starts its own server and writes `results/backends/BACKEND-PIECE.json`,
so that any of them can be measured alone. Both sides of a piece take turns in one run, each in a
process of its own (`bench.side_child`), and promise the same.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import RESULTS, say, say_table, workspace, write_result
from bench.servers import BACKENDS, Backend, Served
from holdfast._base.ids import Offset, fresh_token
from holdfast.cli.measure import Figure, percentile, ratio, stopwatch
from holdfast.log.contract import Record
from holdfast.log.memory import MemoryBackend

RESULTS_DIR = RESULTS / "backends"
ROUNDS = 3
QUICK_SCALE = 0.02
RATIO_REACH, RATE_REACH, RAW_NEEDED = 0.8, 10_000.0, 12_500.0
"""Of a durable backend: its share of the raw client's rate; and records of 1 KiB per second, where
the raw client has so many."""
RECOVERY_S, MEMORY_MIB, DISK_MIB = 5.0, 100.0, 2048.0
WARM_SHARE = 0.05
"""Of the records go through a new server first, and are not counted: a JVM begins slowly."""
SINGLES, WARM = 1000, 50
"""Records of a latency piece, and how many before them do not count: connections are made then."""


@dataclass(frozen=True, slots=True)
class Load:
    """Records of one size, in batches."""

    record_bytes: int
    at_once: int
    count: int

    def scaled(self, scale: float) -> Load:
        """Return fewer records, in whole batches."""
        batches = max(1, int(self.count * scale) // self.at_once)
        return Load(self.record_bytes, self.at_once, batches * self.at_once)

    @property
    def title(self) -> str:
        """What a figure calls it."""
        return f"{self.count:,} x {self.record_bytes:,} B in {self.at_once}s"


LOADS = {
    "1024": Load(1024, 100, 100_000),
    "256": Load(256, 50, 1_000_000),
    "latency": Load(1024, 1, SINGLES),
    "recovery": Load(256, 50, 1_000_000),
    "huge": Load(4096, 200, 10_000_000),
}


def task_of(backend: Backend, served: Served, side: str, load: Load, **more: Any) -> dict[str, Any]:
    """Return what a child is told. Every run has a topic of its own unless one is named."""
    return {
        "side": side,
        "address": served.address if side == backend.side else served.raw_address,
        "topic": f"t-{fresh_token()[:12]}",
        "record_bytes": load.record_bytes,
        "at_once": load.at_once,
        "count": load.count,
        **more,
    }


def command_of(task: Mapping[str, Any]) -> list[str]:
    return [sys.executable, "-m", "bench.side_child", json.dumps(task)]


def child(task: Mapping[str, Any]) -> dict[str, Any]:
    """Let a child do its task, and return what it found."""
    done = subprocess.run(command_of(task), stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def alternating(
    backend: Backend, rounds: int, run: Callable[[str], dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Run both sides once a round, every second round the other way around."""
    sides = (backend.side, backend.raw)
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in sides[:: 1 if number % 2 == 0 else -1]:
            one = run(side)
            short = {key: round(value, 1) for key, value in one.items() if key != "ms"}
            say(f"  round {number + 1} of {rounds}: {side} {short or ''}")
            found[side].append(one)
    return found


def column(found: Sequence[Mapping[str, Any]], key: str) -> tuple[float, ...]:
    return tuple(one[key] for one in found)


def rates(backend: Backend, served: Served, load: Load, rounds: int) -> list[Figure]:
    """Return both sides' rates, what the adapter has of its client's, and its memory."""

    def run(side: str) -> dict[str, Any]:
        return child(task_of(backend, served, side, load, work="rates"))

    warm = load.scaled(WARM_SHARE)
    child(task_of(backend, served, backend.side, warm, work="rates"))
    found = alternating(backend, rounds, run)
    made = []
    for what in ("produce", "fetch"):
        ours, raw = column(found[backend.side], what), column(found[backend.raw], what)
        theirs = Figure(f"{load.title}: {what}, {backend.raw}", "records/s", raw, "higher")
        wanted = backend.durable and load.record_bytes == 1024 and theirs.median >= RAW_NEEDED
        reach = RATE_REACH if wanted else None
        made.append(Figure(f"{load.title}: {what}", "records/s", ours, "higher", reach))
        made.append(theirs)
        title = f"{load.title}: {what}, adapter / raw"
        least = RATIO_REACH if backend.durable else None
        made.append(ratio(title, ours, raw, reach=least, better="higher"))
    for side, name in ((backend.side, "adapter"), (backend.raw, "raw")):
        reach = MEMORY_MIB if name == "adapter" and backend.side != "memory" else None
        values = column(found[side], "memory_mib")
        made.append(Figure(f"{load.title}: peak memory, {name}", "MiB", values, reach=reach))
    return made


def latency(backend: Backend, served: Served, load: Load, rounds: int) -> list[Figure]:
    """Return how long a single record takes to whoever listens."""

    def run(side: str) -> dict[str, Any]:
        return child(task_of(backend, served, side, load, work="latency", warm=WARM))

    found = alternating(backend, rounds, run)
    made = []
    for place, (share, word) in enumerate(((0.5, "p50"), (0.99, "p99"))):
        for side, name in ((backend.side, ""), (backend.raw, f", {backend.raw}")):
            values = tuple(percentile(one["ms"], share) for one in found[side])
            reach = backend.p50_p99_ms[place] if backend.p50_p99_ms and not name else None
            made.append(Figure(f"end to end, {word}{name}", "ms", values, reach=reach))
    return made + (singles(rounds) if backend.side == "memory" else [])


def singles(rounds: int) -> list[Figure]:
    """Return the seconds of a thousand single appends, and of one fetch of ten thousand."""
    record = Record(b"x" * 1024)

    def once() -> tuple[float, float]:
        log = MemoryBackend("singles")
        log.create_topic("t")
        produce_s = stopwatch(lambda: [log.produce("t", record) for _ in range(1000)])
        log.produce_batch("t", [record] * 9000)
        return produce_s, stopwatch(lambda: log.fetch_batch("t", Offset(0), count=10_000))

    produced, fetched = zip(*(once() for _ in range(rounds)), strict=True)
    return [
        Figure("1,000 single produces", "s", produced, reach=1.0),
        Figure("a fetch of 10,000", "s", fetched, reach=2.0),
    ]


def recovery(backend: Backend, served: Served, load: Load, rounds: int) -> list[Figure]:
    """Return the seconds from a SIGKILL to one record read and one appended, server's start and
    all, and those of the start alone. Where there is no server, whoever wrote is killed.
    """
    starts: list[float] = []
    addresses = {served.address: backend.side, served.raw_address: backend.raw}
    topic = f"t-{fresh_token()[:12]}"
    for side in dict.fromkeys((backend.side, *addresses.values())):
        if side == addresses[served.raw_address] and served.raw_address == served.address:
            continue  # both sides read what the adapter wrote
        child(task_of(backend, served, side, load, work="fill", for_ever=False, topic=topic))

    def run(side: str) -> dict[str, Any]:
        place = load.count * 9 // 10
        task = task_of(backend, served, side, load, work="resume", topic=topic, place=place)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command_of(task), text=True, **pipes) as process:  # type: ignore[call-overload]  # two pipes
            assert process.stdout.readline() == "ready\n"
            starting = None
            if served.kill is None:
                kill_writer(task_of(backend, served, side, load, work="fill", topic=topic))
            else:
                served.kill()
                start = served.start or int
                starting = threading.Thread(target=lambda: starts.append(stopwatch(start)))
                starting.start()
            said, _ = process.communicate("go\n", timeout=600)
            if starting is not None:
                starting.join()
        found: dict[str, Any] = json.loads(said)
        return found

    found = alternating(backend, rounds, run)
    name = f"recovery after SIGKILL, {load.count:,} records, of it the server's own start"
    alone = [Figure(name, "s", tuple(starts))] if served.start is not None else []
    return alone + [
        Figure(
            f"recovery after SIGKILL, {load.count:,} records{name}",
            "s",
            column(found[side], "seconds"),
            reach=None if name else RECOVERY_S,
        )
        for side, name in ((backend.side, ""), (backend.raw, f", {backend.raw}"))
    ]


def kill_writer(task: dict[str, Any]) -> None:
    """Let a process append, and kill it in an append."""
    command = command_of({**task, "for_ever": True})
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= task["at_once"] * 10:
                process.send_signal(signal.SIGKILL)
                break
        assert process.wait() == -signal.SIGKILL


def huge(backend: Backend, served: Served, load: Load, _: int) -> list[Figure]:
    """Return what a log needs of memory and disk that is consumed and truncated as it grows."""
    found = child(
        task_of(backend, served, backend.side, load, work="stream", disk=str(served.disk))
    )
    name = f"{load.title}, consumed and truncated"
    growth = found["late_mib"] / found["early_mib"]
    return [
        Figure(f"{name}: produce and fetch", "records/s", (found["per_s"],), "higher"),
        Figure(f"{name}: peak memory, adapter", "MiB", (found["memory_mib"],), reach=MEMORY_MIB),
        Figure(f"{name}: memory at the end / after a tenth", "x", (growth,), reach=1.1),
        Figure(f"{name}: most on disk", "MiB", (found["disk_mib"],), reach=DISK_MIB),
    ]


Piece = Callable[[Backend, Served, Load, int], list[Figure]]
PIECES: dict[str, Piece] = {
    "1024": rates,
    "256": rates,
    "latency": latency,
    "recovery": recovery,
    "huge": huge,
}


def has(backend: Backend, piece: str) -> bool:
    """Tell whether a piece is measured on a backend."""
    return {"recovery": backend.recovers, "huge": backend.huge}.get(piece, True)


def measured(backend: Backend, piece: str, options: argparse.Namespace) -> None:
    """Measure one piece of one backend, print its table, write its file."""
    scale = QUICK_SCALE if options.quick else options.scale
    rounds = 1 if options.quick else options.rounds
    full, loaded = LOADS[piece], os.getloadavg()[0]
    load = full.scaled(max(scale, 0.1) if piece == "latency" else scale)
    say(f"{backend.name}, {piece}: {load.title}; a confirmed record survives {backend.durability}")
    with workspace(options.dir) as root, backend.serving(root) as served:
        figures = PIECES[piece](backend, served, load, rounds)
    say("")
    say_table(figures)
    say("")
    if options.out is not None:
        settings = {
            "backend": backend.name,
            "piece": piece,
            "durability": backend.durability,
            "records": load.count,
            "of": full.count,
            "rounds": len(figures[0].values),
        }
        name = f"{backend.name}-{piece}"
        path = write_result(name, figures, settings, load=loaded, to=options.out)
        say(f"wrote {path}\n")


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(prog="bench.backends")
    parser.add_argument("--only", choices=BACKENDS, action="append", help="may be given again")
    parser.add_argument("--piece", choices=PIECES, action="append", help="may be given again")
    parser.add_argument("--huge", action="store_true", help="the piece huge too")
    parser.add_argument("--scale", type=float, default=1.0, help="a share of all records")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="a fiftieth, one round, no file")
    parser.add_argument("--dir", type=Path, help="a directory on the disk to measure")
    parser.add_argument("--out", type=Path, help="where result files go")
    options = parser.parse_args()
    if options.out is None and not options.quick:
        options.out = RESULTS_DIR
    usual = [one for one in PIECES if one != "huge" or options.huge]
    for name in options.only or BACKENDS:
        for piece in options.piece or usual:
            if has(BACKENDS[name], piece):
                measured(BACKENDS[name], piece, options)


if __name__ == "__main__":
    main()
