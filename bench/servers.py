"""The backends of `bench.backends`: how each is started, killed and reached."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.integration import rabbit_server, s3_server
from tests.integration.kafka_server import KafkaServer

from holdfast.log.tansu.backend import TansuBackend


@dataclass(frozen=True, slots=True)
class Served:
    """A backend that can be used now."""

    address: str
    raw_address: str
    disk: Path
    """Where its data lies."""
    kill: Callable[[], None] | None = None
    """Ends the server with SIGKILL. None: there is none, whoever writes is killed instead."""
    start: Callable[[], None] | None = None
    """Starts it again. None: it is started again by itself."""


Serving = Callable[[Path], AbstractContextManager[Served]]


@dataclass(frozen=True, slots=True)
class Backend:
    """One row of the table."""

    name: str
    side: str
    raw: str
    durability: str
    """What a confirmed record survives, as it is set up here."""
    serving: Serving
    durable: bool = True
    """Whether it has to reach its raw client's rates."""
    recovers: bool = True
    """Whether anything is there after its server was killed."""
    p50_p99_ms: tuple[float, float] | None = None
    """What to reach."""
    huge: bool = False


@contextmanager
def _memory(root: Path) -> Iterator[Served]:
    yield Served("memory://bench", "", root)


@contextmanager
def _embedded(root: Path) -> Iterator[Served]:
    (root / "log").mkdir()
    (root / "raw").mkdir()
    log, raw = root / "log" / "log.sqlite3", root / "raw" / "raw.sqlite3"
    yield Served(log.as_uri(), raw.as_uri(), root / "log")


ROOM = {
    "log.segment.bytes": str(64 << 20),
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
    "log.initial.task.delay.ms": "1000",
}
"""Kafka gives room back by whole segments, when it next looks: with its defaults of 1 GiB, five
minutes, one minute, and half a minute before the first look, that is later than this bench ends."""


@contextmanager
def _kafka(root: Path) -> Iterator[Served]:
    server = KafkaServer(root / "kafka", flags=("-Xmx1g",), more=ROOM)
    server.start()
    url = server.url("bench")
    try:
        yield Served(url, url, root / "kafka" / "data", server.kill, server.start)
    finally:
        server.stop()


@contextmanager
def _started(backend: TansuBackend, disk: Path) -> Iterator[Served]:
    def kill() -> None:
        pid = backend.broker.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    backend.start()
    url = backend.endpoint().url
    try:
        yield Served(url, url, disk, kill)
    finally:
        backend.stop()


def _tansu_memory(root: Path) -> AbstractContextManager[Served]:
    return _started(TansuBackend("tansu+memory://bench"), root)


def _tansu_sqlite(root: Path) -> AbstractContextManager[Served]:
    return _started(TansuBackend(f"tansu+sqlite://{root}/tansu/topics.db"), root / "tansu")


@contextmanager
def _tansu_s3(root: Path) -> Iterator[Served]:
    with s3_server.running(root / "s3") as s3:
        s3.make_bucket("bench")
        backend = TansuBackend(
            f"tansu+s3://bench?s3_endpoint={s3.endpoint}",
            environment={**os.environ, **s3.environment()},
        )
        with _started(backend, root / "s3") as served:
            yield served


@contextmanager
def _rabbitmq(root: Path) -> Iterator[Served]:
    with rabbit_server.running() as server:
        yield Served(server.url(), server.url(), root, server.kill, server.start)


KAFKA_CLIENT = "raw confluent-kafka"
BACKENDS = {
    one.name: one
    for one in (
        Backend(
            *("memory", "memory", "raw list", "nothing: it lives in the process", _memory),
            durable=False,
            recovers=False,
            p50_p99_ms=(10, 50),
        ),
        Backend(
            *("embedded", "log", "raw SQLite", "a power cut: one fsync per batch", _embedded),
            p50_p99_ms=(10, 50),
            huge=True,
        ),
        Backend(
            *("kafka", "log", KAFKA_CLIENT, "a power cut: one fsync per batch, one node", _kafka),
            p50_p99_ms=(10, 50),
            huge=True,
        ),
        Backend(
            *("tansu-memory", "log", KAFKA_CLIENT, "nothing: it lives in the broker"),
            _tansu_memory,
            durable=False,
            recovers=False,
        ),
        Backend(
            *("tansu-sqlite", "log", KAFKA_CLIENT, "a killed broker: it does not fsync"),
            _tansu_sqlite,
            durable=False,
        ),
        Backend(
            *("tansu-s3", "log", KAFKA_CLIENT, "what the bucket survives (SeaweedFS, one node)"),
            _tansu_s3,
            p50_p99_ms=(100, 500),
        ),
        Backend(
            *("rabbitmq", "rabbit", "raw aio-pika", "a power cut: quorum queue of one node"),
            _rabbitmq,
        ),
    )
}
