"""What an attempt wrote becomes visible only when it is durable, and only if it is data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.crash.workloads import SMALL, make_pipeline, write_inputs
from tests.unit.disk_tape import Tape

from holdfast._base.ids import BatchId, Offset, Ordinal, RunId
from holdfast.config import Config
from holdfast.engine.drive import Inputs, drive
from holdfast.engine.events import ignore
from holdfast.engine.manifest import seal
from holdfast.engine.state import hold, look
from holdfast.errors import InvariantViolated
from holdfast.intake.listing import list_tables
from holdfast.queries import verify
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


def _drive(root: Path, inputs: Path, config: Config) -> None:
    pipeline = make_pipeline()
    spec = pipeline.spec()
    with hold(root / "state", config) as held:
        drive(
            held,
            spec,
            lambda: Inputs(list_tables(inputs, spec.tables, ignore_unknown=True)),
            lambda: PlainExecutor(pipeline),
            out=root / "out",
            config=config,
            watch=ignore,
        )


def test_every_file_is_durable_before_the_commit_that_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark fsyncs nothing: the tape must show each file and its directory before each commit."""
    write_inputs(tmp_path / "in")
    tape = Tape(tmp_path, monkeypatch)
    commits: list[tuple[int, Commit]] = []
    real = SqliteStore.commit_work

    def commit_work(store: SqliteStore, fence, commit, barrier):  # type: ignore[no-untyped-def] # as the real one
        commits.append((len(tape.calls), commit))
        real(store, fence, commit, barrier)

    monkeypatch.setattr(SqliteStore, "commit_work", commit_work)
    _drive(tmp_path, tmp_path / "in", SMALL)
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


def test_files_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """Spark writes three digits of a file's number, and more when it needs them."""
    attempt = tmp_path / "runs" / "1-1"
    (attempt / "out").mkdir(parents=True)
    job = "0a7b1f6e-10c2-4d3e-8f00-9c1d2e3f4a5b"
    wanted = [
        f"part-{task:05d}-{job}-c{number:03d}.csv"
        for task, files in ((0, 1001), (1, 2), (99_999, 1), (100_000, 1))
        for number in range(files)
    ]
    for name in reversed(wanted):
        (attempt / "out" / name).write_text("a\n")
    assert [Path(file.path).name for file in seal(tmp_path, attempt)] == wanted


def test_pieces_are_bounded_and_stay_in_order(tmp_path: Path) -> None:
    """The same run with one row per piece: the same exports, to the byte, and nothing to find."""
    write_inputs(tmp_path / "in")
    exports = []
    for rows_max in (1, 1000):
        root = tmp_path / str(rows_max)
        config = replace(SMALL, piece_rows_max=rows_max)
        _drive(root, tmp_path / "in", config)
        exports.append({p.name: p.read_bytes() for p in sorted((root / "out").iterdir())})
        assert verify(root / "state", root / "out").findings == ()
        with look(root / "state") as (_, store):
            (run,) = store.list_runs()
            pieces = [p for series in store.read_results(run.run_id) for p in series.pieces]
        assert max(piece.rows or 0 for piece in pieces) <= rows_max
        assert sum(piece.rows or 0 for piece in pieces) == 10
    assert exports[0] == exports[1]


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
