"""Three machines and the cables between them: a broker, whoever works, and whoever takes over.

Each machine is a network namespace; the broker is on the first. What namespaces do not part is the
disk: the state is one directory for all of them, under one kernel, as SQLite needs it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.crash import group_work
from tests.integration import gated_run, kafka_server
from tests.integration.conftest import scratch
from tests.integration.kafka_server import KafkaServer
from tests.integration.node_jobs import MEMBER_BATCH
from tests.integration.nodes import Node, network
from tests.integration.waiting import until

from holdfast._base.ids import START, Offset, digest, fresh_token
from holdfast.log.contract import QueueBackend, Record
from holdfast.log.embedded import EmbeddedBackend
from holdfast.log.kafka.backend import KafkaBackend
from holdfast.store.leases import owner_pid
from holdfast.store.sqlite import SqliteStore
from holdfast.worker.messages import Chunk, End, decode, encode

FEED = 300
"""Messages that are appended at once."""
Machines = tuple[Node, Node, Node]


@pytest.fixture(scope="module")
def wired() -> Iterator[tuple[Machines, KafkaServer]]:
    with network(3) as (one, two, three), kafka_server.running(scratch("node"), node=one) as server:
        yield (one, two, three), server


@pytest.fixture
def nodes(wired: tuple[Machines, KafkaServer]) -> Iterator[Machines]:
    """Three machines, all cables in place, nothing running but the broker."""
    machines, _ = wired
    yield machines
    for node in machines:
        node.end_processes()
        node.heal()


@pytest.fixture
def kafka(wired: tuple[Machines, KafkaServer]) -> KafkaServer:
    """The broker of the first machine."""
    return wired[1]


def engine_on(node: Node, root: Path, log: str) -> subprocess.Popen[Any]:
    command = (sys.executable, "-m", "tests.integration.gated_run", str(root), log)
    return node.start(*command, stderr=subprocess.PIPE)


def test_master_failover(nodes: Machines, kafka: KafkaServer, tmp_path: Path) -> None:
    """Goal: whatever becomes of the engine and its line, another one on another machine ends the
    run, with the oracle's answers, each row once.

    Method: the engine's machine dies. Its successor elsewhere is cut off for a while, during which
    nobody can take its place, and goes on. A cut that outlasts its patience ends it, with a line
    that says why. The machine that died is back, and the run ends there.
    """
    _, second, third = nodes
    log = kafka.url(f"run-{fresh_token()[:8]}")
    gated_run.prepare(tmp_path)
    first_engine = engine_on(second, tmp_path, log)
    _let_and_see(tmp_path, 5)
    second.die()
    assert first_engine.returncode == -9

    engine = engine_on(third, tmp_path, log)
    _let_and_see(tmp_path, 10)
    third.cut()
    gated_run.let(tmp_path, 12)
    until(third.is_stuck, "the engine asks for the next reference")
    beside = engine_on(nodes[0], tmp_path, log)
    assert "[STATE_BUSY]" in beside.communicate(timeout=60)[1]
    assert not gated_run.has_come(tmp_path, 11)
    third.heal()
    until(lambda: gated_run.has_come(tmp_path, 12), "it goes on")
    assert engine.poll() is None
    third.end_processes()

    engine = engine_on(third, tmp_path, f"{log}?timeout_s=2")
    _let_and_see(tmp_path, 15)
    third.cut()
    gated_run.let(tmp_path)
    assert "[LOG_UNREACHABLE]" in engine.communicate(timeout=60)[1]
    assert engine.returncode == 1

    second.heal()
    engine = engine_on(second, tmp_path, log)
    assert engine.communicate(timeout=60) == (None, "")
    gated_run.check(tmp_path)


def _let_and_see(root: Path, number: int) -> None:
    """Let batches go on until the next one stands at the gate."""
    gated_run.let(root, number - 1)
    until(lambda: gated_run.has_come(root, number), f"batch {number} has come")


def test_cross_node_fetch(nodes: Machines, kafka: KafkaServer, tmp_path: Path) -> None:
    """Goal: a worker on another machine is given an endpoint and needs nothing else.

    Method: one that has no more than the endpoint's text, an empty directory and an empty
    environment passes on what the first machine appends, over a cut that heals.
    """
    first, second, _ = nodes
    with first.entered():
        log = KafkaBackend(kafka.url(f"cross-{fresh_token()[:8]}"))
        log.start()
        for topic in ("in", "out"):
            log.create_topic(topic)
        append(log, 1, 100)
        paths = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        needed = ["env", "-i", *(f"{name}={value}" for name, value in paths.items())]
        job = (*needed, sys.executable, "-m", "tests.integration.node_jobs", "worker")
        worker = second.start(*job, str(tmp_path / "own"), stdin=subprocess.PIPE)
        assert worker.stdin is not None
        worker.stdin.write(json.dumps(asdict(log.endpoint())) + "\n")
        worker.stdin.close()
        until(lambda: len(passed(log)) == 100, "all came back")
        second.cut()
        append(log, 101, 200)
        log.produce("in", Record(encode(End("ada", "t", 200, "s"))))
        until(second.is_stuck, "the worker asks, and nobody hears it")
        assert len(passed(log)) == 100
        second.heal()
        until(lambda: len(passed(log)) == 201, "all came back, and the END")
        log.stop()
    assert worker.poll() is None


def append(log: QueueBackend, first: int, last: int) -> None:
    chunks = [Chunk("ada", "t", "s", n, b"%d" % n) for n in range(first, last + 1)]
    log.produce_batch("in", [Record(encode(one), record_id=one.message_id) for one in chunks])


def passed(log: QueueBackend) -> set[tuple[int, bytes]]:
    """What was passed on, by ordinal and payload; the END has the ordinal 0.

    Each under one id. A copy under the same id is none too many: whoever reads on drops it.
    """
    found: dict[str, tuple[int, bytes]] = {}
    place = START
    while records := log.fetch_batch("out", place, count=1000):
        place = Offset(records[-1].offset + 1)
        for one in records:
            message = decode(one.record.value)
            assert one.record.record_id == message.message_id
            match message:
                case Chunk():
                    what = (message.ordinal, message.payload)
                case End():
                    what = (0, b"%d" % message.total_chunks)
                case _:
                    raise AssertionError(message)
            assert found.setdefault(message.message_id, what) == what, "one id, two messages"
    assert set(found.values()) <= {(n, b"%d" % n) for n in range(1, 201)} | {(0, b"200")}
    assert len(set(found.values())) == len(found), "the same was passed on under two ids"
    return set(found.values())


class Group:
    """A group with a member on each machine, looked at through a store of our own.

    Its topic has more to come at any time, until `fed` is all there is.
    """

    def __init__(self, root: Path, nodes: Sequence[Node], log: str) -> None:
        self.root, self.fed = root, FEED
        group_work.fill(root, FEED, ends=False)
        self.store = SqliteStore.open(root / "store.sqlite3")
        self._log = EmbeddedBackend(self.store)
        job = (sys.executable, "-m", "tests.integration.node_jobs", "member", str(root), log)
        self.members = [node.start(*job) for node in nodes]

    def held(self) -> dict[int | None, list[int]]:
        """The partitions by the process that owns them."""
        found: dict[int | None, list[int]] = {}
        for partition in range(group_work.PARTITIONS):
            lease = self.store.read_lease(f"{group_work.GROUP}-{digest('in')}-{partition}")
            found.setdefault(owner_pid(lease) if lease else None, []).append(partition)
        return found

    def counts(self, topic: str = "out") -> list[int]:
        """How much each partition has."""
        partitions = range(group_work.PARTITIONS)
        return [self._log.bounds(topic, partition=number)[1] for number in partitions]

    def feed(self, *, ends: bool = False) -> None:
        """Append more where a partition is nearly through."""
        left = [come - gone for come, gone in zip(self.counts("in"), self.counts(), strict=True)]
        if min(left) * group_work.PARTITIONS < FEED or ends:
            group_work.fill(self.root, self.fed + FEED, first=self.fed, ends=ends)
            self.fed += FEED

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait, and let nobody run out of work meanwhile."""

        def fed_and_so() -> object:
            self.feed()
            return condition()

        until(fed_and_so, what)

    def see_progress(self, partitions: Sequence[int]) -> None:
        """Return when each of these got on by some batches."""
        before = self.counts()
        self.until(
            lambda: all(self.counts()[one] > before[one] + 2 * MEMBER_BATCH for one in partitions),
            f"partitions {partitions} get on",
        )

    def end(self) -> list[int]:
        """Say what there is at most, let all of it through, and all members go."""
        self.feed(ends=True)
        until(lambda: group_work.is_through(self._log), "all is through", timeout_s=120)
        (self.root / "over").touch()
        codes = [member.wait(60) for member in self.members]
        self.store.close()
        return codes


def test_node_failure(nodes: Machines, kafka: KafkaServer, tmp_path: Path) -> None:
    """Goal: the partitions of a machine that dies, or is cut off, are taken by others by lease;
    what it had begun is neither lost nor done twice.

    Method: three members share six partitions of a topic that travels over the broker. The second
    machine dies in the middle. The third is cut off in the middle; others go on with what it had;
    it wakes up, is fenced, and gets its share again.
    """
    _, second, third = nodes
    group = Group(tmp_path, nodes, kafka.url(f"group-{fresh_token()[:8]}"))
    stays, dies, sleeps = group.members
    group.until(lambda: {one.pid for one in group.members} == set(group.held()), "all have some")

    lost = group.held()[dies.pid]
    group.see_progress(lost)
    second.die()
    group.until(lambda: dies.pid not in group.held(), "others have what the dead one had")
    group.see_progress(lost)

    lost = group.held()[sleeps.pid]
    third.cut()
    group.until(third.is_stuck, "the third asks, and nobody hears it")
    group.until(lambda: set(group.held()) == {stays.pid}, "the first one has all")
    group.see_progress(lost)
    third.heal()
    group.until(lambda: sleeps.pid in group.held(), "the third has its share again")
    group.see_progress(group.held()[sleeps.pid])
    assert group.end() == [0, -9, 0]
    group_work.check_final(tmp_path, group.fed)
