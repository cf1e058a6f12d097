"""The contract suite of stores, continued: ends of runs, notices, external results."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

from holdfast._base.ids import START, Ordinal, RunId
from holdfast._base.intervals import Intervals
from holdfast.errors import Fenced, InvariantViolated, RunGone
from holdfast.store.contract import Store, notice_topic
from holdfast.store.result_rows import (
    ExternalFacts,
    ExternalPiece,
    NoticeKind,
    NoticeState,
    PlaceKind,
    SeriesDecl,
)
from holdfast.store.rows import End, Fence, OwedEnd, RunKind, RunState, SenderDecl, SpreadRun
from holdfast.testing.expect import error_of
from holdfast.testing.store_samples import (
    RUN,
    Check,
    Connect,
    Scene,
    announce,
    bind,
    chunk,
    complete,
    file,
    new_run,
)

URL = "http://127.0.0.1:9/hook"


def done(scene: Scene) -> None:
    """Bring a run whose inputs are complete to DONE, with a streamed and a computed series."""
    scene.plan_series("q")
    scene.plan_series("r")
    scene.commit("series-q", file("q", "q/sorted.csv"), columns=("a", "b"))
    computed = file("r", "r/1.csv", rows=2), file("r", "r/2.csv", rows=3)
    scene.commit("series-r", *computed, pieces=("r",), columns=("n",))
    scene.store.finish_run(scene.fence, RUN, {})


def told(store: Store, client: str = "client") -> list[dict[str, object]]:
    """Return what stands on a client's topic."""
    if notice_topic(client) not in store.list_topics():
        return []
    records = store.read_records(notice_topic(client), 0, START, 100)
    return [json.loads(stored.record.value) for stored in records]


def check_done_tells_of_every_piece_in_order(connect: Connect) -> None:
    """DONE, its record on the topic and its row in the outbox come together, with one body."""
    store = connect()
    scene = Scene.of(store).forwarded()
    store.set_webhook("client", URL)
    assert (told(store), store.list_notices()) == ([], [])
    done(scene)
    [body] = told(store)
    [notice] = store.list_notices(run_id=RUN)
    assert json.loads(notice.body) == body
    assert (notice.kind, notice.client, notice.url) == (NoticeKind.DONE, "client", URL)
    assert (notice.state, notice.attempts, notice.failures) == (NoticeState.WAITING, 0, 0)
    assert (body["id"], body["type"], body["run"]) == (notice.notice_id, "run.done", RUN)
    series = body["series"]
    assert isinstance(series, list)
    assert [(one["series"], one["columns"]) for one in series] == [("q", ["a", "b"]), ("r", ["n"])]
    pieces = [(piece["ordinal"], piece["checksum"], piece["rows"]) for piece in series[1]["pieces"]]
    assert pieces == [(1, "sum of r/1.csv", 2), (2, "sum of r/2.csv", 3)]
    assert series[1]["pieces"][0]["url"] == f"/v1/runs/{RUN}/results/r/1"


def check_every_end_has_one_notice(connect: Connect) -> None:
    """FAILED, CANCELLED and ABANDONED are told with their reason and no pieces, and no place of the
    server's; a move that does not happen tells nobody; ids differ by run and kind, and stay.
    """
    store = connect()
    fence = store.take_lease("engine", "owner")
    store.set_webhook("client", URL)
    kinds = {
        RunState.FAILED: NoticeKind.FAILED,
        RunState.CANCELLED: NoticeKind.CANCELLED,
        RunState.ABANDONED: NoticeKind.ABANDONED,
    }
    why = "blobs/chunks/ab/sales/cd/7-ef is damaged"
    for state in kinds:
        run_id = RunId(f"run-{state}")
        store.create_run(new_run(run_id=run_id))
        fail = partial(store.move_run, fence, run_id, expected="OPEN", to=state, error=why)
        assert fail()
        assert not fail()
    notices = store.list_notices()
    assert [notice.kind for notice in notices] == list(kinds.values())
    bodies = told(store)
    assert [(one["type"], one["error"], one["series"]) for one in bodies] == [
        (kind, "chunk 7 of table sales is damaged", []) for kind in kinds.values()
    ]
    assert len({notice.notice_id for notice in notices}) == len(kinds)


def check_nobody_is_told_who_has_no_address(connect: Connect) -> None:
    """Without a webhook there is a record and no notice; without a client neither."""
    store = connect()
    scene = Scene.of(store)
    assert store.read_webhook("client") is None
    store.set_webhook("client", "http://127.0.0.1:9/old")
    store.set_webhook("client", URL)
    assert store.read_webhook("client") == URL
    store.set_webhook("client", None)
    assert store.move_run(scene.fence, RUN, expected="OPEN", to="FAILED", error="why")
    assert len(told(store)) == 1
    assert store.list_notices() == []


def check_a_move_outside_the_table_changes_nothing(connect: Connect) -> None:
    """No transaction goes around the table of moves."""
    store = connect()
    scene = Scene.of(store)
    before = scene.everything()
    for to in ("DONE", "SWEPT", "RECEIVING", "OPEN"):
        wrong = partial(store.move_run, scene.fence, RUN, expected="OPEN", to=to)
        error_of(InvariantViolated, wrong)
        assert scene.everything() == before


def check_a_notice_is_due_by_accumulated_time(connect: Connect) -> None:
    """Attempts are counted before they begin; a failed one waits; given up, it waits no more."""
    store = connect()
    scene = Scene.of(store)
    store.set_webhook("client", URL)
    store.move_run(scene.fence, RUN, expected="OPEN", to="FAILED", error="why")
    [notice] = store.due_notices(10)
    name = notice.notice_id
    assert store.begin_notice(scene.fence, name) == 1
    store.record_unsent(scene.fence, name, "no answer", wait_ms=500)
    assert store.due_notices(10) == []
    assert store.add_elapsed(scene.fence, 499) == 499
    assert (store.due_notices(10), store.begin_notice(scene.fence, name)) == ([], None)
    assert store.add_elapsed(scene.fence, 1) == store.read_elapsed() == 500
    [again] = store.due_notices(10)
    assert (again.attempts, again.failures, again.error) == (1, 1, "no answer")
    assert store.begin_notice(scene.fence, name) == 2
    store.record_unsent(scene.fence, name, "no answer", wait_ms=None)
    assert store.begin_notice(scene.fence, name) is None
    [dead] = store.list_notices(state=NoticeState.DEAD)
    assert (dead.attempts, dead.failures) == (2, 2)
    assert store.revive_notice(name)
    assert not store.revive_notice(name)
    assert store.begin_notice(scene.fence, name) == 3
    store.record_sent(scene.fence, name)
    assert store.due_notices(10) == []
    assert [one.state for one in store.list_notices()] == [NoticeState.SENT]
    assert store.count_notices() == {NoticeState.SENT: 1}


def check_one_notice_of_each_client_is_due_first(connect: Connect) -> None:
    """However many one client has due, and due earlier, the others' first ones are next."""
    store = connect()
    scene = Scene.of(store)
    for number, client in enumerate(("full", "full", "full", "other")):
        store.set_webhook(client, URL)
        run_id = RunId(f"due-{number}")
        store.create_run(replace(new_run(), run_id=run_id, client=client))
        store.move_run(scene.fence, run_id, expected="OPEN", to="FAILED", error="why")
    assert [one.run_id for one in store.due_notices(10)] == ["due-0", "due-3"]
    assert [one.run_id for one in store.due_notices(1)] == ["due-0"]
    assert [one.run_id for one in store.due_notices(1, without=("full",))] == ["due-3"]
    assert store.due_notices(1, without=("full", "other")) == []


def _check_pieces_by_key(store: Store) -> None:
    """Each piece and ordered file that is listed is found by its key, and no other."""
    for one in store.read_results(RUN):
        read = partial(store.read_result_piece, RUN, one.series)
        for ordered, listed in ((False, one.pieces), (True, one.ordered or ())):
            numbers = [Ordinal(number) for number in range(1, len(listed) + 2)]
            found = [read(number, ordered=ordered) for number in numbers]
            assert found == [*listed, None], f"{one.series}: {found}"


def check_results_are_read_alike(connect: Connect) -> None:
    """Streamed pieces at once, provisional until DONE; others when committed; void ones never."""
    store = connect()
    scene = Scene.of(store).forwarded()
    [early] = store.read_results(RUN)
    assert (early.series, early.provisional, early.ordered) == ("q", True, None)
    assert [(p.ordinal, p.location, p.place) for p in early.pieces] == [
        (1, "only/q", PlaceKind.FILE)
    ]
    _check_pieces_by_key(store)
    done(scene)
    _check_pieces_by_key(store)
    streamed, computed = store.read_results(RUN)
    assert (streamed.provisional, streamed.columns) == (False, ("a", "b"))
    assert streamed.pieces == early.pieces
    assert [p.location for p in streamed.ordered or ()] == ["q/sorted.csv"]
    assert computed.pieces == computed.ordered
    assert [(p.ordinal, p.rows, p.format) for p in computed.pieces] == [
        (1, 2, "csv"),
        (2, 3, "csv"),
    ]
    unknown = RunId("unknown")
    error_of(RunGone, lambda: store.read_results(unknown))
    error_of(RunGone, lambda: store.read_result_piece(unknown, "q", Ordinal(1)))
    assert store.read_result_piece(RUN, "unknown", Ordinal(1)) is None


def check_runs_are_listed_by_state(connect: Connect) -> None:
    """Oldest first, and only those that were asked for."""
    store = connect()
    fence = store.take_lease("engine", "owner")
    for name in ("b", "a", "c"):
        store.create_run(new_run(run_id=RunId(name)))
    store.move_run(fence, RunId("a"), expected="OPEN", to="FAILED")
    assert [run.run_id for run in store.list_runs_in("OPEN")] == ["b", "c"]
    assert [run.run_id for run in store.list_runs_in("OPEN", "FAILED")] == ["b", "a", "c"]
    assert store.list_runs_in("DONE") == []


HEADER = (SeriesDecl("a", ("x",)), SeriesDecl("b", (), "parquet"))


def piece(series: str, ordinal: int, total: int = 2) -> ExternalPiece:
    """Return a piece in a blob of its own."""
    blob = f"external/{RUN}/{series}/{ordinal}" if ordinal else ""
    return ExternalPiece(series, Ordinal(ordinal), total, blob, 3, f"sum-{ordinal}", 1)


def whole(facts: ExternalFacts) -> bool:
    """Tell whether all is there, as sets. Written again here: delivery's is not its own judge."""
    return facts.header is not None and all(
        one.total is not None and set(one.received) == set(range(1, one.total + 1))
        for one in facts.progress
    )


def fresh(_: object, facts: ExternalFacts) -> bool:
    """Bind what is not there."""
    return facts.stored is None


def external(store: Store) -> Fence:
    """Create an external run without inputs, whose producer was asked."""
    fence = store.take_lease("delivery", "owner")
    store.create_run(replace(new_run(), senders=(), producer="requests"))
    store.move_run(fence, RUN, expected="FORWARDING", to="RECEIVING")
    return fence


def check_an_external_run_forwards_when_its_inputs_are_complete(connect: Connect) -> None:
    """Without inputs at once; with some when the last is bound; it is told from a run on Spark."""
    store = connect()
    store.create_run(new_run(run_id=RunId("spark")))
    external(store)
    fed = replace(new_run(SenderDecl("t", "", 1, whole=True)), run_id=RunId("fed"), producer="p")
    store.create_run(fed)
    store.record_end(RunId("fed"), End("t", "", 1), announce, complete)
    assert [run.run_id for run in store.list_runs_in("OPEN")] == ["spark", "fed"]
    store.bind_chunk(RunId("fed"), chunk(1), bind, complete)
    assert [run.run_id for run in store.list_runs_in("FORWARDING")] == ["fed"]
    run = store.read_run(RUN)
    assert run is not None
    assert (run.kind, run.state) == (RunKind.EXTERNAL, "RECEIVING")
    found = store.read_external(RUN)
    assert found is not None
    assert (found.producer, found.facts.header, found.facts.progress) == ("requests", None, ())
    spark = store.read_run(RunId("spark"))
    assert spark is not None
    assert (spark.kind, spark.state) == (RunKind.SPARK, "OPEN")
    assert store.read_external(RunId("spark")) is None


def check_external_pieces_complete_a_run_as_sets(connect: Connect) -> None:
    """In any order, before the header too; the last one of all moves the run, once."""
    store = connect()
    fence = external(store)

    def send(series: str, ordinal: int, total: int = 2) -> bool:
        return store.bind_piece(fence, RUN, piece(series, ordinal, total), fresh, whole)

    assert send("a", 2)
    assert store.read_results(RUN) == []
    assert store.record_header(fence, RUN, HEADER, lambda _, facts: facts.header is None, whole)
    assert not store.record_header(fence, RUN, HEADER, lambda _, facts: facts.header is None, whole)
    assert not send("a", 2)
    assert send("b", 0, 0)
    found = store.read_external(RUN)
    assert found is not None
    progress = {one.series: (one.total, one.received) for one in found.facts.progress}
    assert progress == {"a": (2, Intervals(((2, 2),))), "b": (0, Intervals())}
    assert found.facts.header == HEADER
    assert send("a", 1)
    run = store.read_run(RUN)
    assert run is not None
    assert run.state == "COMPLETING"
    assert [(one.series, one.ordinal) for one in store.list_external_pieces(RUN)] == [
        ("a", 1),
        ("a", 2),
    ]
    error_of(RunGone, lambda: _after_the_end(store, fence))
    _check_pieces_by_key(store)
    first, second = store.read_results(RUN)
    assert (first.provisional, second.pieces) == (False, ())
    assert [(p.ordinal, p.place, p.location) for p in first.pieces] == [
        (1, PlaceKind.BLOB, f"external/{RUN}/a/1"),
        (2, PlaceKind.BLOB, f"external/{RUN}/a/2"),
    ]


def _after_the_end(store: Store, fence: Fence) -> None:
    store.finish_run(fence, RUN, {})
    store.bind_piece(fence, RUN, piece("a", 3, 3), lambda *_: True, whole)


def check_a_rule_that_raises_changes_nothing(connect: Connect) -> None:
    """A refused piece or header leaves no row; two pieces in one place break a primary key."""
    store = connect()
    fence = external(store)
    assert store.bind_piece(fence, RUN, piece("a", 1), fresh, whole)

    def refuse(_: object, facts: ExternalFacts) -> bool:
        raise RunGone(run=facts.run_id, state=facts.state)

    before = store.read_external(RUN), store.list_external_pieces(RUN)
    error_of(RunGone, lambda: store.bind_piece(fence, RUN, piece("b", 1), refuse, whole))
    error_of(RunGone, lambda: store.record_header(fence, RUN, HEADER, refuse, whole))
    twice = partial(store.bind_piece, fence, RUN, piece("a", 1), lambda *_: True, whole)
    error_of(InvariantViolated, twice)
    assert (store.read_external(RUN), store.list_external_pieces(RUN)) == before


def check_a_former_delivery_changes_nothing(connect: Connect) -> None:
    """Every effect of delivery under an old epoch is refused, and nothing is different."""
    store = connect()
    scene = Scene.of(store)
    store.set_webhook("client", URL)
    old = store.take_lease("delivery", "old")
    [seen] = store.watch_runs(old)
    store.take_lease("delivery", "new")
    before = scene.everything(), store.list_watched(), store.read_elapsed(), store.list_notices()
    calls = (
        partial(store.add_elapsed, old, 5),
        partial(store.watch_runs, old),
        partial(store.abandon_run, old, RUN, mark=seen.mark, error="idle"),
        partial(store.forget_queues, old, RUN),
        partial(store.clear_run, old, RUN, uploads="chunks/"),
        partial(store.begin_notice, old, "n"),
        partial(store.record_sent, old, "n"),
        partial(store.record_unsent, old, "n", "error", wait_ms=None),
        partial(store.record_header, old, RUN, HEADER, fresh, whole),
        partial(store.bind_piece, old, RUN, piece("a", 1), fresh, whole),
        partial(store.finish_run, old, RUN, {}),
        partial(store.move_run, old, RUN, expected="OPEN", to="FAILED"),
    )
    for call in calls:
        error_of(Fenced, call)
    after = scene.everything(), store.list_watched(), store.read_elapsed(), store.list_notices()
    assert after == before


def check_a_dropped_topic_is_gone(connect: Connect) -> None:
    """Records, groups and positions go with it; made again, it is empty and begins at 0."""
    store = connect()
    Scene.of(store, bound=1)
    topic = next(iter(store.list_topics()))
    store.register_group(topic, "g")
    store.drop_topic(topic)
    store.drop_topic(topic)
    assert store.list_topics() == {}
    store.create_topic(topic, 1)
    assert (store.topic_bounds(topic, 0), store.list_offsets(topic, 0)) == ((0, 0), {})


def check_a_runs_shards_are_kept_once(connect: Connect) -> None:
    """The first list counts; runs that take chunks or owe an END are listed; a sweep ends it."""
    store = connect()
    scene, spread = Scene.of(store), SpreadRun("client", RUN, ("b", "a"))
    assert store.list_spread_runs() == []
    assert store.keep_shards(RUN, ("b", "a")) == ("b", "a")
    assert connect().keep_shards(RUN, ("a",)) == ("b", "a")
    error_of(RunGone, lambda: store.keep_shards(RunId("nobody"), ("a",)))
    assert store.list_spread_runs() == [spread]
    scene.forwarded()
    assert store.list_spread_runs() == []
    store.record_end(RUN, End("t", "", 1), lambda *_: False, complete, owed=True)
    assert store.list_spread_runs() == [spread]
    store.move_run(scene.fence, RUN, expected="FORWARDING", to="CANCELLED")
    store.move_run(scene.fence, RUN, expected="CANCELLED", to="SWEPT")
    assert (store.list_spread_runs(), store.list_owed_ends()) == ([], [])
    error_of(RunGone, lambda: store.keep_shards(RUN, ("a",)))
    store.clear_run(scene.fence, RUN, uploads="uploads")


def check_an_end_is_owed_until_it_is_forwarded(connect: Connect) -> None:
    """It is owed from the commit on, whatever becomes of the run, until every shard has it."""
    store = connect()
    scene = Scene.of(store, SenderDecl("t", "a", 1), SenderDecl("t", "b", 1))
    store.keep_shards(RUN, ("s",))
    scene.end(0, sender="b")
    assert store.list_owed_ends() == []
    for _ in range(2):
        store.record_end(RUN, End("t", "a", 0), announce, complete, owed=True)
        assert store.list_owed_ends() == [OwedEnd("client", RUN, "t", "a", 0)]
        assert scene.state() == RunState.FORWARDING
    store.move_run(scene.fence, RUN, expected="FORWARDING", to="FAILED")
    assert connect().list_owed_ends() == [OwedEnd("client", RUN, "t", "a", 0)]
    for _ in range(2):
        store.record_forwarded(RUN, "t", "a")
        assert store.list_owed_ends() == []


LEAVING: tuple[Check, ...] = (
    check_done_tells_of_every_piece_in_order,
    check_every_end_has_one_notice,
    check_nobody_is_told_who_has_no_address,
    check_a_move_outside_the_table_changes_nothing,
    check_a_notice_is_due_by_accumulated_time,
    check_one_notice_of_each_client_is_due_first,
    check_results_are_read_alike,
    check_runs_are_listed_by_state,
    check_an_external_run_forwards_when_its_inputs_are_complete,
    check_external_pieces_complete_a_run_as_sets,
    check_a_rule_that_raises_changes_nothing,
    check_a_former_delivery_changes_nothing,
    check_a_dropped_topic_is_gone,
    check_a_runs_shards_are_kept_once,
    check_an_end_is_owed_until_it_is_forwarded,
)
