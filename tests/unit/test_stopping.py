"""A run that is asked to stop: it ends between two works, and the next one goes on there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.crash.workloads import SMALL, check_answers, make_pipeline, write_inputs
from tests.unit.plain_runs import run_toy, stored

from holdfast.cli.stop import Stop
from holdfast.cli.tell import TextTeller
from holdfast.engine.drive import Inputs, RunReport, drive
from holdfast.engine.events import Event, EventKind
from holdfast.engine.state import hold
from holdfast.errors import RunStopped
from holdfast.intake.listing import list_tables
from holdfast.testing.clock import VirtualClock
from holdfast.testing.plain import PlainExecutor


def run_until(root: Path, kind: EventKind, number: int) -> tuple[RunReport | None, list[Event]]:
    """Run the toy pipeline; ask it to stop in its `number`-th event of a kind."""
    write_inputs(root / "in")
    pipeline = make_pipeline()
    spec, seen = pipeline.spec(), list[Event]()
    with hold(root / "state", SMALL) as held:
        try:
            report = drive(
                held,
                spec,
                lambda: Inputs(list_tables(root / "in", spec.tables, ignore_unknown=True)),
                lambda: PlainExecutor(pipeline),
                out=root / "out",
                config=SMALL,
                watch=seen.append,
                stop=lambda: sum(event.kind is kind for event in seen) >= number,
            )
        except RunStopped:
            return None, seen
    return report, seen


@pytest.mark.parametrize("number", [1, 2, 5])
def test_the_batch_under_way_is_committed_first(tmp_path: Path, number: int) -> None:
    """Asked while batch n is worked on: n is committed, nothing after it has begun."""
    report, seen = run_until(tmp_path, EventKind.STARTED, number)
    assert report is None
    assert sum(event.kind is EventKind.STARTED for event in seen) == number
    assert sum(event.kind is EventKind.COMMITTED for event in seen) == number
    with stored(tmp_path) as (store, run):
        works = store.list_work(run.run_id)
        assert sum(work.committed for work in works) == number
        assert sum(work.attempts for work in works) == number
    again: list[Event] = []
    run_toy(tmp_path, watch=again.append)
    assert not [event for event in again if event.kind is EventKind.RESUMED]
    check_answers(tmp_path)


def test_stopped_again_and_again_it_still_arrives(tmp_path: Path) -> None:
    for _ in range(40):
        report, _ = run_until(tmp_path, EventKind.COMMITTED, 1)
        if report is not None:
            break
    assert report is not None
    assert report.state == "DONE"
    check_answers(tmp_path)


def test_a_resumed_run_tells_where_it_stands(tmp_path: Path) -> None:
    _, seen = run_until(tmp_path, EventKind.COMMITTED, 1)
    rows = sum(event.rows for event in seen)
    applied = sum(event.chunks for event in seen if event.kind is EventKind.COMMITTED)
    again: list[Event] = []
    run_toy(tmp_path, watch=again.append)
    found = next(event for event in again if event.kind is EventKind.FOUND)
    tables = {one.table: one for one in found.tables}
    whole = tables["shops"].chunks
    assert sum(one.applied for one in found.tables) == applied + whole
    assert found.rows == rows
    assert (tables["doubled"].is_open, tables["sales"].is_open) == (True, False)


class Running:
    """Stands for the Spark process."""

    def __init__(self) -> None:
        self.stopped = self.killed = 0

    def stop(self) -> None:
        self.stopped += 1

    def kill(self) -> None:
        self.killed += 1


def test_what_starts_after_the_signal_is_stopped_as_well() -> None:
    stop, running = Stop(TextTeller(VirtualClock()), "holdfast run x"), Running()
    with stop.on_signals():
        stop._asked = True
        stop.watch(running)
    assert (stop(), running.stopped) == (True, 1)
    told = stop.resumable(RunStopped(what="stopped", resume="?"))
    assert told.resume == "Resume: holdfast run x"
