"""The supervisor: what ends is started again, what stalls is killed first, and nothing is left."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.command import SHOP, Command, QuickCommand
from tests.service.door import environment
from tests.service.floor import SMALL, check, make_pipeline, open_state, states
from tests.service.processes import (
    BUSY_S,
    DRAINED_S,
    Process,
    all_gone,
    children_of,
    drain_s,
    is_there,
    until,
)

from holdfast.engine.state import share
from holdfast.queries import survey

CLIENTS = ("north", "south")
Start = Callable[..., Process]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    root = tmp_path / "state"
    open_state(root, CLIENTS)
    return root


@pytest.fixture
def start(state: Path) -> Iterator[Start]:
    started: list[Process] = []

    def one(*commands: str) -> Process:
        started.append(Process("tests.service.up_plain", str(state), *commands))
        return started[-1]

    yield one
    for process in started:
        below = children_of(process.pid)
        process.end()
        until(f"{below} end with their supervisor", partial(all_gone, below), 10)


def engine(state: Path, *more: Path) -> str:
    return " ".join(("engine=tests.service.plain_engine", str(state), *map(str, more)))


def pids(up: Process, name: str) -> list[int]:
    """Return the processes of a part, in the order in which they were started."""
    return [int(pid) for pid in re.findall(rf"started {name}, process (\d+)", up.text)]


def wait_for_answers(state: Path) -> None:
    with share(state, SMALL, part="test", spec=make_pipeline().spec()) as shared:
        until("all runs are complete", lambda: set(states(shared.store).values()) == {"COMPLETING"})
        for client in CLIENTS:
            check(state, shared.store, client)


def test_a_killed_part_is_started_again(state: Path, start: Start, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    up = start(engine(state, gate))
    until("works are under way", lambda: len(list(gate.iterdir())) >= 1)
    (first,) = pids(up, "engine")
    os.kill(first, signal.SIGKILL)
    up.until_said("up ", "engine was ended by signal 9; it is started again in 0.2 s")
    (gate / "open").write_text("")
    up.until_said("engine | ", "active, epoch 2")
    wait_for_answers(state)
    assert len(pids(up, "engine")) == 2


def test_a_part_that_stands_still_is_killed_before_its_successor_starts(
    state: Path, start: Start, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    up = start(engine(state, gate))
    until("works are under way", lambda: len(list(gate.iterdir())) >= 1)
    (first,) = pids(up, "engine")
    os.kill(first, signal.SIGSTOP)
    up.until_said("stands still")
    up.until_said("active, epoch 2")
    assert not is_there(first)
    text = up.text
    assert text.index("stands still") < text.rindex("started engine")
    (gate / "open").write_text("")
    wait_for_answers(state)


def test_a_signal_drains_and_nothing_is_left(state: Path, start: Start) -> None:
    sleeper = "sleeper=-c:import time; time.sleep(600)"
    up = start(engine(state), sleeper)
    up.until_said("active, epoch 1")
    wait_for_answers(state)
    below = children_of(up.pid)
    assert len(below) == 2
    up.signal(signal.SIGTERM)
    assert up.wait(DRAINED_S + BUSY_S) == 0, up.text
    assert drain_s(up) <= DRAINED_S
    assert all_gone(below)
    assert up.said("engine  | ", "stopped")
    assert up.said("up      | ", "stopped, ")


def test_one_that_does_not_end_is_killed_by_a_second_signal(
    state: Path, start: Start, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    up = start(engine(state, gate))
    until("works are under way", lambda: len(list(gate.iterdir())) >= 1)
    below = children_of(up.pid)
    up.signal(signal.SIGINT)
    up.until_said("stopping;")
    assert up.poll() is None
    up.signal(signal.SIGINT)
    assert up.wait(5) == 130, up.text
    assert all_gone(below)


def test_one_that_does_not_end_in_time_is_killed(state: Path, start: Start) -> None:
    deaf = "-c:import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('deaf', flush=True)\n"
    up = start(engine(state), f"deaf={deaf}time.sleep(600)")
    up.until_said("deaf ", "| deaf")
    up.signal(signal.SIGTERM)
    assert up.wait(DRAINED_S + BUSY_S) == 0, up.text
    assert drain_s(up) <= DRAINED_S
    assert up.said("deaf has not ended: it is killed")


def test_what_a_killed_part_leaves_is_gone_too(state: Path, start: Start) -> None:
    """Spark's processes outlive a killed engine by a moment; others might for good."""
    sleep = "[sys.executable, '-c', 'import time; time.sleep(600)']"
    ignore = "signal.signal(15, signal.SIG_IGN)"
    leave = f"import signal, subprocess, sys, time\n{ignore}\nsubprocess.Popen({sleep})\n"
    up = start(engine(state), f"leaver=-c:{leave}print('deaf', flush=True)\ntime.sleep(600)")
    up.until_said("leaver ", "| deaf")
    below = children_of(up.pid)
    assert len(below) == 3
    up.signal(signal.SIGTERM)
    assert up.wait(DRAINED_S + BUSY_S) == 0, up.text
    assert drain_s(up) <= DRAINED_S
    assert all_gone(below)


def test_parts_die_with_their_supervisor(state: Path, start: Start) -> None:
    up = start(engine(state))
    up.until_said("active, epoch 1")
    below = children_of(up.pid)
    up.signal(signal.SIGKILL)
    assert up.wait() == -signal.SIGKILL
    until("they are gone", lambda: all_gone(below), 10)


def test_a_part_that_was_asked_wrongly_ends_the_service_with_its_words(start: Start) -> None:
    wrong = (
        "wrong=-c:import sys; sys.exit(sys.stderr.write('holdfast: [USAGE_INVALID] no\\n') and 2)"
    )
    up = start(wrong)
    assert up.wait(20) == 2, up.text
    assert up.said("giving up: wrong ended with exit code 2: holdfast: [USAGE_INVALID] no")


def test_a_crash_loop_is_called_one_with_its_reason(start: Start) -> None:
    broken = (
        "broken=-c:import sys; sys.exit(sys.stderr.write('holdfast: [JAVA_MISSING] x\\n') and 1)"
    )
    up = start(broken)
    assert up.wait(30) == 1, up.text
    assert up.said("broken ended with exit code 1: holdfast: [JAVA_MISSING] x; it is started again")
    assert up.said("giving up: broken ended with exit code 1: holdfast: [JAVA_MISSING] x")


def test_status_shows_the_parts_that_live_and_works_with_all_dead(
    state: Path, start: Start, tmp_path: Path
) -> None:
    up = start(engine(state), engine(state).replace("engine=", "other="))
    until("both live", lambda: len(survey(state).parts) == 2)
    until("one is active", lambda: {p.role for p in survey(state).parts} == {"active", "standby"})
    view = survey(state)
    assert {part.pid for part in view.parts} == {*pids(up, "engine"), *pids(up, "other")}
    (active,) = [part for part in view.parts if part.role == "active"]
    assert (active.name, active.epoch) == ("engine", 1)
    assert {run.client for run in view.runs} == set(CLIENTS)
    told = QuickCommand(tmp_path)("status", "--state", str(state))
    assert f"engine: process {active.pid}, active, epoch 1" in told.out
    assert "of client north" in told.out
    wait_for_answers(state)
    up.end()
    until("all are dead", lambda: survey(state).parts == ())
    told = QuickCommand(tmp_path)("status", "--state", str(state))
    assert told.code == 0
    assert "no process works here" in told.out


@pytest.mark.parametrize(
    ("listen", "said"),
    [
        ("nowhere", "--listen 'nowhere'"),
        ("127.0.0.1:70000", "--listen '127.0.0.1:70000'"),
        ("0.0.0.0:0", "to 0.0.0.0 unprotected"),
        ("taken", "--listen 127.0.0.1:{port}: Address already in use"),
    ],
)
def test_an_address_that_cannot_be_is_told_before_anything_starts(
    listen: str, said: str, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        address = f"127.0.0.1:{port}" if listen == "taken" else listen
        places = ("--state", str(tmp_path / "new"), "--listen", address)
        told = Command(tmp_path)("up", "--pipeline", "coffee", *places)
    told.failed("USAGE_INVALID", said.format(port=port), exit_code=2)
    assert not (tmp_path / "new").exists()


def test_a_signal_before_anything_is_started_ends_it_as_any_other(tmp_path: Path) -> None:
    """While it waits for a taken address. The pipeline's file says that it is under way."""
    pipeline, loaded = tmp_path / "waits.py", tmp_path / "loaded"
    pipeline.write_text(f"open({str(loaded)!r}, 'w').close()\n{SHOP}")
    with socket.create_server(("127.0.0.1", 0)) as other:
        listen = ("--listen", f"127.0.0.1:{other.getsockname()[1]}")
        places = ("--pipeline", str(pipeline), "--state", str(tmp_path / "new"))
        up = Process("holdfast.cli", "up", *places, *listen)
        try:
            until("the pipeline is loaded", loaded.exists)
            up.signal(signal.SIGTERM)
            assert up.wait(DRAINED_S) == 0, up.text
        finally:
            up.end()
    assert up.text == ""
    assert not (tmp_path / "new").exists()


def test_a_state_of_another_pipeline_is_told_before_anything_starts(
    state: Path, tmp_path: Path
) -> None:
    listen = ("--listen", "127.0.0.1:0")
    told = Command(tmp_path)("up", "--pipeline", "coffee", "--state", str(state), *listen)
    assert told.code == 1, told.err
    assert told.out == ""
    (line,) = told.err.splitlines()
    assert line.startswith("holdfast: [STATE_MISMATCH]")


THREADS_END = """\
import subprocess, sys, threading
from holdfast._base.processes import end_children

is_over = threading.Event()

def churn():
    while not is_over.is_set():
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()

threads = [threading.Thread(target=churn, daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(40):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    end_children()
is_over.set()
"""
"""A supervisor's readers end while it ends what is left, and with each a place to look at."""


def test_children_are_ended_while_threads_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREADS_END],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
