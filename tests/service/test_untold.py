"""A service whose log nobody can write: it works, drains and ends as if all were told.

Method: real processes whose standard output and error are a full device, or a pipe whose reader
died. What they did is looked up in the store.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from tests.service.door import environment
from tests.service.floor import SMALL, make_pipeline, open_state, states
from tests.service.processes import all_gone, children_of, until

from holdfast.engine.state import share

CLIENTS = ("north", "south")
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    root = tmp_path / "state"
    open_state(root, CLIENTS)
    return root


@pytest.fixture(params=["full", "dead"])
def nowhere(request: pytest.FixtureRequest) -> Iterator[int]:
    if request.param == "full":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, descriptor = os.pipe()
        os.close(reader)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def start(nowhere: int) -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def one(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", *arguments]
        started.append(
            subprocess.Popen(
                command,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=nowhere,
                stderr=nowhere,
            )
        )
        return started[-1]

    yield one
    for process in started:
        below = children_of(process.pid)
        process.kill()
        process.wait()
        until(f"{below} end with {process.pid}", partial(all_gone, below), 10)


def drained(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(30)


def until_all_are(state: Path, wanted: str, *working: subprocess.Popen[bytes]) -> None:
    with share(state, SMALL, part="test", spec=make_pipeline().spec()) as shared:

        def holds() -> bool:
            assert [process.poll() for process in working] == [None] * len(working)
            return set(states(shared.store).values()) == {wanted}

        until(f"all runs are {wanted}", holds)


def test_a_supervisor_that_nobody_hears_keeps_its_parts(state: Path, start: Start) -> None:
    up = start("tests.service.up_plain", str(state), f"engine=tests.service.plain_engine {state}")
    until_all_are(state, "COMPLETING", up)
    (engine,) = children_of(up.pid)
    os.kill(engine, signal.SIGKILL)
    until("another engine runs", lambda: children_of(up.pid) not in ([], [engine]))
    assert drained(up) == 0


def test_parts_that_nobody_hears_work(state: Path, start: Start) -> None:
    engine = start("tests.service.plain_engine", str(state))
    delivery = start("holdfast.cli", "delivery", "--state", str(state))
    until_all_are(state, "DONE", engine, delivery)
    assert [drained(engine), drained(delivery)] == [0, 0]


def test_a_gateway_that_nobody_hears_answers(tmp_path: Path, start: Start) -> None:
    at = ("--state", str(tmp_path / "state"), "--listen")

    def on_some_port() -> tuple[subprocess.Popen[bytes], str]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            place = f"127.0.0.1:{free.getsockname()[1]}"
        part = ("gateway", "--pipeline", "tests.service.toy:pipe", *at, place)
        return start("holdfast.cli", *part), place

    gateway, place = on_some_port()

    def answers() -> bool:
        nonlocal gateway, place
        if gateway.poll() == 2:  # somebody else took the port first
            gateway, place = on_some_port()
        assert gateway.poll() is None
        try:
            return httpx.get(f"http://{place}/v1/runs").status_code == 401
        except httpx.TransportError:
            return False

    until("it answers", answers)
    assert drained(gateway) == 0
