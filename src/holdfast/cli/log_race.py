"""How fast a log takes records and gives them back, and how long one durable append takes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from holdfast._base.clock import SystemClock
from holdfast._base.ids import Offset
from holdfast._base.invariant import invariant
from holdfast.cli.measure import stopwatch
from holdfast.log.contract import QueueBackend, Record

RECORD_BYTES = 1024
AT_ONCE = 100
"""Records per batch, of a produce and of a fetch."""
TOPIC = "bench"


def produce_rate(log: QueueBackend, count: int) -> float:
    """Return records per second that a new topic takes, in batches."""
    log.create_topic(TOPIC)
    batch = [Record(bytes([n]) * RECORD_BYTES) for n in range(AT_ONCE)]

    def produce() -> None:
        for _ in range(count // AT_ONCE):
            log.produce_batch(TOPIC, batch)

    return count / stopwatch(produce)


def fetch_rate(log: QueueBackend, count: int) -> float:
    """Return records per second that the topic gives back, from its first to its last."""
    found = 0

    def fetch() -> None:
        nonlocal found
        while records := log.fetch_batch(TOPIC, Offset(found), count=AT_ONCE):
            found += len(records)

    seconds = stopwatch(fetch)
    invariant(found == count, f"the log gave {found} records of {count}")
    return count / seconds


def append_times(log: QueueBackend, count: int) -> list[float]:
    """Return the seconds of each of many single appends."""
    record = Record(b"x" * RECORD_BYTES)
    return each(lambda: log.produce(TOPIC, record), count)


def fsync_times(directory: Path, count: int) -> list[float]:
    """Return the seconds of appending a record to a bare file and waiting for the disk."""
    descriptor = os.open(directory / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def append() -> None:
        os.write(descriptor, b"x" * RECORD_BYTES)
        os.fdatasync(descriptor)

    try:
        return each(append, count)
    finally:
        os.close(descriptor)


def each(work: Callable[[], object], count: int) -> list[float]:
    """Return the seconds of each of many repetitions."""
    now = SystemClock().monotonic_s
    times = []
    for _ in range(count):
        started = now()
        work()
        times.append(now() - started)
    return times
