"""Questions about a state directory: what describe shows, and what verify finds."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.crash.workloads import SMALL, make_pipeline
from tests.unit.plain_runs import alter_store, flip_byte, rows_of, run_toy, stored, tiny_pipeline
from tests.unit.plain_runs import write_sales as write

from holdfast._base.ids import Offset, Ordinal
from holdfast.blobs.local import LocalBlobs
from holdfast.cli.look import status_command
from holdfast.engine.barrier import is_complete
from holdfast.engine.drive import open_run
from holdfast.engine.executor import BatchWork, SeriesWork
from holdfast.engine.state import hold
from holdfast.errors import Damaged, DiskFull, RunFailed, StageFailed, StoreOlder, UsageInvalid
from holdfast.intake.upload import put_chunk, put_end
from holdfast.log.contract import Record
from holdfast.queries import Verification, barrier, describe, survey, verify
from holdfast.store.rows import Chunk, ChunkKind, End, RunState
from holdfast.store.sqlite import SqliteStore, schema

TEXT = b"shop,amount\na,1\n"


def finished(root: Path) -> Path:
    """Run the tiny pipeline to DONE; return its state directory."""
    write(root, rows=12)
    run_toy(root, pipeline=tiny_pipeline())
    return root / "state"


def found(root: Path, out: Path | None = None) -> list[str]:
    return [finding.what for finding in verify(root / "state", out).findings]


def a_file(root: Path, output: str) -> Path:
    """Return a committed file of an output."""
    with stored(root) as (store, run):
        works = store.list_work(run.run_id, committed=True)
        files = [file for work in works for file in store.read_work_files(work.plan.work_id)]
    return root / "state" / next(file.path for file in files if file.output == output)


def test_a_directory_without_state_is_refused_and_not_made_into_one(tmp_path: Path) -> None:
    for ask in (describe, verify):
        for path in (tmp_path, tmp_path / "missing"):
            with pytest.raises(UsageInvalid) as caught:
                ask(path)
            assert str(path) in caught.value.what
    assert list(tmp_path.iterdir()) == []


def test_describe_shows_a_finished_run(tmp_path: Path) -> None:
    run_toy(tmp_path)
    (view,) = describe(tmp_path / "state")
    assert (view.pipeline, view.state, view.error) == ("toy", "DONE", None)
    assert view.batches_planned == view.batches_committed > 2
    assert view.series_planned == view.series_committed == 3
    assert (view.failures, view.bad_rows) == (0, 0)
    assert view.rows_read >= 10
    tables = {(t.table, t.sender): t for t in view.tables}
    assert set(tables) == {
        ("sales", ""), ("sales", "b"), ("notes", ""), ("shops", ""), ("doubled", "")
    }  # fmt: skip
    for one in tables.values():
        assert one.announced == one.received == one.applied
        assert one.missing == "none"


def test_the_lag_of_every_topic_and_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a plan, between plan and commit, and at the end; over another log just the same."""
    seen: list[list[tuple[int, int | None, int, int]]] = []

    def look_on(work: object) -> None:
        del work
        (view,) = describe(tmp_path / "state")
        assert [one.group for one in view.topics] == ["engine", "engine"]
        seen.append([(t.announced, t.planned, t.committed, t.lag) for t in view.topics])

    run_toy(tmp_path, before=look_on, config=replace(SMALL, log="memory://lag"))
    first, end = seen[0], seen[-1]
    (announced, planned, committed, lag), second = first
    assert planned is not None
    assert 0 < planned < announced == lag
    assert (committed, second) == (0, (0, 0, 0, 0))
    for place in (0, 1):
        steps = [one[place] for one in seen]
        assert [c for _, _, c, _ in steps] == sorted(c for _, _, c, _ in steps)
        assert all(a >= (p or 0) >= c and lag == a - c for a, p, c, lag in steps)
    assert [(p, lag) for _, p, _, lag in end] == [(a, 0) for a, _, _, _ in end]
    # A work is planned and not committed while it is done.
    during = [one for one in seen if one[0][3]]
    assert all(p != c for one in during for _, p, c, _ in one[:1])

    with stored(tmp_path) as (store, run):
        store.create_topic("orders", 2)
        store.append_records("orders", 1, [Record(b"a"), Record(b"b"), Record(b"c")])
        store.advance_offset("orders", 1, "counter", Offset(2))
        topic = f"run/{run.run_id}/segment-2"
        store.register_group(topic, "auditor")
    view = survey(tmp_path / "state")
    found = [(t.topic, t.partition, t.group, t.lag) for t in view.topics]
    assert found == [("orders", 0, "counter", 0), ("orders", 1, "counter", 1)]
    others = [t for t in view.runs[0].topics if t.group == "auditor"]
    assert [(t.topic, t.committed, t.planned) for t in others] == [(topic, 0, None)]
    assert others[0].lag == others[0].announced > 0
    status_command(tmp_path / "state", None, as_json=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["orders/1", "counter", "3", "-", "2", "1"] in lines
    assert [topic, "auditor", *map(str, (others[0].lag, "-", 0, others[0].lag))] in lines


def test_describe_shows_what_is_missing_of_an_open_run(tmp_path: Path) -> None:
    with hold(tmp_path / "state", SMALL) as held:
        run = open_run(held.store, make_pipeline().spec(), tmp_path)
        blobs = LocalBlobs(held.directory.blobs)
        for ordinal in (1, 4):
            chunk = Chunk("sales", "", Ordinal(ordinal), ChunkKind.BLOB, "", 0, "")
            put_chunk(held.store, blobs, run.run_id, chunk, [TEXT], barrier=is_complete)
        alter_store(tmp_path, "UPDATE sender SET announced = 5 WHERE tbl = 'sales' AND sender = ''")
        (view,) = describe(tmp_path / "state")
    assert view.state == "OPEN"
    sales = next(t for t in view.tables if (t.table, t.sender) == ("sales", ""))
    assert (sales.announced, sales.received, sales.applied) == (5, 2, 0)
    assert sales.missing == "2-3, 5"
    silent = next(t for t in view.tables if t.sender == "b")
    assert (silent.announced, silent.missing) == (None, "none")


def open_run_with_gaps(root: Path) -> str:
    """Chunks 1 and 4 of 5 are there, one sender is silent, two tables are empty and closed."""
    with hold(root / "state", SMALL) as held:
        run = open_run(held.store, make_pipeline().spec(), root)
        blobs = LocalBlobs(held.directory.blobs)
        for ordinal in (1, 4):
            chunk = Chunk("sales", "", Ordinal(ordinal), ChunkKind.BLOB, "", 0, "")
            put_chunk(held.store, blobs, run.run_id, chunk, [TEXT], barrier=is_complete)
        for end in (End("sales", "", 5), End("notes", "", 0), End("shops", "", 0)):
            put_end(held.store, run.run_id, end, is_complete)
        return run.run_id


def test_the_barrier_names_who_is_silent_and_what_is_missing(tmp_path: Path) -> None:
    run_id = open_run_with_gaps(tmp_path)
    for view in (barrier(tmp_path / "state"), barrier(tmp_path / "state", run_id)):
        assert (view.run_id, view.state, view.passed, view.segments) == (run_id, "OPEN", (), 2)
        waits = {(one.table, one.sender): one for one in view.waits}
        assert set(waits) == {("sales", ""), ("sales", "b"), ("doubled", "")}
        gaps, silent = waits["sales", ""], waits["sales", "b"]
        assert (gaps.said_end, gaps.missing, gaps.unapplied) == (True, "2-3, 5", "1, 4")
        assert (silent.said_end, silent.announced, silent.received) == (False, None, 0)
        assert waits["doubled", ""].segment == 2
    with pytest.raises(UsageInvalid) as caught:
        barrier(tmp_path / "state", "nobody")
    assert run_id in caught.value.remedy


def test_the_barrier_of_a_finished_run_waits_for_nothing(tmp_path: Path) -> None:
    view = barrier(finished(tmp_path))
    assert (view.state, view.passed, view.waits) == ("DONE", (1,), ())


def test_a_run_is_chosen_by_its_id(tmp_path: Path) -> None:
    state = finished(tmp_path)
    (run,) = describe(state)
    assert describe(state, run.run_id) == [run]
    with pytest.raises(UsageInvalid):
        describe(state, "nobody")


def test_the_process_that_works_here_is_named_while_it_does(tmp_path: Path) -> None:
    state = finished(tmp_path)
    assert survey(state).owner_pid is None
    with hold(state):
        assert survey(state).owner_pid == os.getpid()
    assert survey(state).owner_pid is None
    (state / "holdfast.lock").write_text("no pid at all")
    assert survey(state).owner_pid is None
    (state / "holdfast.lock").unlink()
    assert survey(state).owner_pid is None


def test_the_last_failed_attempt_is_shown_while_the_run_lives(tmp_path: Path) -> None:
    write(tmp_path, rows=12)
    tries = []

    def fail(work: BatchWork | SeriesWork) -> None:
        tries.append(work)
        raise (
            StageFailed(stage="s", where="f.py:1", error="a passing fault")
            if len(tries) == 1
            else DiskFull(path="x")
        )

    with pytest.raises(DiskFull):
        run_toy(tmp_path, pipeline=tiny_pipeline(), before=fail)
    (view,) = describe(tmp_path / "state")
    assert (view.state, view.error, view.failures) == ("OPEN", None, 1)
    assert view.last_failure is not None
    assert view.last_failure.startswith("batch 1.1: [STAGE_FAILED]")
    (current,) = view.current
    assert (current.name, current.attempts, current.failures) == ("batch 1.1", 2, 1)
    run_toy(tmp_path, pipeline=tiny_pipeline())
    (view,) = describe(tmp_path / "state")
    assert (view.current, view.barriers) == ((), (1,))
    assert view.last_failure is not None


def test_a_question_does_not_migrate_an_older_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks holds no lock: only `hold` may bring a store up to date."""
    state = finished(tmp_path)
    known = len(schema.MIGRATIONS)
    newer = (*schema.MIGRATIONS, "CREATE TABLE later (x INTEGER) STRICT;")
    monkeypatch.setattr(schema, "MIGRATIONS", newer)
    for ask in (describe, verify, barrier):
        with pytest.raises(StoreOlder) as caught:
            ask(state)
        assert (caught.value.found, caught.value.known) == (known, known + 1)
    assert "later" not in rows_of(tmp_path)
    with hold(state):
        pass
    assert "later" in rows_of(tmp_path)
    assert describe(state)[0].state == "DONE"


def test_a_question_makes_and_removes_nothing(tmp_path: Path) -> None:
    state = finished(tmp_path)
    leftover = state / (".tmp-store.sqlite3-" + "0" * 32)
    leftover.write_text("a creator at work")
    describe(state)
    assert leftover.exists()
    SqliteStore.open(state / "store.sqlite3").close()
    assert not leftover.exists()


def test_verify_says_that_a_run_is_not_finished(tmp_path: Path) -> None:
    open_run_with_gaps(tmp_path)
    told = verify(tmp_path / "state")
    assert (told.unfinished, told.findings) == (1, ())


def test_describe_shows_why_a_run_failed(tmp_path: Path) -> None:
    write(tmp_path).write_text("shop,amount\na\n")
    with pytest.raises(RunFailed):
        run_toy(tmp_path, pipeline=tiny_pipeline())
    (view,) = describe(tmp_path / "state")
    assert (view.state, view.failures) == ("FAILED", 1)
    assert view.error is not None
    assert "BAD_ROWS" in view.error


def test_questions_change_nothing_and_need_no_lock(tmp_path: Path) -> None:
    state = finished(tmp_path)
    rows = rows_of(tmp_path, apart=())
    with hold(state):
        held = rows_of(tmp_path, apart=())
        assert describe(state)[0].state == "DONE"
        assert verify(state, tmp_path / "out").findings == ()
        assert rows_of(tmp_path, apart=()) == held
    assert {k: v for k, v in held.items() if k != "lease"} == {
        k: v for k, v in rows.items() if k != "lease"
    }


def test_verify_counts_what_it_looked_at(tmp_path: Path) -> None:
    state = finished(tmp_path)
    told = verify(state, tmp_path / "out")
    rows = rows_of(tmp_path)
    assert told == Verification(1, 0, len(rows["chunk"]), len(rows["file"]), 0, ())
    (state / "runs" / str(rows["run"][0][1]) / "segment-1" / "x" / "9-9").mkdir(parents=True)
    assert verify(state).orphans == 1
    assert verify(state).findings == ()


def test_an_interrupted_run_is_well(tmp_path: Path) -> None:
    """In the middle, not everything is applied: that is no finding."""
    write(tmp_path, rows=12)

    def stop(work: BatchWork | SeriesWork) -> None:
        if isinstance(work, SeriesWork):
            raise DiskFull(path="x")

    with pytest.raises(DiskFull):
        run_toy(tmp_path, pipeline=tiny_pipeline(), before=stop)
    assert found(tmp_path) == []
    assert found(tmp_path, tmp_path / "out") == []


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: path.unlink(), "is missing"),
    "altered, of the same size": (flip_byte, "was altered"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes, not"),
    "grown": (lambda path: path.write_bytes(path.read_bytes() + b"x"), "bytes, not"),
    "empty": (lambda path: path.write_bytes(b""), "has 0 bytes"),
}


@pytest.mark.parametrize("output", ["all_sales", "totals", "report"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_verify_finds_a_damaged_file_and_names_it(tmp_path: Path, damage: str, output: str) -> None:
    finished(tmp_path)
    path = a_file(tmp_path, output)
    hurt, words = DAMAGE[damage]
    hurt(path)
    (told,) = found(tmp_path)
    assert str(path.relative_to(tmp_path / "state")) in told
    assert words in told


def test_verify_finds_a_damaged_upload(tmp_path: Path) -> None:
    with hold(tmp_path / "state", SMALL) as held:
        run = open_run(held.store, make_pipeline().spec(), tmp_path)
        blobs = LocalBlobs(held.directory.blobs)
        chunk = Chunk("sales", "", Ordinal(1), ChunkKind.BLOB, "", 0, "")
        put_chunk(held.store, blobs, run.run_id, chunk, [TEXT], barrier=is_complete)
        assert found(tmp_path) == []
        (name,) = blobs.names()
        flip_byte(Path(blobs.location(name)))
    (told,) = found(tmp_path)
    assert name in told
    assert "was altered" in told


NOT_APPLIED = (
    "DELETE FROM applied WHERE ordinal = 2",
    "UPDATE sender SET applied_count = applied_count - 1, backlog_bytes = backlog_bytes + ("
    "SELECT size FROM chunk WHERE ordinal = 2) WHERE tbl = 'sales'",
)
"""As if it had never been: counts that do not fit the rows are damage, whoever looks."""
CHUNK_DAMAGE: dict[str, tuple[tuple[str, ...], str]] = {
    "planned, not applied": (NOT_APPLIED, "not applied"),
    "applied, not planned": (("DELETE FROM planned WHERE ordinal = 2",), "0 committed effects"),
    "neither": (
        (*NOT_APPLIED, "DELETE FROM planned WHERE ordinal = 2"),
        "0 committed effects",
    ),
    "announced more": (("UPDATE sender SET announced = announced + 1",), "not all announced"),
}


@pytest.mark.parametrize("damage", CHUNK_DAMAGE)
def test_verify_finds_a_chunk_without_exactly_one_effect(tmp_path: Path, damage: str) -> None:
    finished(tmp_path)
    statements, words = CHUNK_DAMAGE[damage]
    alter_store(tmp_path, *statements)
    told = found(tmp_path)
    assert any(words in what for what in told)
    if damage != "announced more":
        assert any("chunk 2 of sales" in what for what in told)


def test_verify_finds_an_effect_of_a_work_that_was_undone(tmp_path: Path) -> None:
    """Its chunks are marked applied, but no committed work holds them."""
    finished(tmp_path)
    alter_store(
        tmp_path,
        "UPDATE attempt SET outcome = 'started' WHERE work_id IN"
        " (SELECT work_id FROM work WHERE kind = 'batch' AND number = 1)",
        "UPDATE work SET committed_attempt = NULL WHERE kind = 'batch' AND number = 1",
    )
    told = found(tmp_path)
    assert any("0 committed effects" in what for what in told)


@pytest.mark.parametrize("which", ["first", "middle"])
def test_verify_finds_gaps_in_pieces(tmp_path: Path, which: str) -> None:
    finished(tmp_path)
    ordinal = 1 if which == "first" else 2
    alter_store(tmp_path, f"DELETE FROM piece WHERE series = 'all_sales' AND ordinal = {ordinal}")
    assert "the pieces of all_sales have gaps" in found(tmp_path)


@pytest.mark.parametrize(
    "lost",
    [
        "DELETE FROM piece WHERE series = 'all_sales' AND ordinal ="
        " (SELECT MAX(ordinal) FROM piece WHERE series = 'all_sales')",
        "DELETE FROM piece WHERE series = 'report'",
    ],
    ids=["the last of a streamed result", "the only one"],
)
def test_verify_finds_a_lost_last_piece(tmp_path: Path, lost: str) -> None:
    """Ordinals without a gap are not enough: what a result wrote must be among its pieces."""
    finished(tmp_path)
    alter_store(tmp_path, lost)
    assert any("piece" in what for what in found(tmp_path))


@pytest.mark.parametrize("damage", ["altered", "missing", "all gone"])
def test_verify_finds_a_damaged_export_if_told_where_it_is(tmp_path: Path, damage: str) -> None:
    finished(tmp_path)
    out = tmp_path / "out"
    if damage == "altered":
        flip_byte(out / "report.csv")
    else:
        (out / "report.csv").unlink()
    if damage == "all gone":
        (out / "all_sales.csv").unlink()
        out.rmdir()
    assert found(tmp_path) == []
    told = found(tmp_path, out)
    assert len(told) == (2 if damage == "all gone" else 1)
    assert any(str(out / "report.csv") in what for what in told)


def test_a_damaged_store_is_named_and_not_read_on(tmp_path: Path) -> None:
    """Every page behind the first is overwritten: quick_check must not say ok."""
    state = finished(tmp_path)
    path = state / "store.sqlite3"
    data = bytearray(path.read_bytes())
    data[8192:] = b"\x55" * (len(data) - 8192)
    path.write_bytes(data)
    with pytest.raises(Damaged):
        verify(state)


def test_rows_without_their_parents_are_damage(tmp_path: Path) -> None:
    state = finished(tmp_path)
    alter_store(tmp_path, "DELETE FROM chunk WHERE ordinal = 1")
    with pytest.raises(Damaged) as caught:
        verify(state)
    assert "applied" in caught.value.what


def test_a_failed_run_without_results_is_well(tmp_path: Path) -> None:
    write(tmp_path).write_text("shop,amount\na\n")
    with pytest.raises(RunFailed):
        run_toy(tmp_path, pipeline=tiny_pipeline())
    assert found(tmp_path, tmp_path / "out") == []
    assert describe(tmp_path / "state")[0].state == RunState.FAILED
