"""One side of one backend in a process of its own, so that its memory is its own: `bench.backends`
starts it, with a JSON object as its only argument, and reads a JSON object from its output.

    rates     produce and fetch: records per second, and the process's peak memory
    latency   one record at a time, from the call that sends it to the listener that has it
    fill      append until killed; says how many records are safe
    resume    wait for a line, then connect, read one record and append one: seconds
    stream    append, read, commit and drop as it goes: memory and disk stay flat
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.rabbit import RabbitSide, RawRabbit
from bench.sides import LogSide, MemorySide, RawKafka, RawList, RawSqlite, Side
from holdfast._base.ids import Offset

SIDES: dict[str, type[Side]] = {
    "memory": MemorySide,
    "log": LogSide,
    "rabbit": RabbitSide,
    "raw list": RawList,
    "raw SQLite": RawSqlite,
    "raw confluent-kafka": RawKafka,
    "raw aio-pika": RawRabbit,
}
MIB = 1 << 20
GROUP = "bench"
KEPT = 50_000
"""Records that a stream holds before it drops them: 200 MiB of the largest."""


def memory_mib(field: str) -> float:
    """Return a line of what the kernel says of this process: VmHWM is its peak, VmRSS now."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


def batch_of(task: dict[str, Any]) -> list[bytes]:
    """Return different values, so that nothing is the same object twice."""
    width = task["record_bytes"]
    return [number.to_bytes(4, "big") * (width // 4) for number in range(task["at_once"])]


def rates(side: Side, task: dict[str, Any]) -> dict[str, Any]:
    """Return how fast it takes records and gives them back.

    One batch goes ahead: sides differ in when they connect to produce, which is not what is asked.
    """
    batch, count, topic = batch_of(task), task["count"], task["topic"]
    side.produce(topic, batch)
    began = time.perf_counter()
    for _ in range(0, count, len(batch)):
        side.produce(topic, batch)
    produced = time.perf_counter()
    side.fetch(topic, count, len(batch), start=len(batch))
    fetched = time.perf_counter()
    return {
        "produce": count / (produced - began),
        "fetch": count / (fetched - produced),
        "memory_mib": memory_mib("VmHWM"),
    }


def latency(side: Side, task: dict[str, Any]) -> dict[str, Any]:
    """Return milliseconds of single records, each sent when the one before has arrived."""
    listener = SIDES[task["side"]](task["address"])
    listener.open()
    times, arrived, (value,) = [], threading.Event(), batch_of({**task, "at_once": 1})
    with listener.listening(task["topic"], lambda _: arrived.set()):
        for number in range(task["count"] + task["warm"]):
            arrived.clear()
            began = time.perf_counter()
            side.produce(task["topic"], [value])
            assert arrived.wait(60), f"record {number} did not arrive"
            times.append((time.perf_counter() - began) * 1000)
    listener.close()
    return {"ms": times[task["warm"] :]}


def fill(side: Side, task: dict[str, Any]) -> dict[str, Any]:
    """Append `count` records; then, if asked to, go on until killed, saying how many are safe."""
    batch, done = batch_of(task), 0
    while done < task["count"] or task["for_ever"]:
        side.produce(task["topic"], batch)
        done += len(batch)
        if task["for_ever"]:
            say(done)
    return {"done": done}


def resume(side: Side, task: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds from a word on the input to one record read and one appended."""
    say("ready")
    sys.stdin.readline()
    began = time.perf_counter()
    side.open()
    side.fetch(task["topic"], 1, 1, start=task["place"])
    side.produce(task["topic"], batch_of({**task, "at_once": 1}))
    return {"seconds": time.perf_counter() - began}


def stream(side: Side, task: dict[str, Any]) -> dict[str, Any]:
    """Return rate, memory after a tenth and at its peak, and the most that lay on the disk."""
    assert isinstance(side, LogSide)
    log, topic, batch, count = side.log, task["topic"], batch_of(task), task["count"]
    log.register_group(topic, GROUP)
    directory, done, early, disk = Path(task["disk"]), 0, 0.0, 0.0
    began = time.perf_counter()
    while done < count:
        side.produce(topic, batch)
        side.fetch(topic, len(batch), len(batch), start=done)
        done += len(batch)
        if done % KEPT == 0 or done == count:
            log.commit_offset(topic, GROUP, Offset(done))
            log.truncate_before(topic, Offset(done))
            disk = max(disk, size_mib(directory))
            early = early if early or done < count // 10 else memory_mib("VmRSS")
    return {
        "per_s": count / (time.perf_counter() - began),
        "early_mib": early,
        "late_mib": memory_mib("VmRSS"),
        "memory_mib": memory_mib("VmHWM"),
        "disk_mib": disk,
    }


def size_mib(directory: Path) -> float:
    """Return what lies below a directory; files come and go meanwhile."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_blocks * 512 if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total / MIB


def say(what: object) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


WORK: dict[str, Callable[[Side, dict[str, Any]], dict[str, Any]]] = {
    "rates": rates,
    "latency": latency,
    "fill": fill,
    "resume": resume,
    "stream": stream,
}


def main() -> None:
    """Do the one task."""
    task = json.loads(sys.argv[1])
    side = SIDES[task["side"]](task["address"])
    if task["work"] != "resume":
        side.open()
        side.create(task["topic"])
    found = WORK[task["work"]](side, task)
    side.close()
    say(json.dumps(found))


if __name__ == "__main__":
    main()
