"""A copy of a state directory that is taken while delivery works: what it lacks is named."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.unit.delivery_scene import REQUESTS, RUN, DeliveryScene, delivering

from holdfast._base.ids import RunId
from holdfast.config import Config
from holdfast.delivery.messages import Header, payload_of
from holdfast.queries import verify
from holdfast.store.result_rows import SeriesDecl

EXPIRING = Config(sweep_after_s=10, expire_after_s=10)
FAILED, OPEN = RunId("failed"), RunId("open")


def fill(scene: DeliveryScene) -> list[str]:
    """Leave runs that are soon to be swept; returns the blobs they have."""
    scene.open_run(producer=REQUESTS, tables=0)
    scene.run()
    scene.send(Header(RUN, (SeriesDecl("a", ("n",)),)))
    scene.send(*(payload_of(RUN, "a", number, 2, b"%d\n" % number) for number in (1, 2)))
    scene.open_run(FAILED)
    scene.upload(b"n\n1\n", 1, FAILED)
    scene.run()
    assert scene.state() == "DONE"
    fence = scene.store.take_lease("engine", "test")
    scene.store.move_run(fence, FAILED, expected="OPEN", to="FAILED", error="why")
    return scene.blobs_below("")


def copy_store(scene: DeliveryScene, to: Path) -> None:
    to.mkdir()
    connection = scene.store._database.connection()
    connection.execute("VACUUM INTO ?", (str(to / "store.sqlite3"),))


def test_a_run_that_is_swept_between_store_and_files_is_named_and_swept_again(
    tmp_path: Path,
) -> None:
    """The store first, by SQLite's own copy, then the files, as the page says."""
    with delivering(tmp_path / "state", EXPIRING) as scene:
        going = fill(scene)
        scene.open_run(OPEN)
        scene.upload(b"n\n1\n", 1, OPEN)
        copy_store(scene, tmp_path / "copy")
        scene.run(20)
        assert {scene.state(), scene.state(FAILED)} == {"SWEPT"}
        shutil.copytree(tmp_path / "state" / "blobs", tmp_path / "copy" / "blobs")
    found = verify(tmp_path / "copy").findings
    assert sorted(one.what for one in found) == sorted(f"blob {name} is missing" for name in going)
    assert {one.run_id for one in found} == {RUN, FAILED}
    with delivering(tmp_path / "copy", EXPIRING) as scene:
        scene.run(20)
        assert (scene.state(), scene.state(FAILED), scene.state(OPEN)) == ("SWEPT", "SWEPT", "OPEN")
        assert scene.told == []
    assert verify(tmp_path / "copy").findings == ()


def test_a_copy_while_nothing_is_swept_lacks_nothing(tmp_path: Path) -> None:
    with delivering(tmp_path / "state") as scene:
        fill(scene)
        copy_store(scene, tmp_path / "copy")
        scene.open_run(OPEN)
        scene.upload(b"n\n1\n", 1, OPEN)
        shutil.copytree(tmp_path / "state" / "blobs", tmp_path / "copy" / "blobs")
    assert verify(tmp_path / "copy").findings == ()
