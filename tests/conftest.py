"""Fixtures that several kinds of tests share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.postgres_server import PostgresServer, running


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this session, on disk where a power cut would matter."""
    with running(Path(tempfile.mkdtemp(prefix=f"holdfast-pg-{os.getpid()}-"))) as server:
        yield server
