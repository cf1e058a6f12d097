"""`holdfast up` with Spark, as an operator and an impatient one meet it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.service.coffee_clients import Points, Shop, Visit, add_client, make_shops
from tests.service.parts import free_port
from tests.service.processes import (
    BUSY_S,
    DRAINED_S,
    Process,
    all_gone,
    children_of,
    drain_s,
    until,
)

PARALLEL = 10
ROUND_S = 600.0


class Scene:
    """One `holdfast up`, started again by the test if it is killed itself."""

    def __init__(self, root: Path) -> None:
        self.root, self.state, self.port = root, root / "state", free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.shops = make_shops(root, 2)
        for shop in self.shops:
            add_client(self.state, shop, "--open-runs", "100")
        self.up = self._start()

    def _start(self) -> Process:
        arguments = ("--pipeline", "coffee", "--state", str(self.state))
        return Process("holdfast.cli", "up", *arguments, "--listen", f"127.0.0.1:{self.port}")

    def start_again(self) -> None:
        """Start it after its end."""
        self.up.end()
        self.up = self._start()

    def visit(self, shop: Shop, key: str) -> Visit:
        visit = Visit(shop, key, self.url, self.root / "out" / f"{shop.name}-{key}", Points())
        visit.start()
        return visit

    def status(self) -> dict[str, Any]:
        """Return what `holdfast status` says."""
        command = [sys.executable, "-m", "holdfast.cli", "status", "--state", str(self.state)]
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def shown(self) -> dict[str, int]:
        """Return the processes that it shows, by name."""
        return {part["name"]: int(part["pid"]) for part in self.status()["parts"]}

    def are_under_way(self) -> bool:
        """Tell whether a run of every client is there, and has not come to its end."""
        runs = [run["state"] not in ("DONE", "SWEPT") for run in self.status()["runs"]]
        return sum(runs) == len(self.shops)

    def is_back(self, name: str, before: int) -> bool:
        """Tell whether a part has another process than it had."""
        return self.shown().get(name, before) != before


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("up"))
    yield made
    below = children_of(made.up.pid)
    made.up.end()
    until(f"{below} end with their supervisor", partial(all_gone, below), 20)


@pytest.mark.timeout(900)
def test_ten_runs_at_once_are_all_right(scene: Scene) -> None:
    """Two clients with five runs each: every answer is its client's oracle's."""
    keys = [f"tiny-{number}" for number in range(PARALLEL // len(scene.shops))]
    visits = [scene.visit(shop, key) for key in keys for shop in scene.shops]
    assert len(visits) == PARALLEL
    for visit in visits:
        visit.join(ROUND_S)
    assert len({visit.run for visit in visits}) == PARALLEL


@pytest.mark.timeout(900)
def test_sigkill_of_any_process_that_status_shows_changes_no_answer(scene: Scene) -> None:
    """One after the other while runs are under way; the supervisor brings each back."""
    until("all parts are shown", lambda: len(scene.shown()) >= 3)
    for name in sorted(scene.shown()):
        visits = [scene.visit(shop, f"killed-{name}") for shop in scene.shops]
        until("runs are under way", scene.are_under_way)
        before = scene.shown()[name]
        os.kill(before, signal.SIGKILL)
        assert scene.are_under_way(), "none of them was done before"
        until(f"{name} is back", partial(scene.is_back, name, before))
        for visit in visits:
            visit.join(ROUND_S)


@pytest.mark.timeout(900)
def test_the_supervisor_killed_takes_all_with_it_and_the_next_goes_on(scene: Scene) -> None:
    visits = [scene.visit(shop, "supervisor") for shop in scene.shops]
    below = children_of(scene.up.pid)
    assert len(below) >= 3
    scene.up.signal(signal.SIGKILL)
    until("its parts and Spark end with it", partial(all_gone, below), 20)
    scene.start_again()
    for visit in visits:
        visit.join(ROUND_S)


@pytest.mark.timeout(900)
def test_sigterm_leaves_no_process_and_no_jvm_behind(scene: Scene) -> None:
    """Also with a run under way, which the next start finishes."""
    visit = scene.visit(scene.shops[0], "drained")
    until("Spark runs", lambda: len(children_of(scene.up.pid)) >= 5)
    below = children_of(scene.up.pid)
    scene.up.signal(signal.SIGTERM)
    assert scene.up.wait(DRAINED_S + BUSY_S) == 0, scene.up.text
    assert drain_s(scene.up) <= DRAINED_S
    assert all_gone(below)
    scene.start_again()
    visit.join(ROUND_S)
