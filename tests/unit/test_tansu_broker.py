"""The keeper of a broker: what hinders it from starting one is said, and it goes on. The broker is
a script that listens where it is told.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.waiting import until

from holdfast._base.clock import SystemClock
from holdfast.errors import HoldfastError, LogNotStarted, StateBusy, StorageFailed
from holdfast.log.tansu import broker as module
from holdfast.log.tansu.broker import Broker
from holdfast.log.tansu.settings import TansuSettings

LISTENER = """#!{python} -IS
import os, socket, time
host, port = os.environ["LISTENER_URL"].removeprefix("tcp://").split(":")
listening = socket.create_server((host, int(port)))
print("listens", flush=True)
time.sleep(600)
"""


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Give brokers with a secrets file `keys` and a directory `out`; stop them in the end."""
    binary = tmp_path / "tansu"
    binary.write_text(LISTENER.format(python=sys.executable))
    binary.chmod(0o755)
    (tmp_path / "keys").write_text("access_key=a\nsecret_key=b\n")
    brokers: list[Broker] = []

    def make(**changes: object) -> Broker:
        settings = TansuSettings("s3", "bucket", "p", data_dir=str(tmp_path / "out"))
        environment = {
            **os.environ,
            "HOLDFAST_TANSU": str(binary),
            "HOLDFAST_S3_SECRETS": str(tmp_path / "keys"),
        }
        brokers.append(Broker(replace(settings, **changes), SystemClock(), environment))  # type: ignore[arg-type]  # any field
        return brokers[-1]

    yield make
    for one in brokers:
        one.stop()


def kill(broker: Broker) -> int:
    assert broker.pid is not None
    os.kill(killed := broker.pid, signal.SIGKILL)
    return killed


def test_keys_that_cannot_be_read_are_said_at_once(
    make: Callable[..., Broker], tmp_path: Path
) -> None:
    """Not after the time-out, in which nothing can happen, and not as if it did not answer."""
    (tmp_path / "keys").unlink()
    broker = make(startup_timeout_s=20.0)
    with pytest.raises(StorageFailed) as caught:
        broker.start(lambda _: True)
    assert caught.value.path == str(tmp_path / "keys")
    assert not broker.is_running


def test_a_process_that_the_system_refuses_is_said(
    make: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(LogNotStarted) as caught:
        make(startup_timeout_s=20.0).start(lambda _: True)
    assert "Resource temporarily unavailable" in caught.value.what


@pytest.mark.parametrize("lost", ["keys", "out"])
def test_one_that_served_comes_back_when_what_hinders_it_is_gone(
    make: Callable[..., Broker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """It is killed while its keys cannot be read, or its output not be opened."""
    monkeypatch.setattr(module, "HINDERED_S", 0.1)
    broker = make()
    broker.start(lambda _: True)
    (tmp_path / lost).rename(tmp_path / "elsewhere")
    killed = kill(broker)
    until(lambda: broker.has_given_up, "it says so")
    error = broker.trouble()
    assert isinstance(error, HoldfastError)
    assert str(tmp_path / lost) in str(error)
    (tmp_path / "elsewhere").rename(tmp_path / lost)
    until(lambda: broker.pid not in (None, killed), "it is back")
    assert not broker.has_given_up


@pytest.mark.parametrize("taken", [1, 2])
def test_a_free_port_that_is_taken_meanwhile_is_exchanged(
    make: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    choose = module._free_port
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = [other.getsockname()[1]] * taken
        monkeypatch.setattr(
            module, "_free_port", lambda host: ports.pop() if ports else choose(host)
        )
        broker = make()
        broker.start(lambda _: True)
        assert broker.port not in (0, other.getsockname()[1])


def test_a_port_that_was_named_is_not_exchanged(
    make: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HINDERED_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(LogNotStarted) as caught:
            make(port=port).start(lambda _: True)
    assert caught.value.what == f"127.0.0.1:{port} is in use"


def test_its_output_begins_anew(make: Callable[..., Broker], tmp_path: Path) -> None:
    """That of the last time is kept, and no more: it does not grow for ever."""
    for _ in range(3):
        broker = make()
        broker.start(lambda _: True)
        broker.stop()
        assert broker.output.read_text() == "listens\n"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "tansu.log",
        "tansu.log.1",
    ]


def test_two_brokers_on_one_file_are_refused(make: Callable[..., Broker], tmp_path: Path) -> None:
    """By whatever name. The first one's output is left alone; its end makes room."""
    (tmp_path / "link").symlink_to(tmp_path / "out")
    first = make(engine="sqlite", place=str(tmp_path / "out" / "topics.db"))
    first.start(lambda _: True)
    second = make(engine="sqlite", place=str(tmp_path / "link" / "topics.db"))
    for _ in range(2):
        with pytest.raises(StateBusy) as caught:
            second.start(lambda _: True)
        assert caught.value.pid == os.getpid()
        assert caught.value.state == str(tmp_path / "out" / "topics.db")
        assert not second.is_running
        assert first.output.read_text() == "listens\n"
    make(engine="sqlite", place=str(tmp_path / "out" / "other.db")).start(lambda _: True)
    first.stop()
    second.start(lambda _: True)
