"""One run from its inputs to its results, on a real store, with the Spark-free executor."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.crash.workloads import SMALL, expected, exported_rows, make_pipeline, write_inputs
from tests.unit.plain_runs import (
    Rows,
    alter_store,
    answers_in,
    files_below,
    flip_byte,
    rows_of,
    run_id_in,
    run_toy,
    state_of,
    stored,
    tiny_pipeline,
    write_sales,
)

from holdfast import Pipeline
from holdfast._base import crashpoint
from holdfast._base.intervals import Intervals
from holdfast._base.locks import directory_locked
from holdfast.config import Config
from holdfast.delivery.export import clear_temporary
from holdfast.engine.drive import RunReport
from holdfast.engine.events import Event, EventKind
from holdfast.engine.executor import BatchWork, SeriesWork
from holdfast.engine.state import look
from holdfast.errors import (
    BadRows,
    Damaged,
    DataError,
    DiskFull,
    HeaderWrong,
    InputChanged,
    InvariantViolated,
    RunFailed,
    SparkLost,
    StageFailed,
    StageInvalid,
    StateMismatch,
    UsageInvalid,
)
from holdfast.queries import verify
from holdfast.store.contract import ENGINE_GROUP, ingress_topic
from holdfast.store.reasons import REASON_CHARACTERS_MAX
from holdfast.store.rows import RunState
from holdfast.testing.plain import PlainExecutor

Work = BatchWork | SeriesWork


def tiny(root: Path, **options: Any) -> Any:
    return run_toy(root, pipeline=options.pop("pipeline", None) or tiny_pipeline(), **options)


class Fails:
    """Raises the given error for the first `times` works that match, then lets all pass."""

    def __init__(self, error: Exception, times: int, kind: type[Work] = BatchWork) -> None:
        self._error, self._left, self._kind = error, times, kind
        self.seen: list[Work] = []

    def __call__(self, work: Work) -> None:
        self.seen.append(work)
        if isinstance(work, self._kind) and self._left:
            self._left -= 1
            raise self._error


FLAW = StageFailed(stage="s", where="here", error="a fault")


def test_a_run_goes_to_done_with_the_right_answers(tmp_path: Path) -> None:
    report = run_toy(tmp_path)
    assert report.state is RunState.DONE
    assert not report.already_done
    assert answers_in(tmp_path / "out") == expected()
    assert set(report.results) == set(expected())
    assert all(path.is_file() for path in report.results.values())
    assert verify(tmp_path / "state", tmp_path / "out").findings == ()


def test_running_a_finished_run_again_changes_nothing(tmp_path: Path) -> None:
    """No row and no file but the lease's, and no executor is made: no Spark would start."""
    run_toy(tmp_path)
    rows, files = rows_of(tmp_path), files_below(tmp_path)
    shutil.rmtree(tmp_path / "in")

    def never(work: Work) -> None:
        raise AssertionError(f"a finished run was worked on: {work}")

    report = run_toy(tmp_path, pipeline=make_pipeline(), before=never)
    assert report.already_done
    assert report.exported == []
    assert rows_of(tmp_path) == rows
    assert files_below(tmp_path) == {k: v for k, v in files.items() if not k.startswith("in/")}


@pytest.mark.parametrize("damage", ["deleted", "altered", "cut", "all gone"])
def test_a_lost_or_damaged_export_is_restored_to_the_byte(tmp_path: Path, damage: str) -> None:
    run_toy(tmp_path)
    rows = rows_of(tmp_path)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    path = tmp_path / "out" / "report.csv"
    match damage:
        case "deleted":
            path.unlink()
        case "altered":
            flip_byte(path)
        case "cut":
            path.write_bytes(path.read_bytes()[:-1])
        case _:
            shutil.rmtree(tmp_path / "out")
    report = run_toy(tmp_path)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert report.already_done
    assert "report" in report.exported
    assert (report.exported == ["report"]) is (damage != "all gone")
    assert rows_of(tmp_path) == rows


def parquet_toy(root: Path) -> RunReport:
    write_inputs(root / "in")
    return run_toy(root, pipeline=make_pipeline(results="parquet"))


def test_a_result_in_parquet_is_a_directory_of_bounded_parts_in_order(tmp_path: Path) -> None:
    report = parquet_toy(tmp_path)
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        "large.parquet",
        "report.parquet",
        "texts.csv",
    ]
    assert report.results["report"] == out / "report.parquet"
    for series in ("large", "report"):
        parts = sorted((out / f"{series}.parquet").iterdir())
        sizes = [pq.read_metadata(part).num_rows for part in parts]
        assert [part.name for part in parts] == [
            f"part-{n + 1:05d}.parquet" for n in range(len(parts))
        ]
        assert len(parts) > 1
        assert set(sizes[:-1]) == {SMALL.piece_rows_max} >= {max(sizes)}
        rows = exported_rows(out, series)
        assert Counter(rows) == expected()[series]
        assert rows == sorted(rows, key=lambda row: row[series == "large"])
    with stored(tmp_path) as (store, run):
        found = {one.series: one for one in store.read_results(run.run_id)}
    assert {file.format for file in found["report"].pieces} == {"parquet"}
    assert found["report"].ordered == found["report"].pieces
    assert {file.format for file in found["large"].ordered or ()} == {"parquet"}
    assert [file.rows for file in found["report"].pieces] == [2, 1]
    assert verify(tmp_path / "state", out).findings == ()


def damage_parts(directory: Path, damage: str) -> None:
    first = directory / "part-00001.parquet"
    match damage:
        case "deleted":
            shutil.rmtree(directory)
        case "altered":
            flip_byte(first)
        case "one less":
            first.unlink()
        case "one more":
            shutil.copy(first, directory / "part-00099.parquet")
        case "renamed":
            first.rename(directory / "part-00000.parquet")
        case "changed places":
            second = directory / "part-00002.parquet"
            data = first.read_bytes()
            first.write_bytes(second.read_bytes())
            second.write_bytes(data)
        case _:
            shutil.copytree(directory, directory.parent / f".tmp-{'0' * 32}")
            first.unlink()


@pytest.mark.parametrize(
    "damage",
    ["deleted", "altered", "one less", "one more", "renamed", "changed places", "half written"],
)
def test_a_lost_or_damaged_directory_is_restored_to_the_byte(tmp_path: Path, damage: str) -> None:
    parquet_toy(tmp_path)
    rows = rows_of(tmp_path)
    before = {name: data for name, (data, _) in files_below(tmp_path / "out").items()}
    damage_parts(tmp_path / "out" / "report.parquet", damage)
    (finding,) = verify(tmp_path / "state", tmp_path / "out").findings
    assert "report.parquet" in finding.what
    report = parquet_toy(tmp_path)
    assert {name: data for name, (data, _) in files_below(tmp_path / "out").items()} == before
    assert report.exported == ["report"]
    assert rows_of(tmp_path) == rows
    (tmp_path / "out" / "report.parquet" / "_SUCCESS").touch()
    assert parquet_toy(tmp_path).exported == [], "readers pass over it, so does the check"


@pytest.mark.parametrize("strange", ["part-00000-c000.snappy.parquet", "year=2025", ".keep", ""])
def test_an_export_never_replaces_a_directory_of_other_files(tmp_path: Path, strange: str) -> None:
    """What Spark itself wrote there, a partition, or a file of the directory's name."""
    target = tmp_path / "out" / "report.parquet"
    theirs = target / strange / "kept" if strange == "year=2025" else target / strange
    theirs.parent.mkdir(parents=True)
    theirs.write_text("theirs")
    before = files_below(tmp_path / "out")
    with pytest.raises(UsageInvalid):
        parquet_toy(tmp_path)
    found = files_below(tmp_path / "out")
    assert {name: found[name] for name in before} == before
    shutil.rmtree(target) if strange else target.unlink()
    assert parquet_toy(tmp_path).state is RunState.DONE
    assert verify(tmp_path / "state", tmp_path / "out").findings == ()


def test_an_empty_result_in_parquet_is_one_part_with_columns(tmp_path: Path) -> None:
    write_sales(tmp_path)
    pipe = Pipeline("empty", version="1")
    pipe.input("sales", schema="shop string, amount int")

    @pipe.result("none", format="parquet")
    def none(sales: Rows) -> Rows:
        return []

    tiny(tmp_path, pipeline=pipe)
    (part,) = (tmp_path / "out" / "none.parquet").iterdir()
    assert part.name == "part-00001.parquet"
    assert (pq.read_metadata(part).num_rows, pq.read_schema(part).names) == (0, ["empty"])
    shutil.rmtree(part.parent)
    assert tiny(tmp_path, pipeline=pipe).exported == ["none"]
    assert part.is_file()


def test_an_export_in_parquet_is_not_made_of_a_damaged_piece(tmp_path: Path) -> None:
    parquet_toy(tmp_path)
    shutil.rmtree(tmp_path / "out" / "report.parquet")
    with stored(tmp_path) as (store, run):
        piece = store.list_pieces(run.run_id, "report")[-1]
    flip_byte(tmp_path / "state" / piece.file.path)
    with pytest.raises(Damaged) as caught:
        parquet_toy(tmp_path)
    assert caught.value.path.endswith(piece.file.path)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "large.parquet",
        "texts.csv",
    ]


def test_a_run_does_not_go_on_with_a_result_in_another_format(tmp_path: Path) -> None:
    run_toy(tmp_path)
    with pytest.raises(StateMismatch) as caught:
        parquet_toy(tmp_path)
    assert caught.value.what.startswith("result large changed, result report changed")


def test_a_directory_of_results_holds_no_input(tmp_path: Path) -> None:
    write_inputs(tmp_path / "in")
    place = tmp_path / "out" / "report.parquet"
    place.mkdir(parents=True)
    sales = (tmp_path / "in" / "sales.csv").rename(place / "part-00001.parquet")
    files = {"sales": [sales], "notes": [], "shops": [tmp_path / "in" / "shops.csv"]}
    with pytest.raises(UsageInvalid) as caught:
        run_toy(tmp_path, pipeline=make_pipeline(results="parquet"), files=files)
    assert str(place) in caught.value.what
    assert sales.is_file()


def test_what_another_export_writes_to_the_same_place_is_not_cleared(tmp_path: Path) -> None:
    """Its directory of parts would have its name by then, and lack some of them."""
    out = tmp_path / "out"
    theirs, left = out / f".tmp-{'1' * 32}", out / f".tmp-{'2' * 32}"
    for directory in (theirs, left):
        directory.mkdir(parents=True)
        (directory / "part-00001.parquet").touch()
    with directory_locked(theirs):
        assert run_toy(tmp_path).state is RunState.DONE
        assert [path for path in (theirs, left) if path.exists()] == [theirs]
    clear_temporary(out)
    assert not theirs.exists()


def test_a_directory_of_parts_is_locked_until_it_has_its_name(tmp_path: Path) -> None:
    locked: list[bool] = []

    def look() -> None:
        (temporary,) = (tmp_path / "out").glob(".tmp-*")
        assert temporary.is_dir()
        with directory_locked(temporary) as is_ours:
            locked.append(not is_ours)

    crashpoint.arm("delivery.export.written", 1, die=look)
    try:
        parquet_toy(tmp_path)
    finally:
        crashpoint.disarm()
    assert locked == [True]


@pytest.mark.parametrize("place", ["file", "file/below/it"])
def test_a_place_that_takes_no_results_is_refused_before_any_work(
    tmp_path: Path, place: str
) -> None:
    """A slip of the pen is not found out after hours."""
    (tmp_path / "file").write_text("kept")
    with pytest.raises(UsageInvalid) as caught:
        run_toy(tmp_path, out=tmp_path / place)
    assert caught.value.what.endswith(f"{tmp_path / 'file'} is no directory")
    assert rows_of(tmp_path)["run"] == []
    assert run_toy(tmp_path).state is RunState.DONE


def test_an_export_is_not_restored_from_a_damaged_piece(tmp_path: Path) -> None:
    run_toy(tmp_path)
    (tmp_path / "out" / "report.csv").unlink()
    with stored(tmp_path) as (store, run):
        piece = store.list_pieces(run.run_id, "report")[-1]
    flip_byte(tmp_path / "state" / piece.file.path)
    with pytest.raises(Damaged) as caught:
        run_toy(tmp_path)
    assert caught.value.path.endswith(piece.file.path)
    assert not (tmp_path / "out" / "report.csv").exists()
    assert not list((tmp_path / "out").glob(".*"))


def test_the_state_of_another_pipeline_is_refused(tmp_path: Path) -> None:
    write_sales(tmp_path)
    tiny(tmp_path)
    rows = rows_of(tmp_path)
    with pytest.raises(StateMismatch) as caught:
        tiny(tmp_path, pipeline=tiny_pipeline("other"))
    assert caught.value.code == "STATE_MISMATCH"
    assert "tiny" in caught.value.what
    assert "other" in caught.value.what
    assert rows_of(tmp_path) == rows


def variant(*, schema: str = "shop string, amount int", stage: str = "1") -> Pipeline:
    pipe = Pipeline("tiny")
    pipe.input("sales", schema=schema)

    @pipe.stage(version=stage)
    def clean(sales: Rows) -> Rows:
        return sales

    @pipe.result("report", version="1")
    def report(clean: Rows) -> Rows:
        return clean

    return pipe


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("changed", "name"),
    [
        (variant(schema="shop string, amount bigint"), "input sales changed"),
        (variant(stage="2"), "stage clean changed"),
    ],
    ids=["schema", "stage"],
)
def test_a_changed_pipeline_is_refused_by_name(
    tmp_path: Path, changed: Pipeline, name: str, finished: bool
) -> None:
    write_sales(tmp_path)
    if finished:
        tiny(tmp_path, pipeline=variant())
    else:
        with pytest.raises(DiskFull):
            tiny(tmp_path, pipeline=variant(), before=Fails(DiskFull(path="x"), 1))
    rows = rows_of(tmp_path)
    with pytest.raises(StateMismatch) as caught:
        tiny(tmp_path, pipeline=changed)
    assert caught.value.what == f"{name} since this run began"
    assert rows_of(tmp_path) == rows


def rewrite(path: Path) -> None:
    """Write other bytes of the same size, with another modification time."""
    facts = path.stat()
    flip_byte(path)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1_000_000))


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "rewritten": (rewrite, "was rewritten"),
    "grown": (lambda path: path.write_text(path.read_text() + "s9,9\n"), "has another size"),
    "vanished": (lambda path: path.unlink(), "has vanished"),
}


def interrupted(root: Path) -> None:
    """Bind the inputs and stop at the first batch, as a full disk would."""
    with pytest.raises(DiskFull):
        tiny(root, before=Fails(DiskFull(path="x"), 1))


@pytest.mark.parametrize("how", CHANGES)
def test_a_changed_input_file_is_refused_by_name(tmp_path: Path, how: str) -> None:
    path, other = write_sales(tmp_path), write_sales(tmp_path, name="sales_2.csv")
    interrupted(tmp_path)
    rows = rows_of(tmp_path)
    change, what = CHANGES[how]
    change(path)
    with pytest.raises(InputChanged) as caught:
        tiny(tmp_path)
    assert (caught.value.code, caught.value.path) == ("INPUT_CHANGED", str(path))
    assert caught.value.what == what
    assert rows_of(tmp_path) == rows
    assert other.exists()


def test_a_new_input_file_is_refused_by_name(tmp_path: Path) -> None:
    write_sales(tmp_path)
    interrupted(tmp_path)
    path = write_sales(tmp_path, name="sales_2.csv")
    with pytest.raises(InputChanged) as caught:
        tiny(tmp_path)
    assert (caught.value.path, caught.value.what) == (str(path), "has appeared")


def test_a_touched_but_identical_input_file_is_accepted(tmp_path: Path) -> None:
    path = write_sales(tmp_path)
    interrupted(tmp_path)
    os.utime(path, ns=(1, 1))
    assert tiny(tmp_path).state is RunState.DONE


def test_an_input_that_changes_between_binding_and_reading_is_refused(tmp_path: Path) -> None:
    """The executor checks the very bytes it parses: F27."""
    path = write_sales(tmp_path)

    def change(work: Work) -> None:
        if isinstance(work, BatchWork):
            rewrite(path)

    with pytest.raises(InputChanged) as caught:
        tiny(tmp_path, before=change)
    assert caught.value.path == str(path)
    assert state_of(tmp_path)[0] == RunState.OPEN
    assert not list(tmp_path.glob("out/*"))


def test_files_are_the_first_senders_and_the_others_end_with_zero(tmp_path: Path) -> None:
    run_toy(tmp_path)
    with stored(tmp_path) as (store, run):
        progress = {(p.table, p.sender): p for p in store.read_progress(run.run_id)}
    assert progress["sales", "b"].announced == 0
    assert progress["sales", "b"].applied == Intervals()
    assert progress["sales", ""].announced == len(progress["sales", ""].applied) > 1


def test_a_work_that_fails_twice_then_succeeds_is_committed_once(tmp_path: Path) -> None:
    write_sales(tmp_path)
    report = tiny(tmp_path, before=Fails(FLAW, 2), config=replace(SMALL, batch_bytes=1000))
    assert report.state is RunState.DONE
    assert report.failed_attempts == 2
    with stored(tmp_path) as (store, run):
        (batch,) = [work for work in store.list_work(run.run_id) if work.plan.chunks]
        assert (batch.attempts, batch.failures, batch.committed) == (3, 2, True)
    assert verify(tmp_path / "state", tmp_path / "out").findings == ()
    assert verify(tmp_path / "state").orphans == 0


@pytest.mark.parametrize("kind", [BatchWork, SeriesWork])
def test_a_work_that_fails_three_times_fails_its_run_for_good(
    tmp_path: Path, kind: type[Work]
) -> None:
    write_sales(tmp_path)
    fails = Fails(FLAW, 99, kind)
    with pytest.raises(RunFailed) as caught:
        tiny(tmp_path, before=fails)
    assert str(FLAW) in caught.value.reason
    tried = Counter(getattr(work, "name", "batch") for work in fails.seen if isinstance(work, kind))
    assert set(tried.values()) == {3}
    assert state_of(tmp_path) == (RunState.FAILED, str(FLAW))
    rows = rows_of(tmp_path)
    with pytest.raises(RunFailed) as again:
        tiny(tmp_path)
    assert again.value.reason == caught.value.reason
    assert rows_of(tmp_path) == rows
    assert not list(tmp_path.glob("out/*"))


def test_a_result_that_fails_makes_no_other_one_be_computed_again(tmp_path: Path) -> None:
    write_sales(tmp_path)
    fails = Fails(FLAW, 1, SeriesWork)
    report = tiny(tmp_path, before=fails)
    tried = Counter(work.name for work in fails.seen if isinstance(work, SeriesWork))
    assert (report.state, report.failed_attempts) == (RunState.DONE, 1)
    assert sorted(tried.values()) == [1, 2]
    assert verify(tmp_path / "state", tmp_path / "out").findings == ()


def test_failures_are_counted_across_processes_and_interruptions_are_not(tmp_path: Path) -> None:
    """Two failures, an interruption, one more failure: FAILED at the third failure."""
    write_sales(tmp_path)
    errors: list[Exception] = [FLAW, FLAW, DiskFull(path="x"), FLAW]

    def before(work: Work) -> None:
        raise errors.pop(0)

    with pytest.raises(DiskFull):
        tiny(tmp_path, before=before)
    assert state_of(tmp_path)[0] == RunState.OPEN
    with pytest.raises(RunFailed):
        tiny(tmp_path, before=before)
    assert errors == []


@pytest.mark.parametrize("kind", [BatchWork, SeriesWork])
def test_a_spark_that_is_lost_now_and_then_fails_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Work]
) -> None:
    """As often as is allowed but once, and twice a fault of the stage: the answers are right."""
    monkeypatch.setattr(PlainExecutor, "replaceable", True)
    write_sales(tmp_path)
    losses = Config().spark_losses_max - 1
    errors: list[Exception] = [*([SparkLost(error="gone")] * losses), FLAW, FLAW]
    seen: list[Work] = []

    def before(work: Work) -> None:
        first = isinstance(work, kind) and (not seen or work.directory.startswith(of(seen[0])))
        if first:
            seen.append(work)
            if errors:
                raise errors.pop(0)

    report = tiny(tmp_path, before=before, config=replace(SMALL, batch_bytes=1000))
    assert errors == []
    assert (report.state, report.failed_attempts) == (RunState.DONE, losses + 2)
    with stored(tmp_path) as (store, run):
        works = [work for work in store.list_work(run.run_id) if work.failures]
        assert [(work.failures, work.losses) for work in works] == [(losses + 2, losses)]
    assert verify(tmp_path / "state", tmp_path / "out").findings == ()


def of(work: Work) -> str:
    """Return the directory of a work: the parent of those of its attempts."""
    return f"{Path(work.directory).parent}/"


@pytest.mark.parametrize("kind", [BatchWork, SeriesWork])
def test_a_work_that_kills_spark_each_time_fails_its_run_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Work]
) -> None:
    """Also if the command is started again in between: the count is durable."""
    monkeypatch.setattr(PlainExecutor, "replaceable", True)
    write_sales(tmp_path)
    lost, config = SparkLost(error="gone"), replace(SMALL, spark_losses_max=5)
    errors: list[Exception] = [lost, lost, lost, DiskFull(path="x"), lost, lost]

    def before(work: Work) -> None:
        if isinstance(work, kind) and (kind is BatchWork or getattr(work, "name", "") == "report"):
            raise errors.pop(0)

    with pytest.raises(DiskFull):
        tiny(tmp_path, before=before, config=config)
    with pytest.raises(RunFailed) as caught:
        tiny(tmp_path, before=before, config=config)
    assert errors == []
    assert state_of(tmp_path) == (RunState.FAILED, caught.value.reason)
    assert str(lost) in caught.value.reason


@pytest.mark.parametrize(
    "error",
    [
        BadRows(path="f", line=3, reason="bad", count=1),
        StageInvalid(stage="s", where="here", error="no such column"),
    ],
    ids=lambda error: error.code,
)
def test_what_will_fail_again_fails_the_run_at_once(tmp_path: Path, error: Exception) -> None:
    write_sales(tmp_path)
    fails = Fails(error, 99)
    with pytest.raises(RunFailed):
        tiny(tmp_path, before=fails)
    assert len(fails.seen) == 1
    assert state_of(tmp_path) == (RunState.FAILED, str(error))


def test_a_long_reason_keeps_its_beginning_and_its_remedy(tmp_path: Path) -> None:
    write_sales(tmp_path)
    fault = StageInvalid(stage="s", where="here", error="x" * 100_000)
    with pytest.raises(RunFailed):
        tiny(tmp_path, before=Fails(fault, 99))
    _, reason = state_of(tmp_path)
    assert reason is not None
    head, tail = reason.split(" ... ")
    assert str(fault).startswith(head)
    assert str(fault).endswith(tail)
    assert "Correct it" in tail
    assert len(reason) == REASON_CHARACTERS_MAX


def test_a_row_that_does_not_fit_is_named_with_its_file(tmp_path: Path) -> None:
    path = write_sales(tmp_path)
    path.write_text("shop,amount\na,1\nb\n")
    with pytest.raises(RunFailed) as caught:
        tiny(tmp_path)
    assert "BAD_ROWS" in caught.value.reason
    assert str(path) in caught.value.reason


@pytest.mark.parametrize("kind", [BatchWork, SeriesWork])
@pytest.mark.parametrize(
    "error", [DiskFull(path="x"), SparkLost(error="gone")], ids=lambda error: error.code
)
def test_an_error_of_the_environment_leaves_the_run_to_be_resumed(
    tmp_path: Path, error: Exception, kind: type[Work]
) -> None:
    write_sales(tmp_path)
    with pytest.raises(type(error)):
        tiny(tmp_path, before=Fails(error, 1, kind))
    state, text = state_of(tmp_path)
    # The other result was committed, so that it is not computed again.
    assert (state, text) == (RunState.OPEN if kind is BatchWork else RunState.RECEIVING, None)
    assert not list(tmp_path.glob("out/*"))
    report = tiny(tmp_path)
    assert (report.state, report.failed_attempts) == (RunState.DONE, 0)
    assert verify(tmp_path / "state", tmp_path / "out").findings == ()


def test_plan_offset_and_attempt_are_durable_before_the_executor_is_asked(tmp_path: Path) -> None:
    """Look into the store, on another connection, at the moment a job begins."""
    looked: list[str] = []

    def look(work: Work) -> None:
        with stored(tmp_path) as (store, run):
            open_works = store.list_work(run.run_id, committed=False)
            mine = [w for w in open_works if w.plan.work_id == Path(work.directory).parent.name]
            assert [(w.attempts, w.failures, w.committed) for w in mine] == [(1, 0, False)]
            if isinstance(work, BatchWork):
                planned = Counter(c.table for c in mine[0].plan.chunks)
                assert planned == {table: len(some) for table, some in work.chunks.items()}
                topic = ingress_topic(run.run_id, work.segment)
                assert store.read_offset(topic, 0, ENGINE_GROUP) == mine[0].plan.offset
        looked.append(work.directory)

    run_toy(tmp_path, before=look)
    assert len(looked) == len(set(looked)) > 5


def test_a_resumed_run_does_the_very_plan_that_was_interrupted(tmp_path: Path) -> None:
    """Other batch sizes would cut the chunks otherwise: only the persisted plan can say."""
    write_sales(tmp_path, rows=12)
    with pytest.raises(DiskFull):
        tiny(tmp_path, before=Fails(DiskFull(path="x"), 1))
    with stored(tmp_path) as (store, run):
        (planned,) = store.list_work(run.run_id)
    seen: list[Event] = []
    tiny(tmp_path, config=replace(SMALL, batch_bytes=10_000, batch_chunks=100), watch=seen.append)
    with stored(tmp_path) as (store, run):
        first, *others = [work for work in store.list_work(run.run_id) if work.plan.chunks]
    assert first.plan == planned.plan
    assert (first.number, first.attempts) == (1, 2)
    assert len(others) == 1
    resumed = [event for event in seen if event.kind is EventKind.RESUMED]
    assert [event.chunks for event in resumed] == [len(planned.plan.chunks)]


def test_a_chunk_that_is_applied_already_stops_the_commit(tmp_path: Path) -> None:
    """The primary key on `applied` is the last line: no second effect, whatever went wrong."""
    write_sales(tmp_path)
    with pytest.raises(DiskFull):
        tiny(tmp_path, before=Fails(DiskFull(path="x"), 1))
    alter_store(
        tmp_path,
        """INSERT INTO applied SELECT run_id, segment, tbl, sender, ordinal, NULL FROM planned
           WHERE position = 1""",
    )
    rows = rows_of(tmp_path, apart=("lease", "attempt"))
    with pytest.raises(InvariantViolated):
        tiny(tmp_path)
    assert rows_of(tmp_path, apart=("lease", "attempt")) == rows
    assert state_of(tmp_path)[0] == RunState.OPEN
    assert not list(tmp_path.glob("out/*"))


def pieces_seen(root: Path, series: str) -> list[bool]:
    with stored(root) as (store, run):
        return [piece.final for piece in store.list_pieces(run.run_id, series)]


def test_streamed_pieces_are_provisional_before_done_and_final_after(tmp_path: Path) -> None:
    write_sales(tmp_path, rows=12)
    seen: list[list[bool]] = []
    tiny(tmp_path, before=lambda work: seen.append(pieces_seen(tmp_path, "all_sales")))
    assert seen[0] == []
    assert len(seen[-1]) > 1
    assert not any(final for some in seen for final in some)
    assert pieces_seen(tmp_path, "all_sales") == [True] * len(seen[-1])


def test_streamed_pieces_of_a_failed_run_are_void(tmp_path: Path) -> None:
    write_sales(tmp_path)
    with pytest.raises(RunFailed):
        tiny(tmp_path, before=Fails(FLAW, 99, SeriesWork))
    assert pieces_seen(tmp_path, "all_sales") == []
    assert rows_of(tmp_path)["piece"] != []


def test_nothing_final_is_computed_before_the_barrier(tmp_path: Path) -> None:
    order: list[str] = []
    run_toy(tmp_path, before=lambda work: order.append(type(work).__name__))
    assert order == sorted(order)
    assert set(order) == {"BatchWork", "SeriesWork"}


@pytest.mark.parametrize(
    "text", ["", "shop,amount\n", "shop,amount"], ids=["empty", "header", "cut"]
)
def test_an_input_without_rows_gives_results_without_rows(tmp_path: Path, text: str) -> None:
    path = write_sales(tmp_path)
    path.write_text(text)
    report = tiny(tmp_path)
    assert report.state is RunState.DONE
    assert (report.chunks, report.rows) == (0, 0)
    assert answers_in(tmp_path / "out") == {"all_sales": Counter(), "report": Counter()}
    assert verify(tmp_path / "state", tmp_path / "out").findings == ()
    assert tiny(tmp_path).already_done


def test_no_file_at_all_for_a_table_ends_it_with_zero_chunks(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    assert tiny(tmp_path, files={}).state is RunState.DONE


def test_a_missing_optional_table_is_empty_and_the_others_are_not(tmp_path: Path) -> None:
    run_toy(tmp_path / "made")
    (tmp_path / "in").mkdir()
    for name in ("sales.csv", "shops.csv"):
        shutil.copy(tmp_path / "made" / "in" / name, tmp_path / "in" / name)
    report = run_toy(tmp_path, pipeline=make_pipeline())
    assert report.state is RunState.DONE
    wanted = {**expected(), "texts": Counter[tuple[str, ...]]()}
    assert answers_in(tmp_path / "out") == wanted


def test_a_wrong_header_leaves_nothing_bound(tmp_path: Path) -> None:
    path = write_sales(tmp_path)
    good = path.read_text()
    path.write_text(good.replace("shop,amount", "amount,shop"))
    with pytest.raises(HeaderWrong) as caught:
        tiny(tmp_path)
    assert caught.value.path == str(path)
    with look(tmp_path / "state") as (_, store):
        assert store.list_runs() == []
    path.write_text(good)
    assert tiny(tmp_path).state is RunState.DONE


DAMAGE: dict[str, Callable[[Path], object]] = {
    "altered": flip_byte,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("output", ["totals", "notes", "large"])
def test_a_damaged_partial_kept_or_streamed_file_is_named_and_gives_no_result(
    tmp_path: Path, output: str, damage: str
) -> None:
    """totals is a combine's partial, notes are kept rows, large is streamed."""
    with pytest.raises(DiskFull):
        run_toy(tmp_path, before=Fails(DiskFull(path="x"), 99, SeriesWork))
    with stored(tmp_path) as (store, run):
        path = tmp_path / "state" / store.read_manifest(run.run_id, output)[0].path
    DAMAGE[damage](path)
    with pytest.raises(Damaged) as caught:
        run_toy(tmp_path)
    assert (caught.value.code, caught.value.path) == ("DAMAGED", str(path))
    assert state_of(tmp_path)[0] in (RunState.FORWARDING, RunState.RECEIVING)
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize("damage", ["altered", "missing"])
def test_a_damaged_file_of_a_durable_stage_is_an_error_of_the_data_and_fails_no_run(
    tmp_path: Path, damage: str
) -> None:
    """A reader that stumbles over the damage says what Spark would say: the stage is invalid.

    That must not end the run: its file can be restored from a backup.
    """

    def stop(work: Work) -> None:
        if isinstance(work, BatchWork) and work.segment == 2:
            raise DiskFull(path="x")

    def stumble(work: Work) -> None:
        paths = [s.path for some in getattr(work, "chunks", {}).values() for s in some]
        if not all(Path(path).exists() for path in paths):
            raise StageInvalid(stage="doubled", where="its definition", error="PATH_NOT_FOUND")

    with pytest.raises(DiskFull):
        run_toy(tmp_path, before=stop)
    with stored(tmp_path) as (store, run):
        path = tmp_path / "state" / store.read_manifest(run.run_id, "doubled")[0].path
    good = path.read_text()
    if damage == "altered":
        path.write_text(good.replace('"amount": 2', '"amount": 3'))
        assert path.read_text() != good
    else:
        path.unlink()
    with pytest.raises(DataError) as caught:
        run_toy(tmp_path, before=stumble)
    assert str(path) in str(caught.value)
    assert state_of(tmp_path)[0] == RunState.OPEN
    assert not list(tmp_path.glob("out/*"))
    path.write_text(good)
    run_toy(tmp_path)
    assert answers_in(tmp_path / "out") == expected()


def test_a_run_id_names_the_pipeline_so_a_restart_finds_it(tmp_path: Path) -> None:
    write_sales(tmp_path / "a")
    write_sales(tmp_path / "b")
    tiny(tmp_path / "a")
    tiny(tmp_path / "b")
    assert run_id_in(tmp_path / "a") == run_id_in(tmp_path / "b")


def test_an_export_asked_for_later_is_made_and_then_known(tmp_path: Path) -> None:
    """A run that was finished without --out gets one later; verify then watches over it."""
    write_sales(tmp_path)
    tiny(tmp_path, out=tmp_path / "first")
    tiny(tmp_path, out=tmp_path / "second")
    first, second = (tmp_path / name / "report.csv" for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    assert verify(tmp_path / "state", tmp_path / "second").findings == ()


@pytest.mark.parametrize("how", ["another size", "rewritten", "appeared"])
def test_a_finished_run_is_not_taken_for_one_of_other_inputs(tmp_path: Path, how: str) -> None:
    path = write_sales(tmp_path)
    tiny(tmp_path)
    before = rows_of(tmp_path)
    match how:
        case "another size":
            path.write_text(path.read_text() + "Dock,7\n")
        case "rewritten":
            path.write_text(path.read_text().swapcase().replace("SHOP,AMOUNT", "shop,amount"))
        case _:
            write_sales(tmp_path, name="sales_2.csv")
    with pytest.raises(InputChanged) as caught:
        tiny(tmp_path)
    assert how in caught.value.what
    assert rows_of(tmp_path) == before


def test_a_finished_run_does_not_need_its_inputs_any_more(tmp_path: Path) -> None:
    path = write_sales(tmp_path)
    tiny(tmp_path)
    path.unlink()
    (tmp_path / "out" / "report.csv").unlink()
    assert tiny(tmp_path).exported == ["report"]


def test_the_report_counts_what_this_call_did(tmp_path: Path) -> None:
    write_sales(tmp_path, rows=12)
    with pytest.raises(DiskFull):
        tiny(tmp_path, before=Stops(after=2))
    report = tiny(tmp_path)
    with stored(tmp_path) as (store, run):
        batches = [work for work in store.list_work(run.run_id) if work.plan.chunks]
    assert report.batches == len(batches) - 2
    assert (report.redone_batches, report.redone_chunks) == (1, len(batches[2].plan.chunks))
    assert report.rows == 12


class Stops:
    """Lets some works pass, then the disk is full."""

    def __init__(self, after: int) -> None:
        self._left = after

    def __call__(self, work: Work) -> None:
        if self._left == 0:
            raise DiskFull(path="x")
        self._left -= 1
