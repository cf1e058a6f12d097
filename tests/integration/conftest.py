"""Real servers, one of each kind per test process, started when a test first asks for it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration import kafka_server, s3_server
from tests.integration.coffee_runs import make_coffee
from tests.integration.kafka_server import KafkaServer
from tests.integration.s3_server import S3Server


def scratch(name: str) -> Path:
    """Return a new directory for one server."""
    return Path(tempfile.mkdtemp(prefix=f"holdfast-{name}-{os.getpid()}-"))


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """A Kafka that no test kills: those that do start their own."""
    with kafka_server.running(scratch("kafka")) as server:
        yield server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An S3 server."""
    with s3_server.running(scratch("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def coffee(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Input files, and the answers of a run whose log is the store's own."""
    return make_coffee(tmp_path_factory.mktemp("coffee"))
