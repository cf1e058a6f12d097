"""One at a time: the lock stops a second process, the epoch stops a former owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.crash.workloads import SMALL, check_answers, expected, make_pipeline, write_inputs
from tests.unit.plain_runs import (
    answers_in,
    files_below,
    rows_of,
    run_toy,
    state_of,
    tiny_pipeline,
    write_sales,
)

from holdfast._base import crashpoint
from holdfast._base.ids import BatchId, Offset, Ordinal, RunId
from holdfast.blobs.local import LocalBlobs
from holdfast.engine.barrier import is_complete
from holdfast.engine.drive import Inputs, drive, open_run
from holdfast.engine.events import ignore
from holdfast.engine.executor import BatchWork, Outcome, SeriesWork
from holdfast.engine.finish import finish
from holdfast.engine.loop import Engine
from holdfast.engine.plan import plan_batch
from holdfast.engine.state import Held, StateDirectory, hold
from holdfast.errors import Fenced, HoldfastError, StateBusy, StorageFailed
from holdfast.intake.bind import bind_files
from holdfast.intake.listing import list_tables
from holdfast.log.embedded import EmbeddedBackend
from holdfast.queries import verify
from holdfast.store.contract import Store
from holdfast.store.leases import ENGINE_RESOURCE
from holdfast.store.rows import (
    Chunk,
    ChunkKind,
    Commit,
    End,
    Fence,
    NewRun,
    Plan,
    RunState,
    SenderDecl,
    WorkKind,
)
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.plain import PlainExecutor

HOLDER = """
import sys
from pathlib import Path
from holdfast.engine.state import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(state: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds a state directory until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(state)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_second_process_stops_before_any_effect_and_names_the_first(tmp_path: Path) -> None:
    write_sales(tmp_path)
    with holder(tmp_path / "state") as first:
        rows, files = rows_of(tmp_path, apart=()), files_below(tmp_path)
        lock = (tmp_path / "state" / "holdfast.lock").read_bytes()
        with pytest.raises(StateBusy) as caught:
            run_toy(tmp_path, pipeline=tiny_pipeline())
        assert (caught.value.code, caught.value.pid) == ("STATE_BUSY", first.pid)
        assert caught.value.state == str(tmp_path / "state")
        assert rows_of(tmp_path, apart=()) == rows
        assert files_below(tmp_path) == files
        assert (tmp_path / "state" / "holdfast.lock").read_bytes() == lock


def test_a_restart_after_sigkill_does_not_wait_and_has_the_next_epoch(tmp_path: Path) -> None:
    write_sales(tmp_path)
    with holder(tmp_path / "state") as first:
        first.send_signal(signal.SIGKILL)
        first.wait()
        with hold(tmp_path / "state", SMALL) as held:
            assert held.fence.epoch == 2
    assert run_toy(tmp_path, pipeline=tiny_pipeline()).state is RunState.DONE


def test_a_stopped_holder_still_holds(tmp_path: Path) -> None:
    """SIGSTOP keeps the lock: nobody can take over from a process that may wake up."""
    with holder(tmp_path / "state") as first:
        first.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(StateBusy) as caught, hold(tmp_path / "state"):
                pass
            assert caught.value.pid == first.pid
        finally:
            first.send_signal(signal.SIGCONT)


def test_the_same_process_cannot_hold_twice(tmp_path: Path) -> None:
    with hold(tmp_path), pytest.raises(StateBusy) as caught, hold(tmp_path):
        pass
    assert caught.value.pid == os.getpid()


class Two:
    """An old owner and its successor on one store, the lock bypassed, as on a bad network disk."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = StateDirectory(root / "state")
        self._stores: list[Store] = []
        self.old = self.owner()

    def owner(self) -> Held:
        """Return a new owner: a connection of its own and the next epoch."""
        store = SqliteStore.open(self.directory.store, SMALL)
        self._stores.append(store)
        return Held(self.directory, store, store.take_lease(ENGINE_RESOURCE, "test"))

    def close(self) -> None:
        for store in self._stores:
            store.close()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    made = Two(tmp_path)
    yield made
    made.close()


RUN = RunId("r")
CHUNK = Chunk("t", "", Ordinal(1), ChunkKind.RANGE, "/f", 1, "sum")
OTHER = Chunk("t", "", Ordinal(2), ChunkKind.RANGE, "/f", 1, "sum2")
WORK = BatchId("w")
EFFECTS: dict[str, Callable[[Store, Fence], object]] = {
    "bind_inputs": lambda s, f: s.bind_inputs(f, RunId("q"), [], [End("t", "", 0)], is_complete),
    "persist_plan": lambda s, f: s.persist_plan(f, plan_batch(RUN, 1, "x", [(Offset(1), OTHER)])),
    "persist_plan of a stored plan": lambda s, f: s.persist_plan(f, plan_of_work()),
    "start_attempt": lambda s, f: s.start_attempt(f, WORK),
    "fail_attempt": lambda s, f: s.fail_attempt(f, WORK, 1, "why"),
    "commit_work": lambda s, f: s.commit_work(f, Commit(WORK, 1, ()), is_complete),
    "move_run": lambda s, f: s.move_run(f, RUN, expected="OPEN", to="FAILED", error="why"),
    "finish_run": lambda s, f: s.finish_run(f, RUN, {}),
    "beat_lease": lambda s, f: s.beat_lease(f),
}


def plan_of_work() -> Plan:
    return Plan(WORK, RUN, WorkKind.BATCH, 1, "", (CHUNK,), Offset(1))


def prepare(owner: Held, *, completing: bool) -> None:
    """Two runs: q with nothing bound, r with a planned work whose attempt is under way."""
    store, fence = owner.store, owner.fence
    for run in (RUN, RunId("q")):
        store.create_run(NewRun(run, "", "p", {}, 1, (SenderDecl("t", "", 1),), 0))
    store.bind_inputs(fence, RUN, [CHUNK, OTHER], [End("t", "", 2)], is_complete)
    store.persist_plan(fence, plan_of_work())
    store.start_attempt(fence, WORK)
    if completing:
        moves = ("OPEN", "FORWARDING", "RECEIVING", "COMPLETING")
        for current, to in pairwise(moves):
            assert store.move_run(fence, RUN, expected=current, to=to)


@pytest.mark.parametrize("effect", EFFECTS)
def test_every_effect_of_a_former_owner_is_fenced_and_changes_nothing(
    two: Two, effect: str
) -> None:
    """I8. The control comes first: the same call by the present owner does not raise Fenced."""
    prepare(two.old, completing=effect == "finish_run")
    new = two.owner()
    rows = rows_of(two.root, apart=())
    with pytest.raises(Fenced) as caught:
        EFFECTS[effect](two.old.store, two.old.fence)
    assert (caught.value.resource, caught.value.epoch) == (ENGINE_RESOURCE, two.old.fence.epoch)
    assert not caught.value.retryable
    assert rows_of(two.root, apart=()) == rows
    EFFECTS[effect](new.store, new.fence)
    assert rows_of(two.root, apart=()) != rows


def run_as(held: Held, before: Callable[[Any], None] | None = None) -> None:
    """Drive the toy pipeline under one owner's grant, without the lock."""
    root = held.directory.root.parent
    pipeline = make_pipeline()
    spec = pipeline.spec()
    drive(
        held,
        spec,
        lambda: Inputs(list_tables(root / "in", spec.tables, ignore_unknown=True)),
        lambda: PlainExecutor(pipeline, before),
        out=root / "out",
        config=SMALL,
        watch=ignore,
    )


@pytest.mark.parametrize("moment", ["first batch", "a later batch", "second segment", "series"])
def test_an_engine_that_was_stopped_in_a_job_changes_nothing_when_it_goes_on(
    two: Two, moment: str
) -> None:
    """While the first is in its job, a second takes over and completes; then the first goes on."""
    write_inputs(two.root / "in")
    seen: list[Any] = []
    after: list[Any] = []

    def is_moment(work: BatchWork | SeriesWork) -> bool:
        match moment:
            case "first batch":
                return len(seen) == 1
            case "a later batch":
                return len(seen) == 2
            case "second segment":
                return isinstance(work, BatchWork) and work.segment == 2
            case _:
                # The last of those that are computed side by side.
                return sum(isinstance(one, SeriesWork) for one in seen) == 3

    def stopped(work: BatchWork | SeriesWork) -> None:
        seen.append(work)
        if is_moment(work):
            assert not after, "the fenced engine went on with another work"
            run_as(two.owner())
            check_answers(two.root)
            after.append((rows_of(two.root, apart=()), files_below(two.root / "out")))

    with pytest.raises(Fenced):
        run_as(two.old, stopped)
    rows, exports = after[0]
    assert rows_of(two.root, apart=()) == rows
    assert files_below(two.root / "out") == exports
    assert state_of(two.root)[0] == RunState.DONE
    assert verify(two.root / "state", two.root / "out").findings == ()


FENCED_AT = (
    "intake.bind.before",
    "engine.plan.before",
    "engine.plan.after",
    "engine.attempt.after",
    "engine.job.after",
    "engine.sync.after",
    "delivery.done.before",
)
HARMLESS_AT = ("intake.create.after", "engine.commit.after", "delivery.export.written")
"""Here the old owner finds a finished run, or its temporary file gone, and does nothing more."""


@pytest.mark.parametrize("point", [*FENCED_AT, *HARMLESS_AT])
def test_an_engine_that_was_stopped_between_two_steps_changes_nothing_when_it_goes_on(
    two: Two, point: str
) -> None:
    """The same at the boundaries: the crash-point hook is where the old owner stands still.

    What it leaves is at most an orphan of its own attempt, which is counted by nobody.
    """
    write_inputs(two.root / "in")
    after: list[Any] = []

    def take_over() -> None:
        crashpoint.disarm()
        run_as(two.owner())
        after.append((rows_of(two.root, apart=()), files_below(two.root / "out")))

    crashpoint.arm(point, 1, die=take_over)
    error: HoldfastError | None = None
    try:
        run_as(two.old)
    except (Fenced, StorageFailed) as caught:
        error = caught
    finally:
        crashpoint.disarm()
    rows, exports = after[0]
    assert isinstance(error, Fenced) or point in HARMLESS_AT
    assert rows_of(two.root, apart=()) == rows
    assert files_below(two.root / "out") == exports
    assert answers_in(two.root / "out") == expected()
    assert verify(two.root / "state", two.root / "out").findings == ()


def engine_of(held: Held, before: Callable[[Any], None] | None = None) -> Engine:
    pipeline = make_pipeline()
    return Engine(
        held,
        pipeline.spec(),
        PlainExecutor(pipeline, before),
        log=EmbeddedBackend(held.store),
        blobs=LocalBlobs(held.directory.blobs),
        config=SMALL,
    )


def bind_toy(held: Held) -> RunId:
    root = held.directory.root.parent
    write_inputs(root / "in")
    spec = make_pipeline().spec()
    run = open_run(held.store, spec, root)
    bind_files(
        held.store,
        held.fence,
        run.run_id,
        files=list_tables(root / "in", spec.tables, ignore_unknown=True),
        tables=[table for table in spec.tables if not table.produced],
        config=SMALL,
        barrier=is_complete,
    )
    return run.run_id


class Sabotaged(PlainExecutor):
    """Calls `then` when the files of a batch are written, before the engine has sealed them."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__(make_pipeline())
        self._then: Callable[[], None] | None = then

    def run_batch(self, work: BatchWork) -> Outcome:
        outcome = super().run_batch(work)
        if self._then is not None:
            then, self._then = self._then, None
            then()
        return outcome


def test_a_former_owner_does_not_sweep_away_what_its_successor_is_writing(two: Two) -> None:
    """An old engine that wakes up in front of its sweep removes files, not rows: no less an effect.

    Without a fence there, the successor commits a batch whose files are gone.
    """
    run_id = bind_toy(two.old)
    new = two.owner()

    def wake_up() -> None:
        with pytest.raises(Fenced):
            engine_of(two.old).advance(run_id)

    engine = Engine(
        new,
        make_pipeline().spec(),
        Sabotaged(wake_up),
        log=EmbeddedBackend(new.store),
        blobs=LocalBlobs(new.directory.blobs),
        config=SMALL,
    )
    engine.advance(run_id)
    finish(new, run_id, two.root / "out")
    check_answers(two.root)


def test_a_former_owner_stops_at_its_first_effect(two: Two) -> None:
    """It does not even begin a job that would be thrown away."""
    run_id = bind_toy(two.old)
    two.owner()
    asked: list[Any] = []
    with pytest.raises(Fenced):
        engine_of(two.old, asked.append).advance(run_id)
    assert asked == []
