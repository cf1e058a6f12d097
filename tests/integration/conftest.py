"""Real servers, one of each kind per test process, started when a test first asks for it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration import kafka_server
from tests.integration.kafka_server import KafkaServer


def scratch(name: str) -> Path:
    """Return a new directory for one server."""
    return Path(tempfile.mkdtemp(prefix=f"holdfast-{name}-{os.getpid()}-"))


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """A Kafka that no test kills: those that do start their own."""
    with kafka_server.running(scratch("kafka")) as server:
        yield server
