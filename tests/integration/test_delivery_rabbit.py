"""`holdfast delivery --amqp`: producers and notices on RabbitMQ, killed on either side."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests import sample_producer
from tests.integration.rabbit_server import PASSWORD, RabbitServer, running
from tests.integration.waiting import until

from holdfast._base.ids import RunId, digest, fresh_token
from holdfast.amqp.broker import Broker, Queue
from holdfast.amqp.contract import Message
from holdfast.amqp.names import dead_queue, notice_queue, retry_queue
from holdfast.amqp.pull import Pull
from holdfast.blobs.local import LocalBlobs
from holdfast.delivery.messages import Request, decode, encode
from holdfast.delivery.ports import header_queue, payload_queue, request_for
from holdfast.delivery.rabbit_queues import RabbitQueues
from holdfast.engine.state import Shared, share
from holdfast.errors import MessageUnroutable
from holdfast.store.rows import NewRun

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "HOLDFAST_AMQP_PASSWORD": PASSWORD,
    "HOLDFAST_SWEEP_AFTER_S": "0.2",
}


@pytest.fixture(scope="module")
def server() -> Iterator[RabbitServer]:
    with running() as one:
        yield one


@pytest.fixture
def broker(server: RabbitServer) -> Iterator[Broker]:
    with Broker(server.url(), patience_s=60) as one:
        yield one


class Scene:
    """A state with external runs of one client, and a producer's queue."""

    def __init__(self, shared: Shared, server: RabbitServer, broker: Broker) -> None:
        self.shared, self.server, self.broker = shared, server, broker
        token = fresh_token()[:12]
        self.client, self.requests = f"acme-{token}", f"requests-{token}"
        self.notices = broker.queue(notice_queue(self.client))

    def open_run(self, name: str) -> RunId:
        run = RunId(digest("run", self.client, name))
        self.shared.store.create_run(NewRun(run, self.client, "p", {}, 1, (), 0, self.requests))
        return run

    def state(self, run: RunId) -> str:
        found = self.shared.store.read_run(run)
        assert found is not None
        return found.state

    @contextmanager
    def delivering(
        self, *, crash: str = "", abandon_s: int = 600
    ) -> Iterator[subprocess.Popen[bytes]]:
        environment = {**os.environ, **SETTINGS, "HOLDFAST_ABANDON_AFTER_S": str(abandon_s)}
        environment |= {"HOLDFAST_CRASH": crash} if crash else {}
        state, url = (
            str(self.shared.directory.root),
            f"amqp://holdfast@127.0.0.1:{self.server.port}/",
        )
        command = [sys.executable, "-m", "holdfast.cli", "delivery", "--state", state]
        process = subprocess.Popen([*command, "--amqp", url], env=environment, cwd=ROOT)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    @contextmanager
    def producing(self) -> Iterator[list[RunId]]:
        """A producer that answers each request, in odd order and twice."""
        asked: list[RunId] = []
        module = sample_producer.load()

        def work(message: Message) -> None:
            request = decode(message.body)
            assert isinstance(request, Request)
            asked.append(request.run)
            header, payloads = module.answers(request)
            for one in (*reversed(payloads), *payloads):
                self.broker.publish(request.payload_queue, [Message(encode(one), one.message_id)])
            said = Message(encode(header), header.message_id)
            self.broker.publish(request.header_queue, [said, said])

        consumer = self.broker.queue(self.requests).consume(work)
        try:
            yield asked
        finally:
            consumer.stop()

    def results_are_right(self, run: RunId) -> bool:
        _, wanted = sample_producer.load().results_of(run)
        blobs = LocalBlobs(self.shared.directory.blobs)
        found = {one.series: one.pieces for one in self.shared.store.read_results(run)}
        read = {
            name: [b"".join(blobs.read(p.location)) for p in some] for name, some in found.items()
        }
        return bool(read == wanted)

    def depths(self, run: RunId) -> list[int | None]:
        names = [header_queue(run), payload_queue(run)]
        every = [*names, *map(retry_queue, names), *map(dead_queue, names)]
        return [self.broker.loop.call(self.broker.link.depth(name)) for name in every]


@pytest.fixture
def scene(server: RabbitServer, broker: Broker, tmp_path: Path) -> Iterator[Scene]:
    with share(tmp_path / "state", part="test") as shared:
        yield Scene(shared, server, broker)


def told(queue: Queue, broker: Broker) -> list[dict[str, Any]]:
    """Return the notices on a client's queue; they stay."""
    found = Pull(broker).take(queue.name, 100)
    return [{"id": message.message_id, **json.loads(message.body)} for _, message in found]


def test_a_run_is_asked_for_answered_and_told_over_queues(scene: Scene, broker: Broker) -> None:
    run = scene.open_run("done")
    with scene.producing() as asked, scene.delivering() as process:
        until(lambda: scene.state(run) == "DONE", "the run is done")
        until(lambda: scene.notices.depth() == 1, "its client is told")
        until(lambda: scene.depths(run) == [None] * 6, "its queues are gone")
        assert asked == [run]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, 130)
    assert scene.results_are_right(run)
    (notice,) = told(scene.notices, broker)
    assert (notice["run"], notice["type"]) == (run, "run.done")


@pytest.mark.parametrize(
    "point", ["external.forward.sent", "external.piece.after", "queue.notice.sent"]
)
def test_killed_and_started_again(scene: Scene, broker: Broker, point: str) -> None:
    """Between asking and knowing it, a piece and its ack, a notice and knowing it."""
    run = scene.open_run("done")
    with scene.producing():
        with scene.delivering(crash=f"{point}:1") as process:
            assert process.wait(60) == -signal.SIGKILL
        with scene.delivering():
            until(lambda: scene.state(run) == "DONE", "the run is done")
            until(lambda: (scene.notices.depth() or 0) >= 1, "its client is told")
            until(lambda: scene.depths(run) == [None] * 6, "its queues are gone")
    assert scene.results_are_right(run)
    until(lambda: len({one["id"] for one in told(scene.notices, broker)}) == 1, "one notice")


def test_the_queues_of_an_abandoned_run_are_deleted(scene: Scene, broker: Broker) -> None:
    """Its producer never answers."""
    run = scene.open_run("abandoned")
    with scene.delivering(abandon_s=2):
        until(lambda: scene.state(run) == "RECEIVING", "the producer is asked")
        assert scene.depths(run)[:2] == [0, 0]
        until(lambda: scene.state(run) == "SWEPT", "the run is swept")
        until(lambda: scene.depths(run) == [None] * 6, "its queues are gone")
        until(lambda: scene.notices.depth() == 1, "its client is told")
    (notice,) = told(scene.notices, broker)
    assert (notice["run"], notice["type"]) == (run, "run.abandoned")


def test_the_broker_is_killed_while_results_come(tmp_path: Path) -> None:
    with (
        running() as server,
        Broker(server.url(), patience_s=60) as broker,
        share(tmp_path / "state", part="test") as shared,
    ):
        scene = Scene(shared, server, broker)
        runs = [scene.open_run(str(number)) for number in range(3)]
        with scene.delivering() as process:
            until(lambda: all(scene.state(run) == "RECEIVING" for run in runs), "all are asked")
            server.settle()
            server.restart()
            with scene.producing():
                until(lambda: any(scene.state(run) == "DONE" for run in runs), "one is done")
                server.let_write()  # the producer's and the notices' queues are new
                server.restart()
                until(lambda: all(scene.state(run) == "DONE" for run in runs), "all are done")
            assert process.poll() is None, "delivery outlived the broker"
        assert all(scene.results_are_right(run) for run in runs)


def test_what_was_received_and_not_acked_is_received_again(broker: Broker) -> None:
    queues = RabbitQueues(broker, abandon_s=0)
    request = request_for(RunId(fresh_token()), "acme")
    assert queues.receive(request.header_queue, 4) == ()
    queues.open(request)
    queues.open(request)
    queue = Queue(broker, broker.queue(request.header_queue).spec)
    queue.publish(*(Message(str(n).encode(), str(n)) for n in range(3)))
    first = queues.receive(request.header_queue, 2)
    assert [one.body for one in first] == [b"0", b"1"]
    assert queues.receive(request.header_queue, 2) == first
    queues.ack(first[0])
    assert [one.body for one in queues.receive(request.header_queue, 4)] == [b"1", b"2"]
    other = RabbitQueues(broker, abandon_s=0)
    assert other.receive(request.header_queue, 4) == []
    queues.delete(request)
    queues.delete(request)
    with pytest.raises(MessageUnroutable):
        Pull(broker).take(request.header_queue, 1)
