"""Members of a group join, leave, stand still and are killed: nothing is lost, nothing doubled."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash import group_work

from holdfast._base.crashpoint import POINTS
from holdfast.log.embedded import EmbeddedBackend
from holdfast.testing.crash import CrashLoop, Hit, Tally

SMALL = 24
GROUP_POINTS = {name for name in POINTS if name.startswith(("worker.inherit.", "lease.take."))}
MESSAGES = 100_000
MORE = 15_000
"""Fewer: members are through with them between two looks, and a kill meets no work."""
KILLS = 10
"""How many there are before the messages end. They go on while there is something to do."""
MEMBERS = 3
SEED = int(os.environ.get("HOLDFAST_SEED", "7"))


def run(root: Path) -> None:
    group_work.fill(root, SMALL)
    group_work.run_member(root, batch=3)


@pytest.mark.slow
def test_crash_while_a_partition_is_taken(tallies: defaultdict[str, Tally]) -> None:
    """Every pass of taking a lease and inheriting a journal, and each of them in the recovery."""
    loop = CrashLoop(
        run,
        settle=group_work.check_any_moment,
        final=lambda root: group_work.check_final(root, SMALL),
    )
    hits = list(loop.singles(keep=lambda hit: hit.name in GROUP_POINTS and hit.number <= 2))
    for name in ("worker.ack.after", "worker.send.after", "worker.inherit.before"):
        loop.pairs(Hit(name, 2), keep=lambda hit: hit.name in GROUP_POINTS and hit.number <= 2)
    tallies["group"].add(loop.tally)
    assert not loop.tally.problems, "\n".join(loop.tally.problems)
    assert {hit.name for hit in hits} == GROUP_POINTS
    assert loop.tally.pairs >= 8


@pytest.fixture
def root() -> Iterator[Path]:
    """In memory where there is such a place: fsync is not what is tried here."""
    memory = Path("/dev/shm")
    base = memory if os.access(memory, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="holdfast-group-", dir=base))
    yield path
    shutil.rmtree(path, ignore_errors=True)


class Members:
    """Processes of one group, and what was done to them."""

    def __init__(self, root: Path) -> None:
        self.root, self.did = root, Counter[str]()
        self.processes = [self._start() for _ in range(MEMBERS)]

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.crash.group_work", str(self.root)]
        return subprocess.Popen(command, cwd=Path(__file__).parents[2])

    def is_through(self) -> bool:
        codes = [process.poll() for process in self.processes]
        assert all(code in (None, 0) for code in codes), codes
        return codes == [0] * len(codes)

    def disturb(self, draw: random.Random) -> None:
        """Kill one. Every third time another leaves or stands still, in turn, and comes back."""
        place, another = draw.sample(range(MEMBERS), 2)
        self._replace(place, signal.SIGKILL)
        if self.did["kill"] % 6 == 3:
            self._replace(another, signal.SIGTERM)
        elif self.did["kill"] % 6 == 0:
            self._stand_still(another)

    def _replace(self, place: int, by: signal.Signals) -> None:
        """End a member that works; another joins for it."""
        victim = self.processes[place]
        if victim.poll() is not None:
            return
        victim.send_signal(by)
        # One that ended by itself in this moment was not killed; one that is told to leave while
        # it starts dies of it.
        code = victim.wait()
        assert code in (0, -by)
        self.did["kill" if code == -signal.SIGKILL else "leave"] += 1
        self.processes[place] = self._start()

    def _stand_still(self, place: int) -> None:
        """Stop a member for so long that others take what it has."""
        victim = self.processes[place]
        if victim.poll() is not None:
            return
        self.did["stop"] += 1
        victim.send_signal(signal.SIGSTOP)
        self.processes.append(self._start())
        time.sleep(group_work.PATIENCE_S * 2.5)
        victim.send_signal(signal.SIGCONT)

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.mark.slow
def test_random_worker_kills(root: Path) -> None:
    """100,000 messages and more, a kill every 1 to 3 s, all of them while there is work.

    Whoever is quick gets more messages until there were enough kills. Again with
    HOLDFAST_SEED=<the seed it says>.
    """
    print(f"\nseed {SEED}")
    draw, sent, ended = random.Random(SEED), MESSAGES, False
    group_work.fill(root, sent, ends=False)
    log = EmbeddedBackend(root / "store.sqlite3")
    log.start()
    members = Members(root)
    deadline = time.monotonic() + 240
    try:
        next_s = time.monotonic() + 1
        while not members.is_through():
            assert time.monotonic() < deadline, f"not through; seed {SEED}, {members.did}"
            if not ended and members.did["kill"] >= KILLS:
                ended = True
                group_work.fill(root, sent, first=sent)
            elif not ended and group_work.backlog(log) < MORE:
                group_work.fill(root, sent + MORE, first=sent, ends=False)
                sent += MORE
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + draw.uniform(1, 3)
                members.disturb(draw)
            time.sleep(0.05)
    finally:
        members.end()
        log.stop()
    print(f"{sent} messages: {dict(members.did)}")
    group_work.check_final(root, sent)
    assert members.did["kill"] >= KILLS
    assert members.did["leave"] >= 1
    assert members.did["stop"] >= 1
