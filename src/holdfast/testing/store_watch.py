"""The contract suite of stores, continued: runs that grow old, and what is left of them."""

from __future__ import annotations

from functools import partial

from holdfast._base.ids import Ordinal, RunId
from holdfast.errors import RunGone
from holdfast.store.contract import notice_topic
from holdfast.store.result_rows import NoticeState
from holdfast.testing.expect import error_of
from holdfast.testing.store_leaving import URL, done, told
from holdfast.testing.store_samples import RUN, Check, Connect, Scene, bind, chunk, new_run


def check_idle_time_is_accumulated(connect: Connect) -> None:
    """Only time that somebody added counts, and only since the last thing that happened."""
    store = connect()
    scene = Scene.of(store)
    assert store.list_watched() == []

    def idle(add_ms: int) -> int:
        store.add_elapsed(scene.fence, add_ms)
        [watched] = store.watch_runs(scene.fence)
        assert store.list_watched() == [watched]
        if watched.run.state == "OPEN":
            assert store.read_idle() == {RUN: watched.idle_ms}
            assert store.read_idle_of(RUN) == watched.idle_ms
        return watched.idle_ms

    assert store.read_idle_of(RUN) == 0
    assert [idle(100), idle(50), idle(25)] == [0, 50, 75]
    store.bind_chunk(RUN, chunk(1), bind)
    assert (store.read_idle(), store.read_idle_of(RUN)) == ({RUN: 75}, 0)
    assert [idle(10), idle(5)] == [0, 5]
    store.excuse_runs(scene.fence, [RUN])
    assert [idle(10), idle(5)] == [10, 15]
    scene.end(2)
    assert [idle(10), idle(5)] == [0, 5]
    scene.plan("w", chunk(1))
    scene.commit("w")
    assert [idle(10), idle(5)] == [0, 5]
    store.move_run(scene.fence, RUN, expected="OPEN", to="FAILED", error="why")
    assert (store.read_idle(), store.read_idle_of(RUN)) == ({}, 0)
    assert [idle(10), idle(5)] == [10, 15], "an end is seen at once"
    store.excuse_runs(scene.fence, [RUN])
    assert idle(10) == 25, "what is over is kept for a time that goes on"


def check_only_an_idle_run_is_abandoned(connect: Connect) -> None:
    """What happened between the look and the act saves the run."""
    store = connect()
    scene = Scene.of(store)
    [seen] = store.watch_runs(scene.fence)
    store.bind_chunk(RUN, chunk(1), bind)
    assert not store.abandon_run(scene.fence, RUN, mark=seen.mark, error="idle")
    [seen] = store.watch_runs(scene.fence)
    assert store.abandon_run(scene.fence, RUN, mark=seen.mark, error="idle")
    run = store.read_run(RUN)
    assert run is not None
    assert (run.state, run.error) == ("ABANDONED", "idle")
    assert [one["type"] for one in told(store)] == ["run.abandoned"]


def check_a_sweep_empties_the_notices_that_were_sent(connect: Connect) -> None:
    """Whatever comes first: that it is sent, or that its run is swept."""
    store = connect()
    scene = Scene.of(store).forwarded()
    store.set_webhook("client", URL)
    done(scene)
    [notice] = store.list_notices()
    store.record_sent(scene.fence, notice.notice_id)
    assert [one.body for one in store.list_notices()] == [notice.body]
    assert store.move_run(scene.fence, RUN, expected="DONE", to="SWEPT")
    store.clear_run(scene.fence, RUN, uploads=f"chunks/{RUN}/")
    assert [(one.state, one.body) for one in store.list_notices()] == [(NoticeState.SENT, "{}")]


def check_a_swept_run_is_a_tombstone(connect: Connect) -> None:
    """Its rows go, it stays: whoever works on it or sends to it is told that it is gone."""
    store = connect()
    scene = Scene.of(store).forwarded()
    store.set_webhook("client", URL)
    done(scene)
    store.condemn_blob(f"chunks/{RUN}/t/s/9-lost")
    [watched] = store.watch_runs(scene.fence)
    assert watched.has_queues
    topics = tuple(topic for topic in store.list_topics() if topic.startswith("run/"))
    store.forget_queues(scene.fence, RUN, topics)
    assert not store.list_watched()[0].has_queues
    assert list(store.list_topics()) == [notice_topic("client")]
    clear = partial(store.clear_run, scene.fence, RUN, uploads=f"chunks/{RUN}/")
    error_of(RunGone, clear)
    assert store.read_results(RUN)
    assert store.move_run(scene.fence, RUN, expected="DONE", to="SWEPT")
    assert store.read_results(RUN) == []
    assert store.read_result_piece(RUN, "q", Ordinal(1)) is None
    [notice] = store.list_notices()
    assert store.begin_notice(scene.fence, notice.notice_id)
    clear()
    [waiting] = store.list_notices()
    assert waiting.body == notice.body
    store.record_sent(scene.fence, notice.notice_id)
    [sent] = store.list_notices()
    assert (sent.notice_id, sent.state, sent.body) == (notice.notice_id, NoticeState.SENT, "{}")
    clear()
    assert store.watch_runs(scene.fence) == store.list_watched() == []
    assert (scene.state(), store.list_chunks(RUN)) == ("SWEPT", [])
    assert store.read_progress(RUN) == [], "a client may declare a thousand senders a run"
    assert [run.run_id for run in store.list_runs_in("SWEPT")] == [RUN]
    error_of(RunGone, lambda: scene.commit("series-q"))
    error_of(RunGone, lambda: store.bind_chunk(RUN, chunk(1), lambda *_: True))


def check_of_ended_runs_only_those_are_seen_that_are_due(connect: Connect) -> None:
    """The others stay as they are, perhaps for ever, and a look at them would cost ever more."""
    store = connect()
    scene = Scene.of(store).forwarded()
    done(scene)
    failed, open_run = RunId("failed"), RunId("open")
    store.create_run(new_run(run_id=failed))
    store.move_run(scene.fence, failed, expected="OPEN", to="FAILED", error="why")
    store.create_run(new_run(run_id=open_run))

    def seen(sweep_ms: int, expire_ms: int | None) -> list[RunId]:
        found = store.watch_runs(scene.fence, sweep_ms=sweep_ms, expire_ms=expire_ms)
        return [one.run.run_id for one in found]

    assert (seen(100, None), store.count_uncleared()) == ([RUN, open_run], 1), "it has queues"
    store.forget_queues(scene.fence, RUN)
    assert (seen(100, None), store.count_uncleared()) == ([open_run], 0)
    assert list(store.read_idle()) == [open_run]
    store.add_elapsed(scene.fence, 100)
    assert seen(101, 101) == [open_run]
    assert seen(100, None) == [failed, open_run]
    assert seen(101, 100) == [RUN, open_run]
    store.move_run(scene.fence, failed, expected="FAILED", to="SWEPT")
    assert (seen(100, None), store.count_uncleared()) == ([failed, open_run], 1)
    store.clear_run(scene.fence, failed, uploads="chunks/")
    assert (seen(0, None), store.count_uncleared()) == ([open_run], 0)
    assert [one.run.run_id for one in store.list_watched()] == [RUN, open_run]


WATCHING: tuple[Check, ...] = (
    check_idle_time_is_accumulated,
    check_only_an_idle_run_is_abandoned,
    check_a_sweep_empties_the_notices_that_were_sent,
    check_a_swept_run_is_a_tombstone,
    check_of_ended_runs_only_those_are_seen_that_are_due,
)
