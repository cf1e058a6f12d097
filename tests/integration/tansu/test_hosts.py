"""A broker that other machines reach, which are network namespaces here."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

import pytest
from tests.integration.nodes import network

from holdfast._base.ids import Offset
from holdfast.errors import LogNotStarted
from holdfast.log.contract import Record
from holdfast.log.tansu.backend import TansuBackend

ECHO = """
import json, sys
from holdfast._base.ids import Offset
from holdfast.log.open import open_backend

log = open_backend(json.load(sys.stdin)["url"])
log.start()
log.produce("out", log.fetch("in", Offset(0), timeout_s=20).record)
log.stop()
"""
"""Passes one record on."""


def test_a_worker_on_another_machine_needs_nothing_but_the_endpoint() -> None:
    with network(2) as (first, second), first.entered():
        owner = TansuBackend(f"tansu+memory://p?host={first.address}")
        owner.start()
        try:
            for topic in ("in", "out"):
                owner.create_topic(topic)
            owner.produce("in", Record(b"there and back", "id"))
            worker = second.start(sys.executable, "-c", ECHO, stdin=subprocess.PIPE)
            worker.communicate(json.dumps(asdict(owner.endpoint())), timeout=60)
            assert worker.returncode == 0
            found = owner.fetch("out", Offset(0))
            assert found is not None
            assert found.record == Record(b"there and back", "id")
        finally:
            owner.stop()


def test_a_host_that_is_elsewhere_is_named() -> None:
    backend = TansuBackend("tansu+memory://p?host=192.0.2.77&startup_timeout_s=5")
    with pytest.raises(LogNotStarted) as caught:
        backend.start()
    assert "no address of this machine" in caught.value.what
