"""Five clients on one service whose processes are killed all the time: every answer is right.

Clients, parts, receiver and oracle are processes or code of their own; what counts is what the
outside world sees: the files that clients fetched, and the notices that the receiver wrote down.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.receiver import Receiver, receiving
from tests.service.coffee_clients import Points, Shop, Visit, add_client, make_shops
from tests.service.parts import Part, Parts, Spark, seed_of, shuffled
from tests.service.processes import until

SHOPS = 5
ROUND_S = 900.0
"""Only what is broken takes so long, or a machine that does ten other things."""
ROUNDS_MAX = 12
CLIENT_POINTS = {
    "client.create.after": 1,
    "client.chunk.after": 80,
    "client.end.after": 7,
    "client.piece.after": 5,
    "client.result.written": 5,
    "client.result.renamed": 5,
}
EXPECTED = {
    "gateway": {
        "gateway.create.after",
        "intake.blob.after",
        "intake.chunk.after",
        "intake.end.after",
        "blobs.create.written",
        "blobs.create.linked",
        "store.transaction.before",
        "store.transaction.after",
    },
    "engine": {
        "lease.take.before",
        "lease.take.after",
        "engine.plan.before",
        "engine.plan.after",
        "engine.attempt.after",
        "engine.job.after",
        "engine.series.after",
        "engine.sync.after",
        "engine.commit.after",
    },
    "delivery": {
        "lease.take.after",
        "closing.done.before",
        "closing.done.after",
        "notice.attempt.after",
        "notice.send.after",
        "notice.record.after",
    },
}
"""What one undisturbed round must pass at least: a point that nobody reaches is never tried."""


class Scene:
    """A service, its clients, and whoever is told of the ends of their runs."""

    def __init__(self, root: Path, receiver: Receiver) -> None:
        self.root, self.receiver, self.state = root, receiver, root / "state"
        self.shops = make_shops(root, SHOPS)
        for shop in self.shops:
            add_client(self.state, shop, "--webhook", receiver.url)
        self.parts = Parts(self.state, record=root)
        self.points = Points()
        self.rounds = 0
        self.visits: list[Visit] = []

    def begin_round(self) -> list[Visit]:
        """Let every shop hand in its data under a key of this round."""
        self.rounds += 1
        visits = [self._visit(shop) for shop in self.shops]
        for visit in visits:
            visit.start()
        self.visits += visits
        return visits

    def _visit(self, shop: Shop) -> Visit:
        out = self.root / "out" / f"{shop.name}-{self.rounds}"
        return Visit(shop, f"round-{self.rounds}", self.parts.url, out, self.points)

    def finish_round(self, visits: list[Visit]) -> None:
        """Wait until every shop has its answers, which are compared with the oracle's."""
        for visit in visits:
            visit.join(ROUND_S)
        self.parts.check()

    def check_notices(self) -> None:
        """Each run was told of, under one id: at least once, and nothing else was."""
        runs = {visit.run for visit in self.visits}

        def told() -> dict[str, set[str]]:
            ids: dict[str, set[str]] = defaultdict(set)
            for entry in self.receiver.seen():
                body = json.loads(entry["body"])
                assert body["type"] == "run.done", body
                assert body["id"] == entry["id"]
                ids[body["run"]].add(entry["id"])
            return ids

        until("every run is told of", lambda: told().keys() >= runs)
        ids = told()
        assert ids.keys() == runs
        assert {len(one) for one in ids.values()} == {1}, "a run has two notices"
        assert len({next(iter(one)) for one in ids.values()}) == len(runs)

    def check_state(self) -> None:
        """`holdfast verify` finds nothing wrong, and nothing unfinished."""
        command = [sys.executable, "-m", "holdfast.cli", "verify", "--state", str(self.state)]
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads(done.stdout)
        assert (found["findings"], found["unfinished"]) == ([], 0)
        assert found["runs"] == len(self.visits)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with receiving(tmp_path / "receiver") as receiver:
        made = Scene(tmp_path, receiver)
        try:
            made.parts.start()
            yield made
        finally:
            made.parts.end()


@pytest.mark.timeout(1500)
def test_every_part_killed_at_every_point_it_passes_changes_no_answer(scene: Scene) -> None:
    """A round is recorded; then each point that it passed kills the part that passed it, once."""
    draw = random.Random(seed_of("the named points"))
    scene.finish_round(scene.begin_round())
    tried: dict[str, list[str]] = {}
    for part in scene.parts.all:
        tried[part.name] = part.try_points(draw)
        assert EXPECTED[part.name] - set(tried[part.name]) == set(), part.name
    scene.points.waiting = shuffled(CLIENT_POINTS, draw)
    while not _all_tried(scene):
        assert scene.rounds < ROUNDS_MAX, [part.points.waiting for part in scene.parts.all]
        scene.finish_round(scene.begin_round())
    for part in scene.parts.all:
        assert sorted(hit.split(":")[0] for hit in part.points.died_at) == tried[part.name]
    assert {hit.split(":")[0] for hit in scene.points.died_at} == set(CLIENT_POINTS)
    _tell(scene)
    scene.check_notices()
    scene.parts.stop()
    scene.check_state()


def _all_tried(scene: Scene) -> bool:
    return not scene.points.waiting and all(part.is_settled for part in scene.parts.all)


def _tell(scene: Scene) -> None:
    deaths = {part.name: part.deaths for part in scene.parts.all}
    clients = sum(visit.starts - 1 for visit in scene.visits)
    print(f"{scene.rounds} rounds, {len(scene.visits)} runs; killed: {deaths}, clients {clients}")


KILLS = 12
SPARK_EVERY = 4
"""Every so many kills it is Spark alone: its engine lives on, and does the works again."""


@pytest.mark.timeout(1500)
def test_random_kills_under_load_change_no_answer(scene: Scene) -> None:
    """Any part, Spark's processes or a client, at any moment; the seed tells which."""
    draw = random.Random(seed_of("the random kills"))
    spark, kills = Spark(scene.parts.engine, draw), 0
    pause = threading.Event()
    while kills < KILLS:
        visits = scene.begin_round()
        while kills < KILLS and any(not visit.run for visit in visits):
            pause.wait(draw.uniform(0.1, 2.5))
            victims: list[Part | Visit] = [*scene.parts.all, *visits]
            kills += 1
            if kills % SPARK_EVERY == 0:
                until("one of Spark's processes is there, and is killed", spark.kill)
            else:
                draw.choice(victims).kill()
        scene.finish_round(visits)
    _tell(scene)
    scene.check_notices()
    scene.parts.stop()
    scene.check_state()
