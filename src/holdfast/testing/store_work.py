"""The store's contract suite, second part: plans, attempts, commits, barriers, series."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from holdfast._base.ids import BatchId, Offset, RunId
from holdfast._base.intervals import Intervals
from holdfast.errors import InvariantViolated, RunGone
from holdfast.store.client_rows import Client, Token
from holdfast.store.contract import ENGINE_GROUP, ingress_topic
from holdfast.store.rows import (
    ChunkKind,
    Commit,
    End,
    Plan,
    ReadyRun,
    RunState,
    SenderDecl,
    WorkKind,
)
from holdfast.testing.expect import error_of
from holdfast.testing.store_samples import (
    RUN,
    Check,
    Connect,
    Scene,
    bind,
    chunk,
    complete,
    file,
    new_run,
    references,
)


def check_a_plan_moves_the_offset(connect: Connect) -> None:
    """A plan and its offset are one; the same id gives the stored work, unchanged."""
    store = connect()
    scene = Scene.of(store, bound=3)
    topic = ingress_topic(RUN, 1)
    work = scene.plan("w", chunk(2), chunk(1))
    assert store.read_offset(topic, 0, ENGINE_GROUP) == 2
    assert (work.number, work.committed, work.attempts, work.failures) == (1, False, 0, 0)
    assert work.plan.chunks == (chunk(2), chunk(1))
    again = Plan(BatchId("w"), RUN, WorkKind.BATCH, 1, "", (chunk(3),), Offset(3))
    assert store.persist_plan(scene.fence, again) == work
    assert store.read_offset(topic, 0, ENGINE_GROUP) == 2
    assert store.list_work(RUN) == [work]


def check_a_chunk_is_in_one_plan(connect: Connect) -> None:
    """A second plan with a planned, unbound or foreign chunk is refused, and nothing moves."""
    store = connect()
    scene = Scene.of(
        store,
        SenderDecl("t", "", 1),
        SenderDecl("side", "", 1, whole=True),
        SenderDecl("late", "", 2),
        segments=2,
        bound=2,
    )
    assert store.bind_chunk(RUN, chunk(1, table="side"), bind)
    assert store.bind_chunk(RUN, chunk(1, table="late"), bind)
    scene.plan("w", chunk(1))
    before = scene.everything()
    for chunks in (
        (chunk(2), chunk(1)),
        (chunk(2), chunk(3)),
        (chunk(2), chunk(1, table="side")),
        (chunk(2), chunk(1, table="late")),
        (),
    ):
        plan = Plan(BatchId("x"), RUN, WorkKind.BATCH, 1, "", chunks, Offset(2))
        error_of(InvariantViolated, partial(store.persist_plan, scene.fence, plan))
        assert scene.everything() == before


def check_attempts_are_counted_before_they_begin(connect: Connect) -> None:
    """Failures count, interruptions do not; the last failure's reason is kept."""
    store = connect()
    scene = Scene.of(store, bound=1)
    work = scene.plan("w", chunk(1)).plan.work_id
    assert store.start_attempt(scene.fence, work) == 1
    assert store.start_attempt(scene.fence, work) == 2
    assert store.fail_attempt(scene.fence, work, 2, "first").failures == 1
    assert store.fail_attempt(scene.fence, work, 2, "again").failures == 1
    assert store.start_attempt(scene.fence, work) == 3
    failed = store.fail_attempt(scene.fence, work, 3, "second", lost=True)
    (found,) = store.list_work(RUN)
    assert found == failed
    assert (found.attempts, found.failures, found.losses, found.error) == (3, 2, 1, "second")
    error_of(InvariantViolated, lambda: store.fail_attempt(scene.fence, work, 9, "never began"))


def check_a_commit_is_visible_as_a_whole(connect: Connect) -> None:
    """Applied chunks, manifest, pieces and counts appear together, in the order given."""
    store = connect()
    scene = Scene.of(store, bound=3)
    scene.plan("a", chunk(1))
    scene.plan("b", chunk(2), chunk(3))
    late = [file("q", "b/q"), file("x", "b/x1"), file("x", "b/x0")]
    scene.commit("b", *late, pieces=("q",), rows_read=7, bad_rows=1)
    assert store.read_progress(RUN)[0].applied.ranges == ((2, 3),)
    early = [file("x", "a/x"), file("q", "a/q1"), file("q", "a/q0")]
    scene.commit("a", *early, pieces=("q",), rows_read=5)
    assert store.read_manifest(RUN, "x") == [early[0], late[1], late[2]]
    assert store.read_work_files(BatchId("a")) == early
    pieces = store.list_pieces(RUN, "q")
    assert [(piece.ordinal, piece.file.path, piece.final) for piece in pieces] == [
        (1, "b/q", False),
        (2, "a/q1", False),
        (3, "a/q0", False),
    ]
    assert store.read_counts(RUN) == (12, 1)
    assert [work.plan.work_id for work in store.list_work(RUN, committed=True)] == ["a", "b"]
    assert store.list_work(RUN, committed=False) == []


def check_a_work_is_committed_once(connect: Connect) -> None:
    """A second commit, or one of an attempt that is not under way, changes nothing."""
    store = connect()
    scene = Scene.of(store, bound=2)
    for name, ordinal in (("a", 1), ("b", 2)):
        scene.plan(name, chunk(ordinal))
    assert store.start_attempt(scene.fence, BatchId("a")) == 1
    assert store.start_attempt(scene.fence, BatchId("a")) == 2
    first = Commit(BatchId("a"), 2, (file("q", "a/q"),), piece_outputs=("q",))
    store.commit_work(scene.fence, first, complete)
    assert store.start_attempt(scene.fence, BatchId("b")) == 1
    store.fail_attempt(scene.fence, BatchId("b"), 1, "broken")
    before = scene.everything()
    for outcome in (
        first,
        replace(first, attempt=1),
        replace(first, attempt=3),
        Commit(BatchId("b"), 1, ()),
        Commit(BatchId("unknown"), 1, ()),
    ):
        error_of(InvariantViolated, partial(store.commit_work, scene.fence, outcome, complete))
        assert scene.everything() == before
    error_of(InvariantViolated, lambda: store.start_attempt(scene.fence, BatchId("a")))
    error_of(InvariantViolated, lambda: store.fail_attempt(scene.fence, BatchId("a"), 2, "late"))


def check_the_barrier_waits_for_exact_sets(connect: Connect) -> None:
    """END first or last: the barrier passes when every sender's set is applied, and once."""
    store = connect()
    scene = Scene.of(store, SenderDecl("t", "", 1), SenderDecl("u", "", 1))
    assert scene.end(3)
    for ordinal in (3, 1, 2):
        assert store.bind_chunk(RUN, chunk(ordinal), bind)
    for name, ordinal in (("a", 3), ("b", 1)):
        scene.plan(name, chunk(ordinal))
        scene.commit(name)
    assert store.read_progress(RUN)[0].applied.ranges == ((1, 1), (3, 3))
    assert scene.end(0, table="u")
    assert store.read_barriers(RUN) == []
    scene.plan("c", chunk(2))
    assert scene.state() == RunState.OPEN
    scene.commit("c")
    assert store.read_barriers(RUN) == [1]
    assert scene.state() == RunState.FORWARDING
    error_of(InvariantViolated, lambda: scene.plan("d", chunk(1)))


def check_the_last_end_passes_the_barrier(connect: Connect) -> None:
    """When all is applied, the END that says so completes the run."""
    scene = Scene.of(connect(), SenderDecl("t", "", 1), SenderDecl("u", "", 1), bound=1)
    scene.plan("a", chunk(1))
    scene.commit("a")
    assert scene.end(1)
    assert scene.state() == RunState.OPEN
    assert scene.end(0, table="u")
    assert scene.state() == RunState.FORWARDING


def check_the_last_chunk_of_a_whole_table_passes_the_barrier(connect: Connect) -> None:
    """A whole table's chunk is applied when it is bound; coming after its END it completes it."""
    store = connect()
    side = SenderDecl("side", "", 1, whole=True)
    scene = Scene.of(store, SenderDecl("t", "", 1), side)
    assert scene.end(0)
    assert scene.end(1, table="side")
    assert scene.state() == RunState.OPEN
    assert store.bind_chunk(RUN, chunk(1, table="side"), bind, complete)
    assert references(store) == []
    assert store.read_barriers(RUN) == [1]
    assert scene.state() == RunState.FORWARDING


def check_a_durable_table_feeds_the_next_segment(connect: Connect) -> None:
    """Each commit adds one chunk to the next segment; the barrier says its END."""
    store = connect()
    scene = Scene.of(
        store, SenderDecl("t", "", 1), SenderDecl("mid", "", 2, produced=True), segments=2, bound=2
    )
    scene.plan("a", chunk(1))
    scene.plan("b", chunk(2))
    files = (file("mid", "b/1"), file("mid", "b/2"), file("q", "b/q"))
    scene.commit("b", *files, tables=("mid",))
    (passed,) = references(store, 2)
    assert (passed.table, passed.sender, passed.ordinal) == ("mid", "", 2)
    assert (passed.kind, passed.location, passed.size) == (ChunkKind.FILES, "b", 10)
    scene.commit("a", tables=("mid",))
    assert store.read_progress(RUN)[1].announced is None
    assert scene.end(2)
    assert store.read_barriers(RUN) == [1]
    middle = store.read_progress(RUN)[1]
    assert (middle.announced, middle.received) == (2, Intervals.first(2))
    assert scene.state() == RunState.OPEN
    assert [found.ordinal for found in references(store, 2)] == [2, 1]
    scene.plan("c", *references(store, 2), segment=2)
    scene.commit("c", file("q", "c/q"))
    assert store.read_barriers(RUN) == [1, 2]
    assert scene.state() == RunState.FORWARDING
    assert [found.path for found in store.read_manifest(RUN, "q")] == ["b/q", "c/q"]


def check_barriers_are_passed_in_order(connect: Connect) -> None:
    """A later segment whose own inputs are complete waits for the one before it."""
    store = connect()
    late = SenderDecl("late", "", 2, whole=True)
    scene = Scene.of(store, SenderDecl("t", "", 1), late, segments=2)
    assert scene.end(0, table="late")
    assert store.read_barriers(RUN) == []
    assert scene.end(0)
    assert store.read_barriers(RUN) == [1, 2]


def check_series_finish_a_run(connect: Connect) -> None:
    """FORWARDING, RECEIVING at the first series, COMPLETING at the last, DONE at the end."""
    store = connect()
    scene = Scene.of(store).forwarded()
    for name in ("z", "q3"):
        scene.plan_series(name)
    error_of(InvariantViolated, lambda: scene.plan("late", chunk(1)))
    scene.commit("series-z", file("z", "z/1"), columns=("a", "b"), pieces=("z",))
    assert scene.state() == RunState.RECEIVING
    error_of(InvariantViolated, lambda: store.finish_run(scene.fence, RUN, {}))
    scene.commit("series-q3", file("q3", "q3/1"), file("q3", "q3/2"), columns=("c",))
    assert scene.state() == RunState.COMPLETING
    assert [(found.series, found.columns) for found in store.read_series(RUN)] == [
        ("q3", ("c",)),
        ("z", ("a", "b")),
    ]
    assert [piece.final for piece in store.list_pieces(RUN, "q")] == [False]
    assert [piece.final for piece in store.list_pieces(RUN, "z")] == [False]
    works = [work.plan.work_id for work in store.list_work(RUN)]
    assert works == ["only", "series-z", "series-q3"]
    store.finish_run(scene.fence, RUN, {"z": "sum z", "q3": "sum q3"})
    assert scene.state() == RunState.DONE
    assert store.read_exports(RUN) == {"q3": "sum q3", "z": "sum z"}
    assert [piece.final for piece in store.list_pieces(RUN, "q")] == [True]
    error_of(RunGone, lambda: store.finish_run(scene.fence, RUN, {}))


def check_a_closed_run_takes_nothing(connect: Connect) -> None:
    """After a run was closed its work is refused by name, and its pieces are void."""
    store = connect()
    scene = Scene.of(store, bound=2)
    scene.plan("a", chunk(1))
    scene.commit("a", file("q", "a/q"), pieces=("q",))
    scene.plan("b", chunk(2))
    assert store.start_attempt(scene.fence, BatchId("b")) == 1
    assert len(store.list_pieces(RUN, "q")) == 1
    cancel = partial(
        store.move_run, scene.fence, RUN, expected=RunState.OPEN, to=RunState.CANCELLED
    )
    assert cancel(error="the client asked")
    assert not cancel(error="again")
    run = store.read_run(RUN)
    assert run is not None
    assert (run.state, run.error) == (RunState.CANCELLED, "the client asked")
    assert store.list_pieces(RUN, "q") == []
    before = scene.everything()
    outcome = Commit(BatchId("b"), 1, (file("q", "b/q"),), piece_outputs=("q",))
    for call in (
        lambda: store.commit_work(scene.fence, outcome, complete),
        lambda: store.start_attempt(scene.fence, BatchId("b")),
        lambda: scene.plan("c", chunk(2)),
        lambda: scene.plan_series("s"),
        lambda: store.bind_chunk(RUN, chunk(3), lambda *_: True),
        lambda: store.record_end(RUN, End("t", "", 2), lambda *_: True, complete),
        lambda: store.bind_inputs(scene.fence, RUN, [], [End("t", "", 2)], complete),
        lambda: store.finish_run(scene.fence, RUN, {}),
    ):
        assert error_of(RunGone, call).state == RunState.CANCELLED
        assert scene.everything() == before


def check_ready_runs_have_something_to_do(connect: Connect) -> None:
    """A run is ready with an unplanned chunk, an uncommitted work or results to compute; an idle
    one, one over, and one without a client are not.
    """
    store = connect()
    scene = Scene.of(store)
    ready = [ReadyRun(RUN, "client", 1)]
    store.create_run(replace(new_run(run_id=RunId("bare")), client=""))
    store.bind_chunk(RunId("bare"), chunk(1, location="bare"), bind)
    assert store.list_ready() == []
    store.bind_chunk(RUN, chunk(1), bind)
    assert store.list_ready() == ready
    scene.plan("w", chunk(1))
    assert store.list_ready() == ready
    scene.commit("w", file("q", "w/q"))
    assert store.list_ready() == []
    scene.end(1)
    assert scene.state() == RunState.FORWARDING
    ready = [ReadyRun(RUN, "client", 1, undivided_bytes=chunk(1).size)]
    assert store.list_ready() == ready
    store.move_run(scene.fence, RUN, expected="FORWARDING", to="CANCELLED")
    assert store.list_ready() == []


def check_a_ready_run_has_its_clients_weight(connect: Connect) -> None:
    """What an operator gave a client is what the engine shares by; a run of no client has 1."""
    store = connect()
    scene = Scene.of(store, bound=1)
    runs = {RunId("run-east"): Client("east"), RunId("run-north"): Client("north", weight=3)}
    for run_id, client in runs.items():
        store.add_client(client, Token(f"token of {client.client}", "sum"))
        store.create_run(replace(new_run(run_id=run_id), client=client.client))
        store.bind_chunk(run_id, chunk(1, location=f"blob of {run_id}"), bind)
    weights = [(ready.client, ready.weight) for ready in store.list_ready()]
    assert weights == [("client", 1), ("east", 1), ("north", 3)]
    scene.plan("w", chunk(1))
    assert [ready.weight for ready in connect().list_ready()] == [1, 1, 3]


WORK: tuple[Check, ...] = (
    check_ready_runs_have_something_to_do,
    check_a_ready_run_has_its_clients_weight,
    check_a_plan_moves_the_offset,
    check_a_chunk_is_in_one_plan,
    check_attempts_are_counted_before_they_begin,
    check_a_commit_is_visible_as_a_whole,
    check_a_work_is_committed_once,
    check_the_barrier_waits_for_exact_sets,
    check_the_last_end_passes_the_barrier,
    check_the_last_chunk_of_a_whole_table_passes_the_barrier,
    check_a_durable_table_feeds_the_next_segment,
    check_barriers_are_passed_in_order,
    check_series_finish_a_run,
    check_a_closed_run_takes_nothing,
)
