"""A part whose loop hangs while its process lives is replaced; one at a long work is not."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.service.floor import open_state
from tests.service.processes import Process, all_gone, children_of, is_there, until

from holdfast.engine.parts import BEAT_S, beat_of, part_file
from holdfast.engine.state import StateDirectory

HANG_S = 3
PIPELINE = "from tests.service.floor import make_pipeline\n\npipe = make_pipeline()\n"
Start = Callable[[str], Process]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "floor_here.py").write_text(PIPELINE)
    open_state(tmp_path / "state", ("north",))
    return tmp_path / "state"


@pytest.fixture
def start(state: Path) -> Iterator[Start]:
    started: list[Process] = []

    def one(command: str) -> Process:
        patience = {"HOLDFAST_HANG_PATIENCE_S": str(HANG_S)}
        started.append(Process("tests.service.up_plain", str(state), command, **patience))
        return started[-1]

    yield one
    for process in started:
        below = children_of(process.pid)
        process.end()
        until(f"{below} end with their supervisor", partial(all_gone, below), 10)


def pids(up: Process, name: str) -> list[int]:
    return [int(pid) for pid in re.findall(rf"started {name}, process (\d+)", up.text)]


def command_of(name: str, state: Path) -> tuple[str, str]:
    """Return how a part is started, and what it says when it works."""
    match name:
        case "gateway":
            place = f"--pipeline {state.parent / 'floor_here.py'} --listen 127.0.0.1:0"
            return f"holdfast.cli gateway --state {state} {place}", "listening on"
        case "delivery":
            return f"holdfast.cli delivery --state {state}", "active, epoch"
        case _:
            return f"tests.service.plain_engine {state}", "active, epoch"


@pytest.mark.parametrize("name", ["gateway", "engine", "delivery"])
def test_a_part_whose_loop_hangs_is_replaced(state: Path, start: Start, name: str) -> None:
    command, words = command_of(name, state)
    up = start(f"{name}=tests.service.stuck {command}")
    up.until_said(f"{name} ", words)
    (first,) = pids(up, name)
    path = part_file(StateDirectory(state).parts, name, first)
    until("its loop comes round", lambda: beat_of(path) > HANG_S / BEAT_S + 2)
    os.kill(first, signal.SIGUSR1)
    up.until_said(f"{name}, process {first}, stands still: it is killed")
    until("another one works", lambda: up.text.count(words) == 2)
    assert not is_there(first)
    assert len(pids(up, name)) == 2


def test_an_engine_at_a_long_work_is_left_alone(state: Path, start: Start, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    up = start(f"engine=tests.service.plain_engine {state} {gate}")
    until("a work is under way", lambda: len(list(gate.iterdir())) >= 1)
    (first,) = pids(up, "engine")
    path = part_file(StateDirectory(state).parts, "engine", first)
    then = beat_of(path)
    until("it beats on at the same work", lambda: beat_of(path) > then + 3 * HANG_S / BEAT_S)
    assert pids(up, "engine") == [first]
