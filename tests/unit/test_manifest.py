"""What an attempt wrote becomes visible only when it is durable, and only if it is data."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.crash.workloads import SMALL, make_pipeline, write_inputs
from tests.unit.disk_tape import Tape

from holdfast._base.ids import BatchId, Offset, Ordinal, RunId
from holdfast.engine.drive import Inputs, drive
from holdfast.engine.events import ignore
from holdfast.engine.manifest import seal
from holdfast.engine.state import hold, look
from holdfast.errors import InvariantViolated
from holdfast.intake.listing import list_tables
from holdfast.store.rows import (
    Chunk,
    ChunkKind,
    Commit,
    End,
    NewRun,
    Plan,
    SenderDecl,
    WorkKind,
)
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.plain import PlainExecutor


def test_every_file_is_durable_before_the_commit_that_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark fsyncs nothing: the tape must show each file and its directory before each commit."""
    write_inputs(tmp_path / "in")
    pipeline = make_pipeline()
    spec = pipeline.spec()
    tape = Tape(tmp_path, monkeypatch)
    commits: list[tuple[int, Commit]] = []
    real = SqliteStore.commit_work

    def commit_work(store: SqliteStore, fence, commit, barrier):  # type: ignore[no-untyped-def] # as the real one
        commits.append((len(tape.calls), commit))
        real(store, fence, commit, barrier)

    monkeypatch.setattr(SqliteStore, "commit_work", commit_work)
    with hold(tmp_path / "state", SMALL) as held:
        drive(
            held,
            spec,
            lambda: Inputs(list_tables(tmp_path / "in", spec.tables, ignore_unknown=True)),
            lambda: PlainExecutor(pipeline),
            out=tmp_path / "out",
            config=SMALL,
            watch=ignore,
        )
    assert len(commits) >= 5
    for position, commit in commits:
        before = tape.calls[:position]
        for file in commit.files:
            assert f"fsync state/{file.path} {file.size}" in before
            assert f"fsync {(Path('state') / file.path).parent}" in before
            assert f"fsync {(Path('state') / file.path).parents[1]}" in before


def test_markers_and_what_a_late_task_left_are_not_data(tmp_path: Path) -> None:
    attempt = tmp_path / "runs" / "1-1"
    for name in (
        "out/part-0.csv",
        "out/_SUCCESS",
        "out/.part-0.csv.crc",
        "out/_temporary/0/task/part-9.csv",
        "_bad_rows.sales/part-0.csv",
    ):
        path = attempt / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a,b\n")
    files = seal(tmp_path, attempt)
    assert [(file.output, Path(file.path).name) for file in files] == [
        ("_bad_rows.sales", "part-0.csv"),
        ("out", "part-0.csv"),
    ]


def test_a_batch_takes_no_chunk_of_another_run(tmp_path: Path) -> None:
    """Two runs with the same tables in one store: a plan of one cannot name chunks of the other."""
    with hold(tmp_path / "state", SMALL) as held:
        store, fence = held.store, held.fence
        for name, ordinals in (("a", (1, 2)), ("b", (1,))):
            run = RunId(name)
            declared = (SenderDecl("sales", "", 1),)
            store.create_run(NewRun(run, name, "toy", {}, 1, declared, 0))
            chunks = [
                Chunk("sales", "", Ordinal(n), ChunkKind.RANGE, f"/{name}/{n}", 1, f"{name}{n}")
                for n in ordinals
            ]
            ends = [End("sales", "", len(chunks))]
            store.bind_inputs(fence, run, chunks, ends, lambda _: False)
        foreign = store.list_chunks(RunId("a"))[1]
        plan = Plan(BatchId("w"), RunId("b"), WorkKind.BATCH, 1, "", (foreign,), Offset(1))
        with pytest.raises(InvariantViolated):
            store.persist_plan(fence, plan)
    with look(tmp_path / "state") as (_, store):
        assert store.list_work(RunId("a")) == store.list_work(RunId("b")) == []
