"""What a large run leaves behind goes bit by bit; nobody waits for it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from tests.unit.delivery_scene import RUN, DeliveryScene, delivering

from holdfast._base.ids import RunId
from holdfast.config import Config
from holdfast.delivery import sweep
from holdfast.delivery.loop import SWEEP_EVERY_S, Delivery
from holdfast.testing.clock import VirtualClock

QUICK, NEVER = Config(sweep_after_s=1), Config(sweep_after_s=1e9)
OTHER, SMALL = RunId("other"), RunId("small")
BLOBS = 2000
MOST = 200
"""How many of them go in one look, by the clock below."""


class Ticking(VirtualClock):
    """A clock by which each question costs a millisecond: as long as removing a file takes."""

    def monotonic_s(self) -> float:
        self.advance(0.001)
        return super().monotonic_s()


def cancel_large(scene: DeliveryScene) -> None:
    """Leave a run to sweep, with blobs and with directories of attempts."""
    scene.open_run()
    scene.store.cancel_run("acme", RUN)
    for number in range(BLOBS // 100):
        (scene.root / "runs" / RUN / f"{number}").mkdir(parents=True)
    folder = scene.root / "blobs" / "chunks" / RUN / "t" / "s"
    folder.mkdir(parents=True)
    for number in range(BLOBS):
        (folder / f"{number}-x").touch()


def ticking(scene: DeliveryScene) -> tuple[Delivery, Ticking]:
    """Let another delivery take over when the time of the run is over."""
    scene.run(4)
    clock = Ticking()
    return scene.succeed(clock=clock, config=QUICK), clock


def look(delivery: Delivery, clock: Ticking) -> None:
    """Advance once, so that it sweeps, too."""
    clock.advance(SWEEP_EVERY_S)
    delivery.advance()


def complete(scene: DeliveryScene, run_id: RunId) -> None:
    fence = scene.store.take_lease("engine", "test")
    for at, to in pairwise(("OPEN", "FORWARDING", "RECEIVING", "COMPLETING")):
        scene.store.move_run(fence, run_id, expected=at, to=to)


def test_a_look_for_what_came_late_leaves_a_sweep_alone_that_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would miss what is removed below it, and that would be called a trouble."""
    monkeypatch.setattr(sweep, "STRAYS_EVERY_MS", 0)
    with delivering(tmp_path, NEVER) as scene:
        cancel_large(scene)
        for number in range(60):
            folder = scene.root / "blobs" / "chunks" / RUN / "t" / f"s{number}"
            folder.mkdir()
            (folder / "1-x").touch()
        delivery, clock = ticking(scene)
        for _ in range(200):
            look(delivery, clock)
        delivery.close()
        assert (scene.blobs_below("chunks/"), scene.told) == ([], [])
        assert scene.store.list_watched() == []


def test_a_run_becomes_done_while_a_large_one_is_cleared(tmp_path: Path) -> None:
    """However large it is, a look takes its time and no more; the last one leaves a tombstone."""
    with delivering(tmp_path, NEVER) as scene:
        cancel_large(scene)
        scene.open_run(OTHER)
        delivery, clock = ticking(scene)
        look(delivery, clock)
        assert scene.state() == "SWEPT", "nobody sees what is still there"
        complete(scene, OTHER)
        look(delivery, clock)
        assert scene.state(OTHER) == "DONE"
        counts = [len(scene.blobs_below("chunks/"))]
        assert counts[0] >= BLOBS - 2 * MOST
        while counts[-1]:
            look(delivery, clock)
            counts.append(len(scene.blobs_below("chunks/")))
            assert 0 < counts[-2] - counts[-1] <= MOST
        look(delivery, clock)
        delivery.close()
        assert [one.run.run_id for one in scene.store.list_watched()] == [OTHER]
        assert not (tmp_path / "runs" / RUN).exists()
        assert not (tmp_path / "blobs" / "chunks" / RUN).exists()


def test_a_small_run_does_not_wait_for_a_large_one_before_it(tmp_path: Path) -> None:
    with delivering(tmp_path, NEVER) as scene:
        cancel_large(scene)
        scene.open_run(SMALL)
        scene.upload(b"n\n1\n", run_id=SMALL)
        scene.store.cancel_run("acme", SMALL)
        delivery, clock = ticking(scene)
        for _ in range(3):
            look(delivery, clock)
        delivery.close()
        assert scene.blobs_below(f"chunks/{SMALL}/") == []
        assert len(scene.blobs_below(f"chunks/{RUN}/")) > BLOBS // 2
        assert [one.run.run_id for one in scene.store.list_watched()] == [RUN]


def test_a_successor_finds_what_is_left_of_a_clearing(tmp_path: Path) -> None:
    with delivering(tmp_path, NEVER) as scene:
        cancel_large(scene)
        delivery, clock = ticking(scene)
        look(delivery, clock)
        look(delivery, clock)
        delivery.close()
        assert 0 < len(scene.blobs_below("chunks/")) < BLOBS
        successor = scene.succeed(config=QUICK)
        successor.advance()
        successor.close()
        assert scene.blobs_below("chunks/") == []
        assert scene.store.list_watched() == []


def test_what_a_power_cut_brings_back_goes_bit_by_bit_too(tmp_path: Path) -> None:
    """Of a run that is cleared: a successor finds it at its first look, and takes its time."""
    with delivering(tmp_path, QUICK) as scene:
        cancel_large(scene)
        scene.run(4)
        assert scene.store.list_watched() == []
        folder = tmp_path / "blobs" / "chunks" / RUN / "t" / "s"
        folder.mkdir(parents=True)
        for number in range(BLOBS):
            (folder / f"{number}-x").touch()
        clock = Ticking()
        delivery = scene.succeed(clock=clock, config=NEVER)
        look(delivery, clock)
        assert 0 < len(scene.blobs_below("chunks/")) < BLOBS
        for _ in range(BLOBS // 100):
            look(delivery, clock)
        delivery.close()
        assert not (tmp_path / "blobs" / "chunks" / RUN).exists()
