"""Delivery killed at every point, and again while it recovers: nothing lost, doubled or early.

A crash repeats at most a notice, under the same id; after it the blobs are exactly the rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.crash.delivery_work import (
    check_done,
    check_settled,
    check_swept,
    run_contradiction,
    run_external,
    run_of,
    run_sweeping,
)
from tests.receiver import Receiver, receiving

from holdfast._base.crashpoint import POINTS
from holdfast.delivery.receive import Receiver as Taking
from holdfast.testing.crash import CrashLoop, Hit, Tally

Tallies = defaultdict[str, Tally]
AREAS = ("closing.", "external.", "notice.", "sweep.")
SWEPT_KINDS = {
    "cancelled": "run.cancelled",
    "idle": "run.abandoned",
    "expired": "run.done",
}


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    with receiving(tmp_path_factory.mktemp("receiver")) as found:
        yield found


def external(receiver: Receiver, *, is_pair: bool = False) -> CrashLoop:
    final = partial(check_done, receiver, is_pair=is_pair)
    return CrashLoop(partial(run_external, receiver), settle=check_settled, final=final)


def contradiction(receiver: Receiver) -> CrashLoop:
    final = partial(check_swept, receiver, {"run": "run.failed"})
    return CrashLoop(partial(run_contradiction, receiver), settle=check_settled, final=final)


def sweeping(receiver: Receiver, *, is_pair: bool = False) -> CrashLoop:
    final = partial(check_swept, receiver, SWEPT_KINDS, is_pair=is_pair)
    return CrashLoop(partial(run_sweeping, receiver), settle=check_settled, final=final)


def crash(loop: CrashLoop, tallies: Tallies, *names: str) -> list[Hit]:
    """Crash at every pass of the points whose names begin so; all recover."""
    hits = list(loop.singles(lambda hit: hit.name.startswith(names)))
    finish(loop, tallies)
    assert hits
    return hits


def finish(loop: CrashLoop, tallies: Tallies) -> None:
    tallies["delivery"].add(loop.tally)
    assert loop.tally.problems == []
    assert loop.tally.cases + loop.tally.pairs > 0


@pytest.mark.timeout(1800)
def test_crash_while_forwarding(receiver: Receiver, tallies: Tallies) -> None:
    """The producer is asked, once or again under the same id; its answers count once."""
    hits = crash(external(receiver), tallies, "external.forward.")
    assert len({hit.name for hit in hits}) == 3


@pytest.mark.timeout(1800)
def test_crash_while_receiving(receiver: Receiver, tallies: Tallies) -> None:
    """Between upload, row and ack of every message: the blobs equal the rows afterwards."""
    names = ("external.header.", "external.upload.", "external.piece.", "external.ack.", "blobs.")
    hits = crash(external(receiver), tallies, *names)
    assert sum(hit.name == "external.ack.after" for hit in hits) >= 6


@pytest.mark.timeout(1800)
def test_crash_while_completing(receiver: Receiver, tallies: Tallies) -> None:
    """DONE and its notice are one; a crash behind them repeats at most the notice."""
    crash(external(receiver), tallies, "closing.", "notice.", "sweep.")


@pytest.mark.timeout(1800)
def test_crash_inside_the_database_write(receiver: Receiver, tallies: Tallies) -> None:
    """Before and after the commit of every transaction: all of it happened, or nothing."""
    hits = crash(external(receiver), tallies, "store.transaction.")
    assert len(hits) > 40


@pytest.mark.timeout(1800)
def test_repeated_crashes(receiver: Receiver, tallies: Tallies) -> None:
    """A second crash in the recovery from the first, at every point of delivery."""
    loop = external(receiver, is_pair=True)
    for name in (
        "external.forward.sent",
        "external.upload.after",
        "external.piece.after",
        "closing.done.after",
        "notice.send.after",
    ):
        loop.pairs(Hit(name, 1), keep=lambda hit: hit.name.startswith(AREAS))
    finish(loop, tallies)
    assert loop.tally.pairs > 40


@pytest.mark.timeout(1800)
def test_crash_while_a_run_fails(receiver: Receiver, tallies: Tallies) -> None:
    """A producer that contradicts itself: FAILED, told and swept, whatever is killed."""
    crash(contradiction(receiver), tallies, *AREAS)


@pytest.mark.timeout(1800)
def test_sweeping_killed_anywhere_leaves_only_tombstones(
    receiver: Receiver, tallies: Tallies
) -> None:
    """At every point of the clean-up, and again in the clean-up after it."""
    loop = sweeping(receiver)
    hits = crash(loop, tallies, "sweep.")
    assert {hit.name for hit in hits} >= {name for name in POINTS if name.startswith("sweep.")}
    pairs = sweeping(receiver, is_pair=True)
    for name in ("sweep.mark.after", "sweep.files.each", "sweep.topics.after"):
        pairs.pairs(Hit(name, 1), keep=lambda hit: hit.name.startswith("sweep."))
    finish(pairs, tallies)
    assert pairs.tally.pairs > 20


def test_every_point_of_delivery_is_reached(tallies: Tallies) -> None:
    """A crash point nobody reaches is a promise nobody tested."""
    wanted = {name for name in POINTS if name.startswith(AREAS)}
    assert wanted - tallies["delivery"].points == set()


def test_the_loop_sees_an_ack_before_the_row(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness itself: a delivery that acks first loses a piece, and must be called so."""
    take = Taking._take

    def acks_first(self: Taking, run_id: object, message: object) -> None:
        self._queues.ack(message)  # type: ignore[arg-type] # as it came
        take(self, run_id, message)  # type: ignore[arg-type] # as it came

    monkeypatch.setattr(Taking, "_take", acks_first)
    monkeypatch.setattr("tests.crash.delivery_work.ROUNDS_MAX", 200)
    loop = external(receiver)
    list(loop.singles(lambda hit: hit == Hit("external.upload.after", 1)))
    assert loop.tally.problems != []


def test_paths_of_cases_differ(tmp_path: Path) -> None:
    """The receiver tells cases apart by their runs, which are named after their directories."""
    assert run_of(tmp_path / "a") != run_of(tmp_path / "b")
