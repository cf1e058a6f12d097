"""Whole runs whose input came through the router: the same answers, to the byte, killed or not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from tests.integration.rabbit_server import RabbitServer, running
from tests.integration.router_work import ROOT, RouterProcess, compute, export, send
from tests.integration.waiting import until
from tests.service.processes import Process
from tests.unit.plain_runs import run_toy, tiny_pipeline

from holdfast import Pipeline
from holdfast._base.ids import Ordinal, RunId, digest
from holdfast.amqp.broker import Broker
from holdfast.amqp.names import client_queue
from holdfast.amqp.topology import QueueSpec
from holdfast.config import Config
from holdfast.engine.state import Shared, share
from holdfast.intake.listing import list_tables
from holdfast.intake.opening import declare
from holdfast.router.messages import ClientChunk, ClientEnd, ClientMessage
from holdfast.spark.load import load_pipeline
from holdfast.store.rows import NewRun

SMALL = Config(chunk_bytes=64, batch_bytes=200, batch_chunks=3)
CHUNK_LINES = 400


@pytest.fixture(scope="module")
def server() -> Iterator[RabbitServer]:
    with running() as one:
        yield one


def documents(path: Path, lines_each: int) -> list[bytes]:
    """Cut a CSV file into whole documents, each with the header line."""
    header, *rows = path.read_bytes().splitlines(keepends=True)
    pieces = [rows[at : at + lines_each] for at in range(0, len(rows), lines_each)] or [[]]
    return [header + b"".join(piece) for piece in pieces]


def messages_of(run: RunId, pipeline: Pipeline, folder: Path, lines: int) -> list[ClientMessage]:
    """Everything that a client sends of a directory of inputs: ENDs first, chunks backwards."""
    found: list[ClientMessage] = []
    for table, paths in list_tables(folder, pipeline.spec().tables, ignore_unknown=True).items():
        every = [one for path in sorted(paths) for one in documents(path, lines)]
        found.append(ClientEnd(run, table, "", len(every)))
        for ordinal, data in reversed(list(enumerate(every, 1))):
            checksum = sha256(data).hexdigest()
            found.append(ClientChunk(run, table, "", Ordinal(ordinal), "csv", checksum, data))
    return found


def create(shared: Shared, pipeline: Pipeline, client: str) -> RunId:
    spec, run = pipeline.spec(), RunId(digest("run", client, "key"))
    senders = declare(spec.tables, {})
    shared.store.create_run(
        NewRun(run, client, spec.name, spec.fingerprint, len(spec.segments), senders, 0)
    )
    return run


def upload(
    server: RabbitServer,
    shared: Shared,
    client: str,
    run: RunId,
    sent: list[ClientMessage],
    *,
    pipeline: str,
) -> None:
    """Send everything twice through a router that is killed once on the way."""
    state = shared.directory.root
    ends = [one for one in sent if isinstance(one, ClientEnd)]
    chunks = [one for one in sent if isinstance(one, ClientChunk)]

    def is_in() -> bool:
        progress = shared.store.read_progress(run)
        done = sum(len(one.received) for one in progress)
        return done == len(chunks) and sum(one.announced is not None for one in progress) >= len(
            ends
        )

    with Broker(server.url(), patience_s=60) as broker:
        queue = broker.queue(QueueSpec(client_queue(client)))
        send(broker, client, *sent)
        point = f"intake.chunk.after:{max(len(chunks) // 2, 1)}"
        first = RouterProcess(server, state, "--client", client, crash=point, pipeline=pipeline)
        until(first.died_by_crash, "the first router died half-way", timeout_s=120)
        send(broker, client, *sent)
        options = ("--client", client, "--threads", "2")
        second = RouterProcess(server, state, *options, pipeline=pipeline)
        try:
            until(is_in, "all is in intake", timeout_s=120)
            until(lambda: queue.depth() == 0, "the queue is empty", timeout_s=120)
            assert second.stop() == 0
        finally:
            if second.process.poll() is None:
                second.kill()
        assert queue.dead_letters() == []


def read(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.glob("*.csv"))}


def test_a_plain_run_through_the_router_gives_the_same_bytes(
    server: RabbitServer, tmp_path: Path
) -> None:
    pipeline = tiny_pipeline()
    rows = "".join(f"s{n % 4},{n}\n" for n in range(100))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "sales.csv").write_text("shop,amount\n" + rows)
    run_toy(tmp_path, pipeline=pipeline, config=SMALL)
    wanted = read(tmp_path / "out")
    state = tmp_path / "routed"
    with share(state, SMALL, part="test", spec=pipeline.spec()) as shared:
        run = create(shared, pipeline, "plain")
        sent = messages_of(run, pipeline, tmp_path / "in", 7)
        upload(server, shared, "plain", run, sent, pipeline="tests.integration.tiny:pipe")
    compute(state, pipeline, run, tmp_path / "out-routed", SMALL)
    found = read(tmp_path / "out-routed")
    assert set(found) == {"all_sales.csv", "report.csv"}
    assert found == wanted


@pytest.mark.spark
@pytest.mark.timeout(500)
def test_the_coffee_run_through_the_router_gives_the_same_bytes(
    server: RabbitServer, tmp_path: Path
) -> None:
    """With Spark: the embedded run first, then the same files as messages, engine as a process."""
    holdfast = [sys.executable, "-m", "holdfast.cli"]
    data = str(tmp_path / "data")
    generate = [*holdfast, "coffee", "generate", "--scale", "0.001", "--out", data]
    subprocess.run(generate, check=True, cwd=ROOT, capture_output=True)
    places = ("--out", str(tmp_path / "out"), "--state", str(tmp_path / "embedded"))
    embedded = [*holdfast, "run", "coffee", "--input", data, *places]
    subprocess.run(embedded, check=True, cwd=ROOT, capture_output=True, timeout=300)
    wanted = read(tmp_path / "out")
    pipeline, state = load_pipeline("coffee"), tmp_path / "routed"
    with share(state, part="test", spec=pipeline.spec()) as shared:
        run = create(shared, pipeline, "coffee")
        sent = messages_of(run, pipeline, Path(data), CHUNK_LINES)
        upload(server, shared, "coffee", run, sent, pipeline="coffee")
        engine = Process("holdfast.cli", "engine", "--pipeline", "coffee", "--state", str(state))
        try:
            until(lambda: _state(shared, run) in ("COMPLETING", "FAILED"), "it ends", timeout_s=300)
        finally:
            engine.end()
        assert _state(shared, run) == "COMPLETING", engine.text
        export(shared, run, tmp_path / "out-routed")
    found = read(tmp_path / "out-routed")
    assert len(found) >= 4
    assert found == wanted


def _state(shared: Shared, run: RunId) -> str:
    stored = shared.store.read_run(run)
    assert stored is not None
    return stored.state
