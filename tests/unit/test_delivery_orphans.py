"""Uploads that no row binds, swept by delivery while everything else goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from tests.unit.delivery_scene import RUN, DeliveryScene, delivering

from holdfast._base import crashpoint
from holdfast.config import Config
from holdfast.delivery import orphans
from holdfast.errors import UploadSwept

KEPT = Config(sweep_after_s=100)


class Killed(BaseException):
    """Stands for SIGKILL."""


def die() -> None:
    raise Killed


def leave(scene: DeliveryScene, ordinal: int) -> None:
    """Be a gateway that is killed between the bytes and the row."""
    crashpoint.arm("intake.blob.after", 1, die=die)
    try:
        with suppress(Killed):
            scene.upload(b"bytes", ordinal)
    finally:
        crashpoint.disarm()


def blobs_and_rows(scene: DeliveryScene) -> tuple[list[str], list[str]]:
    rows = sorted(chunk.location for chunk in scene.store.list_chunks(RUN))
    return scene.blobs_below(f"chunks/{RUN}/"), rows


def test_an_upload_that_stays_unbound_goes_after_its_time_and_no_other(tmp_path: Path) -> None:
    with delivering(tmp_path, KEPT) as scene:
        scene.open_run()
        scene.upload(b"bytes", 1)
        leave(scene, 2)
        scene.run(60)
        assert len(scene.blobs_below("chunks/")) == 2
        scene.run(120)
        blobs, rows = blobs_and_rows(scene)
        assert (len(blobs), blobs) == (1, rows)
        leave(scene, 3)
        scene.upload(b"bytes", 2)
        scene.run(60)
        assert len(scene.blobs_below("chunks/")) == 3
        scene.run(180)
        blobs, rows = blobs_and_rows(scene)
        assert (len(blobs), blobs) == (2, rows)
        assert scene.told == []


def test_an_upload_that_comes_after_the_end_of_its_run_goes_too(tmp_path: Path) -> None:
    """The gateway stood still until long after, and is killed where it wakes."""
    with delivering(tmp_path, KEPT) as scene:
        scene.open_run()
        scene.upload(b"bytes", 1)
        fence = scene.store.take_lease("engine", "test")
        for at, to in pairwise(("OPEN", "FORWARDING", "RECEIVING", "COMPLETING")):
            scene.store.move_run(fence, RUN, expected=at, to=to)
        scene.run(300)
        assert scene.state() == "DONE"
        leave(scene, 2)
        assert len(scene.blobs_below("chunks/")) == 2
        scene.run(300)
        blobs, rows = blobs_and_rows(scene)
        assert (len(blobs), blobs) == (1, rows)


def test_an_uploader_that_wakes_after_its_upload_was_swept_is_told_to_send_again(
    tmp_path: Path,
) -> None:
    with delivering(tmp_path, KEPT) as scene:
        scene.open_run()

        def sleep() -> None:
            crashpoint.disarm()
            scene.run(300)
            assert scene.blobs_below("chunks/") == []

        crashpoint.arm("intake.blob.after", 1, die=sleep)
        with pytest.raises(UploadSwept):
            scene.upload(b"bytes")
        scene.upload(b"bytes")
        blobs, rows = blobs_and_rows(scene)
        assert (len(blobs), blobs) == (1, rows)


def test_a_sweeper_that_is_killed_behind_its_mark_leaves_it_to_the_next(tmp_path: Path) -> None:
    with delivering(tmp_path, KEPT) as scene:
        scene.open_run()
        leave(scene, 1)
        [name] = scene.blobs_below("chunks/")
        assert scene.store.condemn_blob(name)
        successor = scene.succeed()
        for _ in range(200):
            scene.clock.advance(2)
            successor.advance()
        successor.close()
        assert scene.blobs_below("chunks/") == []


def test_a_successor_counts_the_time_anew(tmp_path: Path) -> None:
    """Whatever it finds may be an upload of this moment."""
    with delivering(tmp_path, KEPT) as scene:
        scene.open_run()
        scene.run(180)
        leave(scene, 1)
        successor = scene.succeed()
        for _ in range(20):
            scene.clock.advance(2)
            successor.advance()
        successor.close()
        assert len(scene.blobs_below("chunks/")) == 1


def test_what_did_not_change_is_not_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished run keeps its chunks, for ever where results do not expire."""
    with delivering(tmp_path, KEPT) as scene:
        asked: list[str] = []
        listed = scene.blobs.names

        def names(prefix: str = "") -> Iterator[str]:
            asked.append(prefix)
            return listed(prefix)

        monkeypatch.setattr(scene.blobs, "names", names)
        scene.open_run()
        scene.upload(b"bytes")
        scene.run(300)
        asked.clear()
        scene.run(300)
        assert asked == []
        scene.upload(b"bytes", 2)
        scene.run(60)
        assert set(asked) == {f"{orphans.CHUNKS}{RUN}/"}
