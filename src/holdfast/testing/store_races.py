"""The store's contract suite, third part: former owners, and two connections at once.

A transaction is held open where its rule runs, or where a commit looks at its files: what one
connection asks waits until the other connection's call is under way, and sees that it cannot end
before this one does. So each pair is tried in both orders, and no order depends on luck. A few
pairs are also let loose at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

from holdfast._base.ids import BatchId, Epoch, Offset
from holdfast.errors import Fenced, RunGone
from holdfast.log.contract import Record
from holdfast.store.rows import Commit, End, Fence, File, Plan, RunState, WorkKind
from holdfast.testing.expect import WAIT_S, error_of, run_threads
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
)

HELD_S = 0.05
"""How long a held transaction looks whether the other one ends meanwhile, which it must not."""

Answer = TypeVar("Answer")


class _HeldFiles(tuple[File, ...]):
    """Files that pause whoever looks at them."""

    _pause: Callable[[], None]

    def __new__(cls, files: Iterable[File], pause: Callable[[], None]) -> _HeldFiles:
        made = super().__new__(cls, files)
        made._pause = pause
        return made

    def __iter__(self) -> Iterator[File]:
        self._pause()
        return super().__iter__()


class Interleaving:
    """Lets a second call begin while a first one is inside its transaction."""

    def __init__(self) -> None:
        self._inside = threading.Event()
        self._begun = threading.Event()
        self._ended = threading.Event()

    def held(self, rule: Callable[..., Answer]) -> Callable[..., Answer]:
        """Wrap a rule of the first call: it answers once the second call is known to wait."""

        def hold(*facts: object) -> Answer:
            answer = rule(*facts)
            self.pause()
            return answer

        return hold

    def held_commit(self, commit: Commit) -> Commit:
        """Return the commit of the first call: its files are told once the second call waits.

        Its barrier is no place to wait at: a store need not ask before END was said.
        """
        return replace(commit, files=_HeldFiles(commit.files, self.pause))

    def pause(self) -> None:
        """Wait inside the first call until the second one is known to wait."""
        self._inside.set()
        assert self._begun.wait(WAIT_S), "the second call never began"
        assert not self._ended.wait(HELD_S), "two transactions were in the same place at once"

    def run(self, first: Callable[[], object], second: Callable[[], object]) -> None:
        """Run both: the second begins when the first is inside."""

        def follow() -> None:
            assert self._inside.wait(WAIT_S), "the first call never came to its rule or files"
            self._begun.set()
            try:
                second()
            finally:
                self._ended.set()

        def lead() -> None:
            first()

        run_threads([lead, follow])


def _two_last_steps(connect: Connect) -> tuple[Scene, Commit]:
    """Return a run that lacks only its END and the commit of its only work."""
    scene = Scene.of(connect(), bound=1)
    scene.plan("w", chunk(1))
    attempt = scene.store.start_attempt(scene.fence, BatchId("w"))
    return scene, Commit(BatchId("w"), attempt, (file("q", "w/q"),), piece_outputs=("q",))


def _is_forwarded_once(scene: Scene) -> None:
    assert scene.state() == RunState.FORWARDING
    assert scene.store.read_barriers(RUN) == [1]
    assert scene.store.read_progress(RUN)[0].applied.ranges == ((1, 1),)


def check_end_comes_during_the_last_commit(connect: Connect) -> None:
    """END waits for the commit, and then passes the barrier."""
    scene, outcome = _two_last_steps(connect)
    other, race = connect(), Interleaving()
    race.run(
        lambda: scene.store.commit_work(scene.fence, race.held_commit(outcome), complete),
        lambda: other.record_end(RUN, End("t", "", 1), announce, complete),
    )
    _is_forwarded_once(scene)


def check_the_last_commit_comes_during_end(connect: Connect) -> None:
    """The commit waits for END, and then passes the barrier."""
    scene, outcome = _two_last_steps(connect)
    other, race = connect(), Interleaving()
    race.run(
        lambda: other.record_end(RUN, End("t", "", 1), race.held(announce), complete),
        lambda: scene.store.commit_work(scene.fence, outcome, complete),
    )
    _is_forwarded_once(scene)


def check_end_and_the_last_commit_at_once(connect: Connect) -> None:
    """Let loose together, one of them passes the barrier, exactly once."""
    scene, outcome = _two_last_steps(connect)
    other, ready = connect(), threading.Barrier(2)

    def end() -> None:
        ready.wait(WAIT_S)
        other.record_end(RUN, End("t", "", 1), announce, complete)

    def commit() -> None:
        ready.wait(WAIT_S)
        scene.store.commit_work(scene.fence, outcome, complete)

    run_threads([end, commit])
    _is_forwarded_once(scene)


def check_cancel_comes_during_a_commit(connect: Connect) -> None:
    """Cancel waits; the commit stands, the run is cancelled, its pieces are void."""
    scene, outcome = _two_last_steps(connect)
    other, race = connect(), Interleaving()
    cancelled: list[bool] = []
    race.run(
        lambda: scene.store.commit_work(scene.fence, race.held_commit(outcome), complete),
        lambda: cancelled.append(
            other.move_run(
                scene.fence, RUN, expected=RunState.OPEN, to=RunState.CANCELLED, error="asked"
            )
        ),
    )
    assert cancelled == [True]
    assert scene.state() == RunState.CANCELLED
    assert scene.store.list_work(RUN)[0].committed
    assert scene.store.list_pieces(RUN, "q") == []


def check_a_commit_comes_after_cancel(connect: Connect) -> None:
    """The commit is refused by name and leaves nothing behind."""
    scene, outcome = _two_last_steps(connect)
    other = connect()
    assert other.move_run(scene.fence, RUN, expected=RunState.OPEN, to=RunState.CANCELLED)
    before = scene.everything()
    error_of(RunGone, lambda: scene.store.commit_work(scene.fence, outcome, complete))
    assert scene.everything() == before


def check_cancel_comes_too_late(connect: Connect) -> None:
    """Cancel expects OPEN; after the last commit passed the barrier it moves nothing."""
    scene, outcome = _two_last_steps(connect)
    assert scene.end(1)
    other, race = connect(), Interleaving()
    cancelled: list[bool] = []
    race.run(
        lambda: scene.store.commit_work(scene.fence, outcome, race.held(complete)),
        lambda: cancelled.append(
            other.move_run(scene.fence, RUN, expected=RunState.OPEN, to=RunState.CANCELLED)
        ),
    )
    assert cancelled == [False]
    _is_forwarded_once(scene)


def check_a_grant_comes_during_a_commit(connect: Connect) -> None:
    """The grant waits; the commit stands; the former owner's next effect is refused."""
    scene, outcome = _two_last_steps(connect)
    other, race = connect(), Interleaving()
    granted: list[Fence] = []
    race.run(
        lambda: scene.store.commit_work(scene.fence, race.held_commit(outcome), complete),
        lambda: granted.append(other.take_lease("engine", "successor")),
    )
    assert granted[0].epoch == scene.fence.epoch + 1
    assert scene.store.list_work(RUN)[0].committed
    error_of(Fenced, lambda: scene.store.beat_lease(scene.fence))


def check_a_former_owner_changes_nothing(connect: Connect) -> None:
    """After a grant, every fenced call of the former owner is refused and leaves no trace."""
    scene, outcome = _two_last_steps(connect)
    zombie, owner = scene.fence, connect().take_lease("engine", "successor")
    store, work = scene.store, BatchId("w")
    assert store.bind_chunk(RUN, chunk(2), bind)
    before = scene.everything()
    batch = Plan(BatchId("x"), RUN, WorkKind.BATCH, 1, "", (chunk(2),), Offset(2))
    known = Plan(work, RUN, WorkKind.BATCH, 1, "", (chunk(1),), Offset(1))
    calls: tuple[Callable[[], object], ...] = (
        lambda: store.beat_lease(zombie),
        lambda: store.bind_inputs(zombie, RUN, [], [End("t", "", 2)], complete),
        lambda: store.persist_plan(zombie, batch),
        lambda: store.persist_plan(zombie, known),
        lambda: store.start_attempt(zombie, work),
        lambda: store.fail_attempt(zombie, work, 1, "late"),
        lambda: store.commit_work(zombie, outcome, complete),
        lambda: store.move_run(zombie, RUN, expected=RunState.OPEN, to=RunState.CANCELLED),
        lambda: store.finish_run(zombie, RUN, {}),
    )
    for call in calls:
        error = error_of(Fenced, call)
        assert (error.resource, error.epoch) == ("engine", zombie.epoch)
        assert scene.everything() == before
    forged = Fence("engine", Epoch(owner.epoch + 1))
    error_of(Fenced, lambda: store.commit_work(forged, outcome, complete))
    error_of(Fenced, lambda: store.commit_work(Fence("other", zombie.epoch), outcome, complete))
    store.commit_work(owner, outcome, complete)


def check_two_last_series_at_once(connect: Connect) -> None:
    """Two results that finish together move the run to COMPLETING, and no further."""
    scene = Scene.of(connect()).forwarded()
    names = ("a", "b", "c", "d")
    stores = [scene.store, connect(), connect(), connect()]
    outcomes = []
    for name in names:
        work = scene.plan_series(name).plan.work_id
        attempt = scene.store.start_attempt(scene.fence, work)
        outcomes.append(Commit(work, attempt, (file(name, name),)))
    ready = threading.Barrier(len(names))

    def commit(number: int) -> None:
        ready.wait(WAIT_S)
        stores[number].commit_work(scene.fence, outcomes[number], complete)

    run_threads([partial(commit, number) for number in range(len(names))])
    assert scene.state() == RunState.COMPLETING
    assert [found.series for found in scene.store.read_series(RUN)] == list(names)


def check_two_owners_at_once(connect: Connect) -> None:
    """Of two that take a lease at once, one is fenced: never two owners of one epoch."""
    stores, fences = [connect(), connect()], [Fence("", Epoch(0))] * 2
    ready = threading.Barrier(2)

    def take(number: int) -> None:
        ready.wait(WAIT_S)
        fences[number] = stores[number].take_lease("engine", f"owner {number}")

    run_threads([lambda: take(0), lambda: take(1)])
    first, second = sorted(fences, key=lambda fence: fence.epoch)
    assert (first.epoch, second.epoch) == (1, 2)
    error_of(Fenced, lambda: stores[0].beat_lease(first))
    stores[1].beat_lease(second)


def check_one_chunk_from_two_connections(connect: Connect) -> None:
    """The same chunk sent twice at once is bound once; the second is told that it is there."""
    scene = Scene.of(connect())
    other, race = connect(), Interleaving()
    answers: list[bool] = []
    race.run(
        lambda: answers.append(scene.store.bind_chunk(RUN, chunk(1), race.held(bind))),
        lambda: answers.append(other.bind_chunk(RUN, chunk(1), bind)),
    )
    assert answers == [True, False]
    assert scene.store.list_chunks(RUN) == [chunk(1)]


def check_two_producers_to_one_topic(connect: Connect) -> None:
    """Offsets have no gaps, each record is there once, and each producer was told where."""
    stores = [connect(), connect()]
    stores[0].create_topic("t", 1)
    told: dict[int, bytes] = {}
    ready = threading.Barrier(2)

    def produce(number: int) -> None:
        ready.wait(WAIT_S)
        for turn in range(10):
            values = [b"%d-%d-%d" % (number, turn, item) for item in range(3)]
            offsets = stores[number].append_records("t", 0, [Record(value) for value in values])
            told.update(zip(offsets, values, strict=True))

    run_threads([lambda: produce(0), lambda: produce(1)])
    held = stores[0].read_records("t", 0, Offset(0), 1000)
    assert [stored.offset for stored in held] == list(range(60))
    assert {stored.offset: stored.record.value for stored in held} == told


RACES: tuple[Check, ...] = (
    check_end_comes_during_the_last_commit,
    check_the_last_commit_comes_during_end,
    check_end_and_the_last_commit_at_once,
    check_cancel_comes_during_a_commit,
    check_a_commit_comes_after_cancel,
    check_cancel_comes_too_late,
    check_a_grant_comes_during_a_commit,
    check_a_former_owner_changes_nothing,
    check_two_last_series_at_once,
    check_two_owners_at_once,
    check_one_chunk_from_two_connections,
    check_two_producers_to_one_topic,
)
