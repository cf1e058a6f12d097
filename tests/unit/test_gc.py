"""`holdfast gc`: it removes what no committed row refers to, and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from tests.crash.gc_work import KINDS, check_collected, garbage_in, held_on, make_littered
from tests.crash.workloads import SMALL, make_pipeline
from tests.unit.delivery_scene import RUN, delivering
from tests.unit.plain_runs import files_below, rows_of, run_toy

from holdfast._base.ids import Ordinal, RunId
from holdfast.blobs.local import LocalBlobs
from holdfast.cli.gc import gc_command
from holdfast.config import Config, StageOptions
from holdfast.delivery.log_queues import LogQueues
from holdfast.delivery.messages import Request
from holdfast.delivery.ports import Received, request_for
from holdfast.engine.barrier import is_complete
from holdfast.engine.drive import open_run
from holdfast.engine.executor import BatchWork, SeriesWork
from holdfast.engine.state import hold, share
from holdfast.errors import DiskFull, StateBusy, StorageFailed
from holdfast.intake.upload import put_chunk
from holdfast.store.rows import Chunk, ChunkKind


def test_a_dry_run_tells_all_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_littered(tmp_path)
    files, rows = files_below(tmp_path), rows_of(tmp_path, apart=())
    gc_command(tmp_path / "state", dry_run=True, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["orphans"], told["temporary"], told["uploads"]) == (4, 1, 2)
    assert told["bytes"] == 4 * 100 + len(b"half") + 2 * len(b"nobody binds this")
    assert told["records"] == len(rows["record"]) > 0
    assert files_below(tmp_path) == files
    assert rows_of(tmp_path, apart=()) == rows
    gc_command(tmp_path / "state", dry_run=True, as_json=False)
    text = capsys.readouterr().out
    assert "would remove 4 orphan directories, 1 half-written upload, 2 unbound uploads" in text
    assert text.splitlines()[-1].startswith("next: holdfast gc --state ")


def test_all_of_it_goes_and_the_run_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_littered(tmp_path)
    before = rows_of(tmp_path)
    gc_command(tmp_path / "state", dry_run=False, as_json=True)
    first = json.loads(capsys.readouterr().out)
    after = rows_of(tmp_path)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"condemned", "record", "shard"}
    assert after["record"] == []
    check_collected(tmp_path)
    gc_command(tmp_path / "state", dry_run=False, as_json=True)
    again = json.loads(capsys.readouterr().out)
    assert [first[kind] > 0 for kind in KINDS] == [True] * 4
    assert [again[kind] for kind in KINDS] == [0] * 4
    assert again["bytes"] == 0


def test_it_is_refused_while_a_process_works_there(tmp_path: Path) -> None:
    make_littered(tmp_path)
    with hold(tmp_path / "state"):
        for dry_run in (True, False):
            with pytest.raises(StateBusy):
                gc_command(tmp_path / "state", dry_run=dry_run, as_json=True)
    assert all(getattr(garbage_in(tmp_path), kind) for kind in KINDS)


def test_an_unfinished_run_keeps_its_records_and_uploads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hold(tmp_path / "state", SMALL) as held:
        run = open_run(held.store, make_pipeline().spec(), tmp_path)
        blobs = LocalBlobs(held.directory.blobs)
        chunk = Chunk("sales", "", Ordinal(1), ChunkKind.BLOB, "", 0, "")
        put_chunk(
            held.store, blobs, run.run_id, chunk, [b"shop,amount\na,1\n"], barrier=is_complete
        )
    before, files = rows_of(tmp_path), files_below(tmp_path)
    gc_command(tmp_path / "state", dry_run=False, as_json=False)
    assert "removed 0 orphan directories" in capsys.readouterr().out
    assert rows_of(tmp_path) == before
    assert files_below(tmp_path) == files


def test_a_run_that_was_interrupted_resumes_after_gc(tmp_path: Path) -> None:
    """The orphans of its last attempt go, its committed batches stay."""
    done = []

    def fail(work: BatchWork | SeriesWork) -> None:
        done.append(work)
        if len(done) == 3:
            (Path(work.directory) / "large").mkdir(parents=True)
            raise DiskFull(path="x")

    with pytest.raises(DiskFull):
        run_toy(tmp_path, before=fail)
    assert len(garbage_in(tmp_path).orphans) == 1
    assert garbage_in(tmp_path).records == (), "an open run keeps its log"
    gc_command(tmp_path / "state", dry_run=False, as_json=True)
    assert garbage_in(tmp_path).orphans == ()
    run_toy(tmp_path)
    check_collected_after_gc(tmp_path)


def check_collected_after_gc(root: Path) -> None:
    gc_command(root / "state", dry_run=False, as_json=True)
    check_collected(root)


def test_records_go_from_other_logs_too_before_they_go_from_the_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process that was cut off left references on two logs, and the run ended without them."""
    urls = [(tmp_path / name).as_uri() for name in ("one.db", "two.db")]
    stages = {"doubled": StageOptions(log=urls[1])}

    def cut(work: BatchWork | SeriesWork) -> None:
        if "segment-2" in work.directory:
            raise DiskFull(path="x")

    config = replace(SMALL, log=urls[0], stages=stages)
    with pytest.raises(DiskFull):
        run_toy(tmp_path, config=config, before=cut)
    run_toy(tmp_path)
    assert held_on(tmp_path / "two.db") > 0
    settings = tmp_path / "holdfast.toml"

    def collect(log: str) -> dict[str, int]:
        settings.write_text(f'log = "{log}"\n[stages.doubled]\nlog = "{urls[1]}"\n')
        gc_command(tmp_path / "state", dry_run=False, as_json=True, config_file=settings)
        told: dict[str, int] = json.loads(capsys.readouterr().out)
        return told

    with pytest.raises(StorageFailed):
        collect((settings / "one.db").as_uri())
    assert rows_of(tmp_path)["record"] != [], "the store's own are the reason to look again"
    assert collect(urls[0])["records"] > 0
    assert [held_on(tmp_path / name) for name in ("one.db", "two.db")] == [0, 0]
    assert rows_of(tmp_path)["record"] == []
    assert collect(urls[0])["records"] == 0


def test_runs_whose_time_is_over_are_told_then_swept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the time that a delivery accumulated; a second gc finds nothing, the tombstone stays."""
    state = tmp_path / "state"
    with delivering(state, Config(sweep_after_s=1e9)) as scene:
        scene.open_run()
        scene.upload(b"n\n1\n")
        fence = scene.store.take_lease("engine", "test")
        scene.store.move_run(fence, RUN, expected="OPEN", to="FAILED", error="why")
        scene.run(10)
    settings = tmp_path / "holdfast.toml"
    for kept_s, count in ((1000, 0), (5, 1)):
        settings.write_text(f"sweep_after_s = {kept_s}\n")
        gc_command(state, dry_run=True, as_json=True, config_file=settings)
        assert json.loads(capsys.readouterr().out)["runs"] == count
    gc_command(state, dry_run=True, as_json=False, config_file=settings)
    assert f"would sweep run {RUN}, which is FAILED" in capsys.readouterr().out
    for count in (1, 0):
        gc_command(state, dry_run=False, as_json=True, config_file=settings)
        assert json.loads(capsys.readouterr().out)["runs"] == count
    with delivering(state) as scene:
        assert scene.state() == "SWEPT"
        assert scene.blobs_below("chunks/") == []


def test_a_dry_run_tells_what_is_coming_beside_a_service_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ended runs with the time to their sweep, waiting ones with theirs, also when it is over."""
    state = tmp_path / "state"
    waiting, done = RunId("waiting"), RunId("done")
    with delivering(state, Config(sweep_after_s=1e9)) as scene:
        for run_id in (RUN, waiting, done):
            scene.open_run(run_id)
        scene.run(1)
        fence = scene.store.take_lease("engine", "test")
        scene.store.move_run(fence, RUN, expected="OPEN", to="FAILED", error="why")
        for at, to in pairwise(("OPEN", "FORWARDING", "RECEIVING", "COMPLETING")):
            scene.store.move_run(fence, done, expected=at, to=to)
        scene.run(10)
        idle_s = {one.run.run_id: one.idle_ms / 1000 for one in scene.store.list_watched()}

    def coming(settings: str) -> dict[str, tuple[str, float]]:
        (tmp_path / "holdfast.toml").write_text(settings)
        gc_command(state, dry_run=True, as_json=True, config_file=tmp_path / "holdfast.toml")
        told = json.loads(capsys.readouterr().out)
        return {one["run"]: (one["duty"], one["left_s"]) for one in told["coming"]}

    with share(state, part="gateway"):
        swept = {RUN: ("sweep", 100 - idle_s[RUN])}
        assert coming("sweep_after_s = 100\n") == swept
        limits = "sweep_after_s = 100\nexpire_after_s = 50\nabandon_after_s = {}\n"
        swept |= {done: ("sweep", 50 - idle_s[done])}
        wanted = {**swept, waiting: ("abandon", 20 - idle_s[waiting])}
        assert coming(limits.format(20)) == wanted
        assert coming(limits.format(5)) == {**swept, waiting: ("abandon", 0)}
        gc_command(state, dry_run=True, as_json=False, config_file=tmp_path / "holdfast.toml")
        text = capsys.readouterr().out
    assert f"coming: run {RUN}, which is FAILED, is swept in {100 - idle_s[RUN]:.0f} s" in text
    assert f"(idle for {idle_s[waiting]:.0f} of 5 s)" in text


def test_queues_of_a_swept_run_on_a_broker_are_left_to_delivery(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """gc knows no broker: the bytes go, and the run is not marked as cleared."""
    state = tmp_path / "state"
    deleted: list[RunId] = []

    class Broker(LogQueues):
        """Queues that are not on the store's own log."""

        def open(self, request: Request) -> None:
            del request

        def receive(self, queue: str, count: int) -> list[Received]:
            del queue, count
            return []

        def delete(self, request: Request) -> None:
            deleted.append(request.run)

    with delivering(state, Config(sweep_after_s=1e9)) as scene:
        scene.delivery.close()
        scene.delivery = scene.succeed(queues=Broker(scene.log, scene.store))
        for run_id in (RUN, RunId("log-1")):
            scene.open_run(run_id, producer="requests", tables=0)
        scene.run()
        LogQueues(scene.log, scene.store).open(request_for(RunId("log-1"), "acme"))
        fence = scene.store.take_lease("engine", "test")
        for run_id in (RUN, RunId("log-1")):
            scene.store.move_run(fence, run_id, expected="RECEIVING", to="FAILED", error="why")
        scene.blobs.create(f"external/{RUN}/x/1-sum", [b"bytes"])
        scene.run(10)
    settings = tmp_path / "holdfast.toml"
    settings.write_text("sweep_after_s = 5\n")
    gc_command(state, dry_run=True, as_json=False, config_file=settings)
    assert f"would leave the queues of run {RUN} to delivery" in capsys.readouterr().out
    gc_command(state, dry_run=False, as_json=False, config_file=settings)
    out = capsys.readouterr().out
    assert f"left the queues of run {RUN} to delivery" in out
    assert "queues of run log-1" not in out
    gc_command(state, dry_run=False, as_json=True, config_file=settings)
    assert json.loads(capsys.readouterr().out)["runs"] == 0
    with delivering(state) as scene:
        assert [scene.state(), scene.state(RunId("log-1"))] == ["SWEPT", "SWEPT"]
        assert scene.blobs_below("external/") == []
        assert [one.run.run_id for one in scene.store.list_watched()] == [RUN]
        assert deleted == []
        scene.delivery.close()
        scene.delivery = scene.succeed(queues=Broker(scene.log, scene.store))
        scene.run()
        assert (deleted, scene.store.list_watched()) == ([RUN], [])


def test_beside_a_service_a_dry_run_tells_what_delivery_will_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What else looks like garbage may be an upload under way: it is not told, nor removed."""
    make_littered(tmp_path)
    with share(tmp_path / "state", part="gateway"):
        gc_command(tmp_path / "state", dry_run=True, as_json=True)
        told = json.loads(capsys.readouterr().out)
        assert [told[kind] for kind in (*KINDS, "runs")] == [0] * (len(KINDS) + 1)
        with pytest.raises(StateBusy):
            gc_command(tmp_path / "state", dry_run=False, as_json=True)
