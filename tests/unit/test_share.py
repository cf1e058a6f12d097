"""The parts of a service share a state directory; a run has it alone; neither meets the other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.plain_runs import tiny_pipeline

from holdfast import Pipeline
from holdfast._base.ids import RunId
from holdfast._base.locks import holders
from holdfast.engine import state
from holdfast.engine.parts import BEAT_S, Life, Part, living, part_file, parts_in
from holdfast.engine.state import StateDirectory, hold, owner_of, share
from holdfast.errors import StateBusy, StateMismatch
from holdfast.store.rows import NewRun, RunState, SenderDecl


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_SHARE_WAIT_S", 0.05)


def changed_pipeline() -> Pipeline:
    pipe = tiny_pipeline()
    pipe.input("more", schema="shop string", optional=True)
    return pipe


def open_run(shared: state.Shared, pipeline: Pipeline, name: str = "run") -> RunId:
    spec = pipeline.spec()
    senders = (SenderDecl("sales", "", 1),)
    run_id = RunId(name)
    shared.store.create_run(NewRun(run_id, "c", spec.name, spec.fingerprint, 1, senders, 0))
    return run_id


def test_parts_share_and_a_run_is_refused_with_a_pid(tmp_path: Path) -> None:
    with share(tmp_path, part="gateway") as one, share(tmp_path, part="engine") as other:
        assert one.store.store_id() == other.store.store_id()
        with pytest.raises(StateBusy) as caught, hold(tmp_path):
            pass
        assert caught.value.pid == os.getpid()
        assert owner_of(one.directory) is None
    with hold(tmp_path):
        assert owner_of(one.directory) == os.getpid()


def test_a_part_is_refused_while_a_run_works(tmp_path: Path) -> None:
    with hold(tmp_path), pytest.raises(StateBusy) as caught, share(tmp_path, part="engine"):
        pass
    assert caught.value.pid == os.getpid()


def test_living_parts_are_seen_and_dead_ones_forgotten(tmp_path: Path) -> None:
    with share(tmp_path, part="engine") as shared:
        directory = shared.directory.parts
        part_file(directory, "delivery", 4711).write_text("00000000000000000005\n")
        with share(tmp_path, part="gateway"):
            names = [(part.name, part.pid) for part in parts_in(directory)]
            assert names == [("engine", os.getpid()), ("gateway", os.getpid())]
            assert not part_file(directory, "delivery", 4711).exists()
    assert parts_in(directory) == []


def test_a_dead_parts_file_is_no_life(tmp_path: Path) -> None:
    with living(tmp_path, "engine", 1.0):
        assert parts_in(tmp_path) == [Part("engine", os.getpid(), 1)]
    part_file(tmp_path, "engine", os.getpid()).write_text("7\n")
    assert parts_in(tmp_path) == []
    assert holders(tmp_path / "nothing") == []


def test_only_a_loop_that_is_watched_and_silent_hangs() -> None:
    life = Life(3 * BEAT_S)
    for _ in range(10):
        life.tick()
    assert not life.hangs(), "nothing is watched: it may be starting Spark"
    with life.working() as go_on:
        seen = []
        for _ in range(3):
            life.tick()
            seen.append(life.hangs())
        assert seen == [False, False, True]
        go_on()
        assert not life.hangs(), "it came round after all"
        for _ in range(3):
            life.tick()
        assert life.hangs()
    assert not life.hangs()


def test_another_pipeline_is_refused(tmp_path: Path) -> None:
    with share(tmp_path, part="engine", spec=tiny_pipeline().spec()):
        pass
    with (
        pytest.raises(StateMismatch, match="belongs to tiny, not to other"),
        share(tmp_path, part="engine", spec=tiny_pipeline("other").spec()),
    ):
        pass


def test_a_run_of_another_pipeline_is_refused_too(tmp_path: Path) -> None:
    """A state of `holdfast run` has its runs, but no pipeline is kept in it."""
    with share(tmp_path, part="engine") as shared:
        open_run(shared, tiny_pipeline())
    with (
        pytest.raises(StateMismatch, match="belongs to tiny, not to other"),
        share(tmp_path, part="engine", spec=tiny_pipeline("other").spec()),
    ):
        pass


def test_a_changed_pipeline_waits_for_the_runs_that_are_open(tmp_path: Path) -> None:
    with share(tmp_path, part="engine", spec=tiny_pipeline().spec()) as shared:
        run_id = open_run(shared, tiny_pipeline())
    with (
        pytest.raises(StateMismatch, match="since run run began"),
        share(tmp_path, part="engine", spec=changed_pipeline().spec()),
    ):
        pass
    with share(tmp_path, part="engine", spec=tiny_pipeline().spec()) as shared:
        fence = shared.store.take_lease("engine", "test")
        shared.store.move_run(fence, run_id, expected="OPEN", to=RunState.CANCELLED)
    with share(tmp_path, part="engine", spec=changed_pipeline().spec()) as shared:
        kept = shared.store.read_pipeline()
        assert kept is not None
        assert kept.fingerprint == changed_pipeline().spec().fingerprint


def test_a_changed_pipeline_waits_for_the_other_parts(tmp_path: Path) -> None:
    with (
        share(tmp_path, part="gateway", spec=tiny_pipeline().spec()),
        pytest.raises(StateMismatch, match="end them first"),
        share(tmp_path, part="engine", spec=changed_pipeline().spec()),
    ):
        pass


def test_the_lock_is_let_go_when_a_part_is_refused(tmp_path: Path) -> None:
    with share(tmp_path, part="engine", spec=tiny_pipeline().spec()):
        pass
    with (
        pytest.raises(StateMismatch),
        share(tmp_path, part="engine", spec=tiny_pipeline("other").spec()),
    ):
        pass
    assert holders(StateDirectory(tmp_path).lock) == []
