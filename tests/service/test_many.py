"""An engine with runs of many clients: turns, isolation, trouble, and the end."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.service.floor import (
    SMALL,
    Rows,
    check,
    create,
    hand_in,
    make_pipeline,
    put,
    run_id_of,
    states,
)
from tests.service.processes import until

from holdfast import Pipeline
from holdfast._base.ids import START
from holdfast.config import Config
from holdfast.engine.barrier import is_complete
from holdfast.engine.events import Event, EventKind
from holdfast.engine.executor import BatchWork, Executor, SeriesWork
from holdfast.engine.serve import Halt, ServedEngine, Telling
from holdfast.engine.state import Shared, share
from holdfast.errors import Fenced, HoldfastError, SparkNotStarted, StageFailed
from holdfast.intake.upload import put_end
from holdfast.log.embedded import EmbeddedBackend
from holdfast.store.contract import ingress_topic
from holdfast.store.leases import ENGINE_RESOURCE
from holdfast.store.rows import End, ReadyRun, RunState
from holdfast.testing.plain import PlainExecutor

Before = Callable[[BatchWork | SeriesWork], None]


class Floor:
    """A served engine in a thread, and what it told."""

    def __init__(self, shared: Shared, root: Path) -> None:
        self.shared, self.store, self.root = shared, shared.store, root
        self.halt = Halt()
        self.said: list[str] = []
        self.events: list[tuple[str, Event]] = []
        self.troubles: list[tuple[str, HoldfastError]] = []
        self.errors: list[BaseException] = []
        self._thread: threading.Thread | None = None

    def start(
        self,
        before: Before | None = None,
        executor: Callable[[], Executor] | None = None,
        config: Config = SMALL,
        pipeline: Pipeline | None = None,
    ) -> None:
        pipeline = pipeline or make_pipeline()
        engine = ServedEngine(
            self.shared,
            pipeline.spec(),
            executor or (lambda: PlainExecutor(pipeline, before)),
            config=config,
            telling=Telling(
                self.said.append,
                lambda run, event: self.events.append((run.client, event)),
                lambda run, error: self.troubles.append((run.client, error)),
            ),
            halt=self.halt,
        )

        def serve() -> None:
            try:
                engine.serve()
            except BaseException as error:  # it is looked at by the test, in another thread
                self.errors.append(error)

        self._thread = threading.Thread(target=serve)
        self._thread.start()

    def end(self) -> None:
        self.halt.ask()
        if self._thread is not None:
            self._thread.join(30)
            assert not self._thread.is_alive()

    def until_states(self, **wanted: str) -> None:
        until(f"the runs are {wanted}", lambda: states(self.store) == wanted, 30)


@pytest.fixture
def floor(tmp_path: Path) -> Iterator[Floor]:
    with opened(tmp_path / "state") as floor:
        yield floor


@contextmanager
def opened(root: Path) -> Iterator[Floor]:
    with share(root, SMALL, part="engine", spec=make_pipeline().spec()) as shared:
        floor = Floor(shared, root)
        try:
            yield floor
        finally:
            floor.end()


def is_of(work: BatchWork | SeriesWork, client: str) -> bool:
    return f"/{run_id_of(client)}/" in work.directory


def test_references_of_all_runs_travel_over_the_log_of_the_settings(
    floor: Floor, tmp_path: Path
) -> None:
    """Each run has its own topics there, and what was committed is dropped."""
    path = tmp_path / "elsewhere.db"
    floor.start(config=replace(SMALL, log=path.as_uri()))
    for client in ("a", "b"):
        hand_in(floor.shared, client)
    floor.until_states(a="COMPLETING", b="COMPLETING")
    floor.end()
    for client in ("a", "b"):
        check(floor.root, floor.store, client)
    assert (floor.errors, floor.troubles) == ([], [])
    log = EmbeddedBackend(path)
    log.start()
    for client in ("a", "b"):
        topic = f"{floor.store.store_id()}/{ingress_topic(run_id_of(client), 1)}"
        first, end = log.bounds(topic)
        assert first == end > 0
    log.stop()


def test_chunks_that_come_while_it_works_are_found(floor: Floor) -> None:
    floor.start()
    for client in ("a", "b"):
        hand_in(floor.shared, client)
    floor.until_states(a="COMPLETING", b="COMPLETING")
    check(floor.root, floor.store, "a")
    check(floor.root, floor.store, "b")
    assert floor.errors == []


def test_a_run_without_its_end_waits_and_keeps_nobody_up(floor: Floor) -> None:
    waiting = create(floor.store, "waiting")
    put(floor.shared, waiting, "shop,amount\ns1,1\n", 1)
    hand_in(floor.shared, "a")
    floor.start()
    floor.until_states(waiting="OPEN", a="COMPLETING")


def test_a_run_that_waits_for_a_whole_table_shortens_nobodys_turns(floor: Floor) -> None:
    """Its chunks are pending all the time, and none can be planned: all batches of the other are as
    large as for one who is alone. When its table comes it goes on.
    """
    pipeline = make_pipeline()

    @pipeline.result("known", streamed=True)
    def known(sales: Rows, shops: Rows) -> Rows:
        return [row for row in sales if row["shop"] in {shop["shop"] for shop in shops}]

    waiting = create(floor.store, "waiting")
    put(floor.shared, waiting, "shop,amount\ns1,1\n", 1)
    run_id = hand_in(floor.shared, "a", rows=120)
    floor.start(pipeline=pipeline)
    floor.until_states(waiting="OPEN", a="COMPLETING")
    batches = [w for w in floor.store.list_work(run_id, committed=True) if w.plan.segment == 1]
    assert [len(work.plan.chunks) for work in batches] == [SMALL.batch_chunks] * 6
    assert floor.store.list_work(waiting) == []
    put(floor.shared, waiting, "shop,title\ns1,title s1\n", 1, table="shops")
    for end in (End("sales", "", 1), End("sales", "b", 0), End("shops", "", 1)):
        put_end(floor.store, waiting, end, is_complete)
    floor.until_states(waiting="COMPLETING", a="COMPLETING")


def test_a_small_run_ends_while_a_large_one_is_far_from_it(floor: Floor) -> None:
    """The large one was first, and has a hundred batches; each has the turn of the other."""
    large = hand_in(floor.shared, "large", rows=500)
    small = threading.Event()

    def before(work: BatchWork | SeriesWork) -> None:
        if not small.is_set() and is_of(work, "large"):
            hand_in(floor.shared, "small", rows=20)
            small.set()

    floor.start(before)
    until("the small one is handed in", small.is_set, 30)
    ended = lambda: states(floor.store).get("small") == RunState.COMPLETING  # noqa: E731 - a condition
    until("the small one is complete", ended, 30)
    done = [w for w in floor.store.list_work(large, committed=True) if w.plan.segment == 1]
    left = floor.store.read_backlog("large")
    assert len(done) < 15
    assert left > 0
    check(floor.root, floor.store, "small", rows=20)
    floor.until_states(large="COMPLETING", small="COMPLETING")
    check(floor.root, floor.store, "large", rows=500)


def test_a_small_client_is_done_while_large_results_of_two_others_take_their_time(
    floor: Floor,
) -> None:
    """There are two places, and two results that cannot be divided and do not end before."""
    small_is_done = threading.Event()
    begun: list[str] = []

    def before(work: BatchWork | SeriesWork) -> None:
        if isinstance(work, SeriesWork) and not is_of(work, "small"):
            begun.append(work.directory)
            assert small_is_done.wait(60)

    for client in ("a", "b"):
        hand_in(floor.shared, client, rows=500)
    floor.start(before, config=replace(SMALL, batch_bytes=4000))
    until(
        "results are all that is left", lambda: set(states(floor.store).values()) == {"FORWARDING"}
    )
    until("one is begun", lambda: bool(begun))
    hand_in(floor.shared, "small", rows=20)
    until("it is complete", lambda: states(floor.store)["small"] == RunState.COMPLETING, 30)
    small_is_done.set()
    floor.until_states(a="COMPLETING", b="COMPLETING", small="COMPLETING")
    for client, rows in {"a": 500, "b": 500, "small": 20}.items():
        check(floor.root, floor.store, client, rows=rows)


def test_several_works_are_under_way_and_never_two_of_one_run(floor: Floor) -> None:
    meet = threading.Barrier(2, timeout=20)
    met = threading.Event()

    def before(work: BatchWork | SeriesWork) -> None:
        if not met.is_set():
            meet.wait()
            met.set()

    for client in ("a", "b"):
        hand_in(floor.shared, client)
    floor.start(before)
    floor.until_states(a="COMPLETING", b="COMPLETING")
    open_now: set[str] = set()
    for client, event in floor.events:
        if event.kind is EventKind.STARTED and event.chunks:
            assert client not in open_now
            open_now.add(client)
        elif event.kind is EventKind.COMMITTED and event.chunks:
            open_now.discard(client)


def test_a_stage_that_fails_fails_its_own_run_with_the_users_line(floor: Floor) -> None:
    def before(work: BatchWork | SeriesWork) -> None:
        if is_of(work, "bad"):
            error = f"ValueError: no number in {floor.root}/blobs/chunks/1"
            raise StageFailed(stage="doubled", where="pipe.py:7", error=error)

    for client in ("a", "bad", "b"):
        hand_in(floor.shared, client)
    floor.start(before)
    floor.until_states(a="COMPLETING", bad="FAILED", b="COMPLETING")
    run = floor.store.read_run(run_id_of("bad"))
    assert run is not None
    assert "pipe.py:7" in (run.error or "")
    assert "no number in blobs/chunks/1" in (run.error or ""), "clients read it"
    check(floor.root, floor.store, "a")
    check(floor.root, floor.store, "b")
    assert [client for client, _ in floor.troubles] == ["bad"]


@pytest.mark.parametrize("how", ["altered", "cut", "gone"])
def test_a_damaged_chunk_fails_its_own_run_only_and_says_so(floor: Floor, how: str) -> None:
    """Nobody can hand the same chunk in again: its client hears that a new run is needed."""
    run_id = hand_in(floor.shared, "hurt")
    hand_in(floor.shared, "a")
    path = floor.shared.directory.blobs / floor.store.list_chunks(run_id, "sales")[0].location
    match how:
        case "altered":
            path.write_text("shop,amount\ns1,9\n")
        case "cut":
            path.write_bytes(path.read_bytes()[:-1])
        case _:
            path.unlink()
    floor.start()
    floor.until_states(hurt="FAILED", a="COMPLETING")
    until("somebody is told", lambda: bool(floor.troubles), 30)
    assert {(client, error.code) for client, error in floor.troubles} == {("hurt", "RUN_FAILED")}
    run = floor.store.read_run(run_id)
    assert run is not None
    error = run.error or ""
    assert error.startswith("[DAMAGED] blobs/chunks/")
    assert "start a new run" in error
    assert str(floor.root) not in error, "clients read it"
    [told] = EmbeddedBackend(floor.store).fetch_batch("notices/hurt", START, count=9)
    notice = json.loads(told.record.value)
    assert notice["type"] == "run.failed"
    assert notice["error"].startswith("[DAMAGED] chunk 1 of table sales: "), "no place of ours"
    check(floor.root, floor.store, "a")


def test_a_damaged_committed_file_fails_its_run(floor: Floor) -> None:
    """What a batch wrote is altered before the results are made of it."""
    hand_in(floor.shared, "a")
    run_id = hand_in(floor.shared, "hurt")

    def before(work: BatchWork | SeriesWork) -> None:
        if isinstance(work, BatchWork) and work.segment == 2 and is_of(work, "hurt"):
            for file in floor.store.read_manifest(run_id, "doubled"):
                path = floor.root / file.path
                path.write_bytes(path.read_bytes()[:-1])

    floor.start(before)
    floor.until_states(hurt="FAILED", a="COMPLETING")
    assert (getattr(floor.store.read_run(run_id), "error", None) or "").startswith(
        "[DAMAGED] runs/"
    )


def test_uploads_that_are_all_away_are_waited_for(floor: Floor) -> None:
    """A directory that is not there is a disk that is not there: no run is failed for that."""
    run_id = hand_in(floor.shared, "a")
    uploads = floor.shared.directory.blobs / "chunks"
    away = uploads.rename(uploads.with_name("away"))
    floor.start()
    until("somebody is told", lambda: bool(floor.troubles), 30)
    assert {error.code for _, error in floor.troubles} == {"DAMAGED"}
    assert states(floor.store) == {"a": "OPEN"}
    away.rename(uploads)
    floor.until_states(a="COMPLETING")
    assert run_id
    check(floor.root, floor.store, "a")


def test_a_run_that_is_cancelled_is_let_go(floor: Floor) -> None:
    go = threading.Event()
    under_way = threading.Event()

    def before(work: BatchWork | SeriesWork) -> None:
        del work
        under_way.set()
        assert go.wait(20)

    run_id = hand_in(floor.shared, "a")
    floor.start(before)
    assert under_way.wait(20)
    fence = floor.store.take_lease("gateway", "test")
    assert floor.store.move_run(fence, run_id, expected="OPEN", to="CANCELLED")
    go.set()
    until("it hears of it", lambda: bool(floor.troubles), 30)
    assert [error.code for _, error in floor.troubles] == ["RUN_GONE"]
    assert floor.store.list_work(run_id, committed=True) == []
    assert floor.errors == []


def test_who_is_fenced_stops_and_stands_by(floor: Floor) -> None:
    hand_in(floor.shared, "a")
    taken = threading.Event()

    def before(work: BatchWork | SeriesWork) -> None:
        if not taken.is_set():
            floor.store.take_lease(ENGINE_RESOURCE, "another without lock")
            taken.set()

    floor.start(before)
    until("it stands by", lambda: "standing by: another engine is active" in floor.said, 30)
    assert floor.store.list_work(run_id_of("a"), committed=True) == []
    # The other one says nothing any more: after its patience this one is active again.
    floor.until_states(a="COMPLETING")
    check(floor.root, floor.store, "a")


def test_no_spark_ends_the_process(floor: Floor) -> None:
    class NoSpark(PlainExecutor):
        def check(self) -> None:
            raise SparkNotStarted(error="no", log="/log")

    hand_in(floor.shared, "a")
    floor.start(executor=lambda: NoSpark(make_pipeline()))
    until("it ends", lambda: bool(floor.errors), 30)
    assert isinstance(floor.errors[0], SparkNotStarted)
    assert not isinstance(floor.errors[0], Fenced)


def test_runs_of_the_command_line_are_left_alone(floor: Floor) -> None:
    """They belong to `holdfast run`, which knows where their results go."""
    hand_in(floor.shared, "")
    hand_in(floor.shared, "a")
    assert floor.store.list_ready() == [ReadyRun(run_id_of("a"), "a", 1)]
