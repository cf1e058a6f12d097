"""The contract suite of stores: leases, intake, topics here; `CHECKS` is all of it.

Plans, commits and barriers are checked in `store_work`, what leaves in `store_leaving`,
interleavings in `store_races`, clients in `store_clients`.

A check takes `connect`, which opens the same store each time it is called; it is empty at first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from holdfast._base.ids import Offset, RunId
from holdfast._base.intervals import Intervals
from holdfast.errors import ChunkConflict, Fenced, InvariantViolated, RunGone, UsageInvalid
from holdfast.log.contract import Record
from holdfast.store.contract import ENGINE_GROUP, ingress_topic
from holdfast.store.rows import (
    Chunk,
    ChunkFacts,
    End,
    EndFacts,
    KeptPipeline,
    Run,
    RunState,
    SenderDecl,
)
from holdfast.testing.expect import error_of
from holdfast.testing.store_clients import CLIENTS
from holdfast.testing.store_leaving import LEAVING
from holdfast.testing.store_races import RACES
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
    received,
    references,
)
from holdfast.testing.store_watch import WATCHING
from holdfast.testing.store_work import WORK


def check_epochs_grow(connect: Connect) -> None:
    """Each grant has the next epoch; the old owner's beat is refused; leases are apart."""
    store = connect()
    assert store.read_lease("r") is None
    first = store.take_lease("r", "a")
    store.beat_lease(first)
    second = store.take_lease("r", "b")
    assert (first.epoch, second.epoch) == (1, 2)
    assert store.take_lease("other", "a").epoch == 1
    error = error_of(Fenced, lambda: store.beat_lease(first))
    assert (error.resource, error.epoch) == ("r", 1)
    before = store.read_lease("r")
    store.beat_lease(second)
    after = store.read_lease("r")
    assert before is not None
    assert after is not None
    assert (after.owner, after.epoch) == ("b", 2)
    assert after.beat > before.beat


def check_a_successor_sees_what_it_succeeds(connect: Connect) -> None:
    """A grant that rests on a look is given only if nobody acted since, and to one of two."""
    store = connect()
    owner = store.take_lease("r", "a")
    seen = store.read_lease("r")
    assert seen is not None
    store.beat_lease(owner)
    assert store.succeed_lease(seen, "b") is None
    store.beat_lease(owner)
    seen = store.read_lease("r")
    assert seen is not None
    granted = store.succeed_lease(seen, "b")
    assert granted is not None
    assert granted.epoch == owner.epoch + 1
    assert store.succeed_lease(seen, "c") is None
    error_of(Fenced, lambda: store.beat_lease(owner))
    store.beat_lease(granted)


def check_a_store_belongs_to_a_pipeline(connect: Connect) -> None:
    """The pipeline is kept if the rule lets it, which sees what is kept and all runs."""
    store = connect()
    Scene.of(store)
    first, second = KeptPipeline("p", {"a": "1"}), KeptPipeline("p", {"a": "2"})
    seen: list[tuple[KeptPipeline | None, int]] = []

    def rule(kept: KeptPipeline | None, runs: Sequence[Run]) -> None:
        seen.append((kept, len(runs)))
        if kept == second:
            raise UsageInvalid(what="refused", remedy="")

    assert store.read_pipeline() is None
    store.keep_pipeline(first, rule)
    store.keep_pipeline(second, rule)
    error_of(UsageInvalid, lambda: store.keep_pipeline(first, rule))
    assert seen == [(None, 1), (first, 1), (second, 1)]
    assert connect().read_pipeline() == second


def check_the_backlog_is_what_is_not_applied(connect: Connect) -> None:
    """Bytes received and not applied, by client; those of whole tables are applied at once."""
    store = connect()
    side = SenderDecl("side", "", 1, whole=True)
    scene = Scene.of(store, SenderDecl("t", "", 1), side, bound=3)
    store.bind_chunk(RUN, chunk(1, table="side"), bind)
    other = RunId("other")
    store.create_run(replace(new_run(run_id=other), client="another"))
    store.bind_chunk(other, replace(chunk(1), location="another"), bind)
    backlogs = partial(map, store.read_backlog, (None, "client", "another", "nobody"))
    assert list(backlogs()) == [40, 30, 10, 0]
    scene.plan("w", chunk(1), chunk(2))
    assert store.read_backlog() == 40
    scene.commit("w", file("q", "w/q"))
    assert list(backlogs()) == [20, 10, 10, 0]
    store.move_run(scene.fence, other, expected="OPEN", to="CANCELLED")
    assert list(backlogs()) == [10, 10, 0, 0]


def check_a_run_is_created_once(connect: Connect) -> None:
    """A second creation changes nothing; runs are listed oldest first, whatever the clock said."""
    store = connect()
    assert store.create_run(new_run(created_ms=2000))
    assert not store.create_run(replace(new_run(created_ms=3000), client="another"))
    assert store.create_run(new_run(run_id=RunId("run-0"), created_ms=1000))
    run, other = store.list_runs()
    assert (run.run_id, other.run_id) == (RUN, "run-0")
    assert store.read_run(RUN) == run
    assert (run.client, run.state, run.error, run.created_ms) == ("client", "OPEN", None, 2000)
    assert run.fingerprint == {"schema": "a", "stage": "b"}
    assert store.read_run(RunId("unknown")) is None
    assert store.list_topics() == {ingress_topic(RUN, 1): 1, ingress_topic(RunId("run-0"), 1): 1}
    assert store.list_offsets(ingress_topic(RUN, 1), 0) == {ENGINE_GROUP: 0}


def check_a_listing_is_bound_as_one(connect: Connect) -> None:
    """All chunks, references and ENDs at once; again: nothing; whole tables are applied."""
    store = connect()
    scene = Scene.of(
        store, SenderDecl("t", "", 1), SenderDecl("side", "", 1, whole=True), SenderDecl("u", "", 1)
    )
    side_chunk, other = chunk(1, table="side"), chunk(1, table="u")
    chunks = [chunk(1), side_chunk, other, chunk(2)]
    ends = [End("t", "", 2), End("side", "", 1), End("u", "", 1)]
    assert store.bind_inputs(scene.fence, RUN, chunks, ends, complete)
    assert references(store) == [chunk(1), other, chunk(2)]
    assert store.list_chunks(RUN) == [chunk(1), chunk(2), side_chunk, other]
    assert store.list_chunks(RUN, "side") == [side_chunk]
    table, side, _ = store.read_progress(RUN)
    assert (table.announced, table.received, table.applied) == (2, Intervals.first(2), Intervals())
    assert (side.announced, side.whole, side.applied) == (1, True, Intervals.first(1))
    before = scene.everything()
    assert not store.bind_inputs(scene.fence, RUN, [chunk(3)], [], complete)
    assert scene.everything() == before


def check_a_wrong_listing_changes_nothing(connect: Connect) -> None:
    """A listing with one impossible chunk or END is refused as a whole."""
    store = connect()
    scene = Scene.of(store)
    before = scene.everything()
    stray = chunk(1, table="stray")
    for chunks, ends in (
        ([chunk(1), stray], [End("t", "", 1)]),
        ([chunk(1), chunk(1)], [End("t", "", 1)]),
        ([chunk(1), chunk(0)], [End("t", "", 1)]),
        ([chunk(1)], [End("t", "", 1), End("stray", "", 0)]),
        ([chunk(1)], [End("t", "", -1)]),
        ([chunk(1)], [End("t", "", 1), End("t", "", 1)]),
    ):
        listing = partial(store.bind_inputs, scene.fence, RUN, chunks, ends, complete)
        error_of(InvariantViolated, listing)
        assert scene.everything() == before
    assert store.bind_inputs(scene.fence, RUN, [chunk(1)], [End("t", "", 1)], complete)


def check_an_empty_run_is_complete(connect: Connect) -> None:
    """A run without chunks passes its barriers when it is bound, through all segments."""
    store = connect()
    produced = SenderDecl("mid", "", 2, produced=True)
    scene = Scene.of(store, SenderDecl("t", "", 1), produced, segments=2)
    assert store.bind_inputs(scene.fence, RUN, [], [End("t", "", 0)], complete)
    assert store.read_barriers(RUN) == [1, 2]
    assert scene.state() == RunState.FORWARDING


def check_a_chunk_is_bound_once(connect: Connect) -> None:
    """The rule decides on facts of this transaction: new, there already, or refused."""
    store = connect()
    scene = Scene.of(store)
    seen: list[ChunkFacts] = []

    def watch(new: Chunk, facts: ChunkFacts) -> bool:
        seen.append(facts)
        return bind(new, facts)

    assert store.bind_chunk(RUN, chunk(2), watch)
    assert not store.bind_chunk(RUN, chunk(2), watch)
    facts = ChunkFacts(RUN, "OPEN", declared=True, announced=None, stored=None, condemned=False)
    assert seen == [facts, replace(facts, stored=chunk(2))]
    assert references(store) == [chunk(2)]
    alike = replace(chunk(1), header="columns")
    other = RunId("other")
    store.create_run(new_run(SenderDecl("t", "", 1), SenderDecl("t", "b", 1), run_id=other))
    assert store.bind_chunk(other, alike, watch)
    assert store.bind_chunk(other, replace(chunk(1, sender="b"), header="columns"), watch)
    assert [one.header for one in seen[2:]] == ["", "columns"]
    conflict = ChunkConflict("t", "", 2, "other bytes", "a", "b")

    def refuse(_: Chunk, __: ChunkFacts) -> bool:
        raise conflict

    before = scene.everything()
    assert error_of(ChunkConflict, lambda: store.bind_chunk(RUN, chunk(3), refuse)) is conflict
    error_of(InvariantViolated, lambda: store.bind_chunk(RUN, chunk(2), lambda *_: True))
    assert scene.everything() == before
    gone = error_of(RunGone, lambda: store.bind_chunk(RunId("unknown"), chunk(1), bind))
    assert gone.run == "unknown"


def check_what_no_store_can_hold_is_refused(connect: Connect) -> None:
    """Numbers over 64 bits and broken text are the caller's mistake, and change nothing."""
    store = connect()
    scene = Scene.of(store)
    before = scene.everything()
    huge = 1 << 63
    for call in (
        partial(store.bind_chunk, RUN, chunk(huge), bind),
        partial(store.bind_chunk, RUN, chunk(1, table="\ud800"), bind),
        partial(store.bind_chunk, RUN, replace(chunk(1), size=huge), bind),
        partial(store.record_end, RUN, End("t", "", huge), announce, complete),
        partial(store.advance_offset, ingress_topic(RUN, 1), 0, "g", Offset(huge)),
        partial(store.append_records, ingress_topic(RUN, 1), 0, [Record(b"x", "\ud800")]),
    ):
        error_of(UsageInvalid, call)
        assert scene.everything() == before


def check_only_declared_senders_count(connect: Connect) -> None:
    """Undeclared senders and produced tables are shown to the rule as not declared."""
    store = connect()
    Scene.of(store, SenderDecl("t", "a", 1), SenderDecl("mid", "", 2, produced=True), segments=2)
    declared: list[bool] = []

    def watch(_: Chunk | End, facts: ChunkFacts | EndFacts) -> bool:
        declared.append(facts.declared)
        return False

    for table, sender in (("t", "a"), ("t", "b"), ("u", "a"), ("mid", "")):
        store.bind_chunk(RUN, chunk(1, table=table, sender=sender), watch)
        store.record_end(RUN, End(table, sender, 1), watch, complete)
    assert declared == [True, True, False, False, False, False, False, False]
    error_of(
        InvariantViolated,
        lambda: store.bind_chunk(RUN, chunk(1, table="mid"), lambda *_: True),
    )
    error_of(
        InvariantViolated,
        lambda: store.record_end(RUN, End("mid", "", 1), lambda *_: True, complete),
    )


def check_progress_is_kept_as_ranges(connect: Connect) -> None:
    """Ordinals in any order, with gaps, of several senders: the sets are exact."""
    store = connect()
    Scene.of(store, SenderDecl("t", "b", 1), SenderDecl("t", "a", 1))
    for ordinal in (5, 1, 9, 2, 6, 3, 10):
        assert store.bind_chunk(RUN, chunk(ordinal, sender="a"), bind)
    assert received(store, sender="a").ranges == ((1, 3), (5, 6), (9, 10))
    assert received(store, sender="b").ranges == ()
    assert [progress.sender for progress in store.read_progress(RUN)] == ["b", "a"]
    assert store.bind_chunk(RUN, chunk(1, sender="b"), bind)
    listed = [(found.sender, found.ordinal) for found in store.list_chunks(RUN)]
    assert listed == [("b", 1), *(("a", ordinal) for ordinal in (1, 2, 3, 5, 6, 9, 10))]


def check_an_end_is_recorded_once(connect: Connect) -> None:
    """The rule for END sees what was received and announced; a second one is not recorded."""
    store = connect()
    scene = Scene.of(store, bound=3)
    seen: list[EndFacts] = []

    def watch(end: End, facts: EndFacts) -> bool:
        seen.append(facts)
        return announce(end, facts)

    assert store.record_end(RUN, End("t", "", 3), watch, complete)
    assert not store.record_end(RUN, End("t", "", 3), watch, complete)
    assert [facts.announced for facts in seen] == [None, 3]
    assert [facts.highest for facts in seen] == [3] * 2
    before = scene.everything()
    error_of(
        InvariantViolated,
        lambda: store.record_end(RUN, End("t", "", 4), lambda *_: True, complete),
    )
    assert scene.everything() == before
    assert store.read_progress(RUN)[0].announced == 3


def check_a_blob_is_bound_or_condemned(connect: Connect) -> None:
    """A bound blob cannot be condemned, a condemned one not bound, until it is forgotten."""
    store = connect()
    Scene.of(store, bound=1)
    assert not store.condemn_blob(chunk(1).location)
    names = [chunk(number).location for number in (3, 1, 2)]
    assert store.list_unbound(names) == [names[0], names[2]]
    assert store.list_unbound([]) == []
    assert store.condemn_blob(chunk(2).location)
    assert store.condemn_blob(chunk(2).location)
    assert store.list_unbound(names) == [names[0], names[2]]
    seen: list[bool] = []

    def watch(_: Chunk, facts: ChunkFacts) -> bool:
        seen.append(facts.condemned)
        return True

    error_of(InvariantViolated, lambda: store.bind_chunk(RUN, chunk(2), watch))
    store.forget_condemned(chunk(2).location)
    assert store.bind_chunk(RUN, chunk(2), watch)
    assert seen == [True, False]


def check_an_append_and_offsets_are_one(connect: Connect) -> None:
    """Records and positions become visible together, or not at all."""
    store = connect()
    assert store.create_topic("t", 2) == 2
    assert store.create_topic("t", 5) == 2
    store.append_records("t", 0, [Record(b"in")])
    assert store.append_records("t", 1, [Record(b"out")], [("t", 0, "g", Offset(1))]) == [0]
    assert store.read_offset("t", 0, "g") == 1
    bad = [("t", 1, "g", Offset(1)), ("t", 0, "g", Offset(9))]
    error_of(UsageInvalid, lambda: store.append_records("t", 1, [Record(b"no")], bad))
    assert store.topic_bounds("t", 1) == (0, 1)
    assert store.read_offset("t", 1, "g") is None


def check_a_store_keeps_its_name(connect: Connect) -> None:
    """The store's random name stays, and the store's own check finds nothing wrong."""
    store = connect()
    name = store.store_id()
    Scene.of(store, bound=2)
    assert len(name) == 32
    assert connect().store_id() == name
    store.check()


CORE: tuple[Check, ...] = (
    check_epochs_grow,
    check_a_successor_sees_what_it_succeeds,
    check_a_store_belongs_to_a_pipeline,
    check_the_backlog_is_what_is_not_applied,
    check_a_run_is_created_once,
    check_a_listing_is_bound_as_one,
    check_a_wrong_listing_changes_nothing,
    check_an_empty_run_is_complete,
    check_a_chunk_is_bound_once,
    check_what_no_store_can_hold_is_refused,
    check_only_declared_senders_count,
    check_progress_is_kept_as_ranges,
    check_an_end_is_recorded_once,
    check_a_blob_is_bound_or_condemned,
    check_an_append_and_offsets_are_one,
    check_a_store_keeps_its_name,
)

CHECKS: tuple[Check, ...] = CORE + WORK + LEAVING + WATCHING + RACES + CLIENTS
"""What every store passes."""
