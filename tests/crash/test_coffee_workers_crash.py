"""The coffee example's workers, killed at every moment, give the oracle's answers to the byte."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from examples.workers.__main__ import PROCESSES
from tests.crash import coffee_workers
from tests.integration.waiting import until

from holdfast._base.crashpoint import POINTS
from holdfast.testing.crash import CrashLoop, Hit, Tally
from holdfast.worker import persistence

TRY_ALL = os.environ.get("HOLDFAST_WORKER_CRASHES") == "all"
"""All passes and all pairs: hours. Otherwise a part of each that `make crash` has time for."""
SEED = int(os.environ.get("HOLDFAST_SEED", "11"))
WORKER_POINTS = {name for name in POINTS if name.startswith(("worker.", "lease.take."))}
KILLS_MIN = 4
"""Random kills of a run. Fewer try next to nothing: the data is fed row by row to last for more."""
STRIDE = 997
"""Of the passes after a recovery, one in so many is crashed at too, other ones for each moment."""
MOMENTS = {
    "before data commit": "worker.data.before",
    "before ack": "worker.data.after",
    "after ack": "worker.ack.after",
    "before process": "worker.apply.before",
    "after process, before state commit": "worker.apply.after",
    "after process, before the join check": "worker.check.before",
    "after send, before send commit": "worker.send.after",
    "after END received": "worker.end.after",
    "after apply, before publish": "worker.publish.before",
    "after publish, before clean-up": "worker.finish.after",
    "before sending END": "worker.results.after",
    "after sending END": "worker.finish.before",
}
"""What must be survived, by the point that stands there; each is also crashed in its recovery."""


@pytest.fixture(scope="module")
def source() -> Iterator[Path]:
    """The data and the right answers; in memory where there is such a place."""
    memory = Path("/dev/shm")
    base = memory if os.access(memory, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="holdfast-coffee-", dir=base))
    coffee_workers.prepare(path)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def _compacts_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistence, "COMPACT_BYTES_MIN", 20_000)


def crashes(source: Path) -> CrashLoop:
    return CrashLoop(
        partial(coffee_workers.run, source),
        settle=partial(coffee_workers.check_any_moment, source),
        final=partial(coffee_workers.check_final, source),
    )


@pytest.mark.slow
def test_crash_at_every_point(source: Path, tallies: defaultdict[str, Tally]) -> None:
    """Two passes of every point: one early, one late, so that each kind of worker is met."""
    loop = crashes(source)
    passes = loop.passes()
    chosen = {
        Hit(name, max(1, int(passes[name] * (part + place % 5 / 10))))
        for place, name in enumerate(sorted(passes))
        for part in (0.1, 0.6)
    }
    tried = list(
        loop.singles(keep=lambda hit: hit.name in WORKER_POINTS and (TRY_ALL or hit in chosen))
    )
    tallies["coffee workers"].add(loop.tally)
    assert not loop.tally.problems, "\n".join(loop.tally.problems)
    assert {hit.name for hit in tried} == WORKER_POINTS - {"worker.recover.each"}


def in_recovery(hits: Sequence[Hit]) -> list[Hit]:
    """Return what workers pass while they start: from the journal to the first message.

    One thread makes them one by one, so what is passed in between is recovery and nothing else.
    """
    found, inside = [], False
    for hit in hits:
        if hit.name in ("worker.data.before", "worker.inherit.before", "lease.take.before"):
            inside = False
        if inside and hit.name in WORKER_POINTS:
            found.append(hit)
        inside = inside or hit.name == "worker.inherit.after"
    return found


def choose(place: int, struck: list[Hit], hits: Sequence[Hit]) -> list[Hit]:
    """Choose from the passes after a crash; those that strike the recovery are added to `struck`.

    In recovery: the middle pass of each point that it passes. Later: a few passes.
    """
    known = [hit for hit in hits if hit.name in WORKER_POINTS]
    by_name: dict[str, list[Hit]] = defaultdict(list)
    for hit in in_recovery(hits):
        by_name[hit.name].append(hit)
    struck += [passes[len(passes) // 2] for passes in by_name.values()]
    return known if TRY_ALL else struck + known[29 * (place + 1) :: STRIDE]


@pytest.mark.slow
def test_crash_in_the_recovery_from_each_moment(
    source: Path, tallies: defaultdict[str, Tally]
) -> None:
    """In the middle of the run at each named moment, then again while its workers recover."""
    loop = crashes(source)
    passes = loop.passes()
    struck: dict[str, list[Hit]] = {moment: [] for moment in MOMENTS}
    for place, (moment, name) in enumerate(MOMENTS.items()):
        before = loop.tally.pairs
        loop.pairs(Hit(name, passes[name] // 2), choose=partial(choose, place, struck[moment]))
        assert loop.tally.pairs - before >= len(struck[moment]), moment
    tallies["coffee workers"].add(loop.tally)
    assert not loop.tally.problems, "\n".join(loop.tally.problems)
    for moment, hits in struck.items():
        assert {"worker.apply.after", "worker.recover.each"} <= {hit.name for hit in hits}, moment


@pytest.mark.slow
def test_random_kills_of_processes(source: Path, tmp_path: Path) -> None:
    """The one command, with a worker killed every second or so. Again with HOLDFAST_SEED."""
    with tempfile.TemporaryDirectory(dir=source) as state:
        command = [sys.executable, "-m", "examples.workers", str(source / "data")]
        command += ["--state", state, "--out", str(tmp_path / "out"), "--rows-per-chunk", "1"]
        command += ["--kill", str(SEED), "--patience", "2"]
        done = subprocess.run(
            command,
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    print(f"\nseed {SEED}: {done.stdout.strip()}")
    killed = re.search(r"(\d+) workers killed", done.stdout)
    assert killed is not None
    assert int(killed[1]) >= KILLS_MIN
    coffee_workers.compare(source, tmp_path / "out")


def children_of(pid: int) -> list[int]:
    """Return the processes that this one started; none if it is gone."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(one) for task in tasks for one in (task / "children").read_text().split()]
    except FileNotFoundError:
        return []


def lives(pid: int) -> bool:
    """Tell whether a process runs: one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_no_worker_outlives_the_command(source: Path, tmp_path: Path, number: int) -> None:
    """Else it keeps its journal, its lock and its lease, and the next command waits for it."""
    command = [sys.executable, "-m", "examples.workers", str(source / "data")]
    command += ["--state", str(tmp_path / "state"), "--rows-per-chunk", "1"]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    workers: list[int] = []
    try:
        until(lambda: len(children_of(process.pid)) == len(PROCESSES), "all workers are started")
        workers = children_of(process.pid)
        until(lambda: any(tmp_path.glob("state/workers/filter/*/*/*/journal")), "one is at work")
        process.send_signal(number)
        code = process.wait(60)
        until(lambda: not any(map(lives, workers)), "every worker is gone")
        assert code == (-number if number == signal.SIGKILL else 128 + number)
    finally:
        process.kill()
        process.wait()
        for pid in filter(lives, workers):
            os.kill(pid, signal.SIGKILL)
