"""How long a resume takes after SIGKILL: from opening the log to its first fetched record.

    .venv/bin/python -m bench.resume

A process appends to a log without end and is killed in the middle. A new process then opens the
file, asks for its group's position and fetches from there: Python's start is not in the time, the
recovery of SQLite's own log is. The file is in the page cache, as it is after a crash of a process;
after a power cut it would have to be read from the disk.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from bench.harness import Size, alone, say
from holdfast.cli.log_race import AT_ONCE, RECORD_BYTES
from holdfast.cli.measure import Figure, ratio, stopwatch
from holdfast.log.contract import Record
from holdfast.log.embedded import EmbeddedBackend
from holdfast.store.sqlite import SqliteStore

REACH_S = 1.0
TOPIC, GROUP = "bench", "workers"


def figures(size: Size, root: Path) -> list[Figure]:
    """Return the seconds of a resume with few and with many records in the log."""
    few, many = size.resume_records
    found = {count: measure(root / f"resume-{count}", count, size.rounds) for count in (few, many)}
    made = [
        Figure(f"resume after SIGKILL, {count:,} records", "s", tuple(values), reach=REACH_S)
        for count, values in found.items()
    ]
    title = f"resume after SIGKILL, {many:,} / {few:,} records"
    return [*made, ratio(title, found[many], found[few])]


def measure(directory: Path, count: int, rounds: int) -> list[float]:
    """Fill a log, then kill, resume and time, as often as asked."""
    directory.mkdir()
    path = directory / "log.sqlite3"
    kill_after(path, count)
    times = []
    for number in range(rounds):
        kill_after(path, AT_ONCE)
        command = [sys.executable, "-m", "bench.resume", "open", str(path)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        times.append(float(done.stdout))
        say(f"  round {number + 1} of {rounds}: {count:,} records {times[-1]:.4f}")
    return times


def kill_after(path: Path, count: int) -> None:
    """Let a process append, and kill it in an append after at least `count` more records."""
    command = [sys.executable, "-m", "bench.resume", "fill", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= count:
                process.send_signal(signal.SIGKILL)
                break
        assert process.wait() == -signal.SIGKILL


def fill(path: Path) -> None:
    """Append until killed; says after each batch how many records are durable."""
    log = EmbeddedBackend(path)
    log.start()
    log.create_topic(TOPIC)
    batch = [Record(bytes([n]) * RECORD_BYTES) for n in range(AT_ONCE)]
    done = 0
    while True:
        last = log.produce_batch(TOPIC, batch)[-1]
        if last % 1000 == AT_ONCE - 1:
            log.commit_offset(TOPIC, GROUP, last)
        done += AT_ONCE
        sys.stdout.write(f"{done}\n")
        sys.stdout.flush()


def open_and_fetch(path: Path) -> None:
    """Print the seconds from opening the log to the first record."""

    def resume() -> None:
        # A store of our own: the log would import its module while the clock runs.
        log = EmbeddedBackend(SqliteStore.open(path))
        log.start()
        position = log.get_committed_offset(TOPIC, GROUP)
        assert position > 0
        assert log.fetch(TOPIC, position) is not None

    sys.stdout.write(f"{stopwatch(resume)}\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["fill"]:
        fill(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["open"]:
        open_and_fetch(Path(sys.argv[2]))
    else:
        alone("resume", figures)
