"""Routers as real processes, a state with runs to send to, and what shards and intake then have."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.integration.rabbit_server import PASSWORD, RabbitServer
from tests.integration.waiting import until
from tests.service.toy import pipe

from holdfast import Pipeline
from holdfast._base.ids import Ordinal, RunId, digest
from holdfast.amqp.broker import Broker, Queue
from holdfast.amqp.contract import Message
from holdfast.amqp.names import client_queue
from holdfast.blobs.local import LocalBlobs
from holdfast.config import DEFAULT, Config
from holdfast.delivery.export import export_series
from holdfast.engine.loop import Engine
from holdfast.engine.parts import Life
from holdfast.engine.state import Shared, StateDirectory, hold, share
from holdfast.log.embedded import EmbeddedBackend
from holdfast.router.messages import ClientChunk, ClientEnd, ClientMessage, encode
from holdfast.store.contract import Store
from holdfast.store.rows import NewRun, RunState, SenderDecl
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.plain import PlainExecutor
from holdfast.worker.messages import decode

ROOT = Path(__file__).parents[2]


def payload_of(ordinal: int) -> bytes:
    return f"shop,amount\ns{ordinal % 3},{ordinal}\n".encode()


def chunk_of(run: RunId, ordinal: int, sender: str = "", payload: bytes = b"") -> ClientChunk:
    data = payload or payload_of(ordinal)
    checksum = sha256(data).hexdigest()
    return ClientChunk(run, "sales", sender, Ordinal(ordinal), "csv", checksum, data)


def end_of(run: RunId, count: int, sender: str = "") -> ClientEnd:
    return ClientEnd(run, "sales", sender, count)


def send(broker: Broker, client: str, *messages: ClientMessage) -> None:
    """Send as a client does: to its own queue, each message under its name."""
    broker.publish(client_queue(client), [Message(encode(one), one.message_id) for one in messages])


class Place:
    """A state directory with clients' runs, looked at through a store of our own."""

    def __init__(self, root: Path, pipeline: Pipeline = pipe) -> None:
        self.root, self._pipeline = root, pipeline
        with share(root, part="test"):
            pass
        self.store: Store = SqliteStore.open(StateDirectory(root).store)

    def open_run(
        self, client: str, senders: Sequence[str] = ("",), *, name: str = "r", whole: bool = False
    ) -> RunId:
        """Create a run of one table `sales` with these senders.

        A `whole` one passes its barrier by itself: no engine has to apply its chunks.
        """
        run = RunId(digest("run", client, name))
        declared = tuple(SenderDecl("sales", sender, 1, whole=whole) for sender in senders)
        spec = self._pipeline.spec()
        self.store.create_run(NewRun(run, client, spec.name, spec.fingerprint, 1, declared, 0))
        return run

    def received(self, run: RunId) -> dict[str, list[int]]:
        return {one.sender: list(one.received) for one in self.store.read_progress(run)}

    def announced(self, run: RunId) -> dict[str, int | None]:
        return {one.sender: one.announced for one in self.store.read_progress(run)}

    def state_of(self, run: RunId) -> str:
        found = self.store.read_run(run)
        assert found is not None
        return found.state

    def is_whole(self, run: RunId, count: int) -> bool:
        """Every sender has exactly the chunks 1 to `count`, and its END says so."""
        every = list(range(1, count + 1))
        return all(found == every for found in self.received(run).values()) and all(
            found == count for found in self.announced(run).values()
        )

    def payloads_are_right(self, run: RunId) -> bool:
        """The checksums of what was bound are those of what was sent."""
        return all(
            chunk.checksum == sha256(payload_of(chunk.ordinal)).hexdigest()
            for chunk in self.store.list_chunks(run)
        )


class RouterProcess:
    """`holdfast router` as a process, with its log as it grows."""

    def __init__(
        self,
        server: RabbitServer,
        state: Path,
        *options: str,
        url: str | None = None,
        crash: str | None = None,
        pipeline: str = "tests.service.toy:pipe",
        **more: str,
    ) -> None:
        self.log_path = state.parent / f"router-{digest(os.urandom(8))}.log"
        command = [sys.executable, "-m", "holdfast.cli", "router", "--state", str(state)]
        command += ["--pipeline", pipeline]
        command += ["--amqp", url or f"amqp://holdfast@127.0.0.1:{server.port}/"]
        command += ["--json", *options]
        environment = {**os.environ, "HOLDFAST_AMQP_PASSWORD": PASSWORD, **more}
        if crash is not None:
            environment["HOLDFAST_CRASH"] = crash
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command, env=environment, cwd=ROOT, stderr=log, stdout=log
            )

    def lines(self) -> list[dict[str, Any]]:
        """Return what it has said so far."""
        text = self.log_path.read_text()
        whole = text[: text.rfind("\n") + 1]
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def said(self, event: str, **facts: Any) -> int:
        """Return how often it said something."""
        return sum(
            line["event"] == event and facts.items() <= line.items() for line in self.lines()
        )

    def ready(self) -> RouterProcess:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.log_path.read_text()
            return self.said("serving") > 0

        until(is_ready, "the router serves")
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def died_by_crash(self) -> bool:
        return self.process.poll() == -signal.SIGKILL

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def figures_of(router: RouterProcess) -> dict[str, float]:
    """Return what a router serves at /metrics; it was started with `--metrics-port`."""
    (ready,) = [line for line in router.lines() if line["event"] == "router ready"]
    url = f"http://127.0.0.1:{ready['metrics_port']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(r"^holdfast_router_(\w+) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


@contextmanager
def routing(
    server: RabbitServer, place: Place, *options: str, **more: Any
) -> Iterator[RouterProcess]:
    """Run a router for a block; it is gone afterwards."""
    router = RouterProcess(server, place.root, *options, **more)
    try:
        yield router
    finally:
        if router.process.poll() is None:
            router.kill()


def compute(
    state: Path, pipeline: Pipeline, run: RunId, out: Path, config: Config = DEFAULT
) -> None:
    """Let an engine without Spark compute a run that is whole, and write its answers."""
    with hold(state, config) as held:
        engine = Engine(
            *(held, pipeline.spec(), PlainExecutor(pipeline)),
            log=EmbeddedBackend(held.store),
            blobs=LocalBlobs(held.directory.blobs),
            config=config,
        )
        assert engine.advance(run) == RunState.COMPLETING
        export(Shared(held.directory, held.store, Life(1.0)), run, out)


def export(shared: Shared, run: RunId, out: Path) -> None:
    """Write the answers of a run that was computed."""
    for result in shared.store.read_series(run):
        export_series(shared.directory.root, out, result)


def drained(queue: Queue) -> Counter[Any]:
    """Take everything out of a shard's queue; returns its messages with their multiplicity."""
    found: Counter[Any] = Counter()
    seen: list[bytes] = []

    def take(message: Message) -> None:
        assert message.message_id == decode(message.body).message_id
        found[decode(message.body)] += 1
        seen.append(message.body)

    wanted = queue.depth() or 0
    consumer = queue.consume(take, prefetch=100)
    until(lambda: len(seen) >= wanted, "the shard's queue is read")
    consumer.stop()
    return found
