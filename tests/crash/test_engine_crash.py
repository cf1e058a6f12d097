"""Crash at every crash point of the Spark-free engine, then crash again during the recovery."""

from __future__ import annotations

import os
from collections import defaultdict
from functools import partial
from pathlib import Path

import pytest
from tests.crash.gc_work import (
    KINDS,
    check_collected_everywhere,
    check_intact,
    garbage_in,
    leave_elsewhere,
    make_littered,
    run_gc,
)
from tests.crash.workloads import (
    check_answers,
    check_failed,
    check_settled,
    run_elsewhere,
    run_failing,
    run_files,
    run_restoring,
    run_uploads,
)

from holdfast._base.crashpoint import POINTS
from holdfast.testing.crash import CrashLoop, Hit, Tally

Tallies = defaultdict[str, Tally]
LOOPS = {
    "files": lambda: CrashLoop(run_files, settle=check_settled, final=check_answers),
    "uploads": lambda: CrashLoop(run_uploads, settle=check_settled, final=check_answers),
    "failing": lambda: CrashLoop(run_failing, settle=check_settled, final=check_failed),
}
PAIR_STRIDE = int(os.environ.get("HOLDFAST_PAIR_STRIDE", "61"))
"""Every so many-th first crash gets all its second crashes; a prime misses no regular pattern.
`make crash-full` tries every pair."""


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", sorted(LOOPS))
def test_every_crash_point_and_every_crash_in_its_recovery(name: str, tallies: Tallies) -> None:
    """I1, I2, I3, I5, I11: nothing lost, doubled, wrong or early, whatever is killed and when."""
    loop = LOOPS[name]()
    hits = list(loop.singles())
    for first in hits[::PAIR_STRIDE]:
        loop.pairs(first)
    tallies["engine"].add(loop.tally)
    assert loop.tally.problems == []
    assert loop.tally.cases == len(hits)
    assert loop.tally.pairs > 0


def test_the_relay_killed_anywhere_sends_and_reads_on(tallies: Tallies) -> None:
    """I1, I2, I3, I11: killed at every point of the relay, and again in the recovery after it."""
    loop = CrashLoop(run_elsewhere, settle=check_settled, final=check_answers)
    hits = list(loop.singles(keep=is_of_relay))
    for first in hits[::2]:
        loop.pairs(first, keep=is_of_relay)
    tallies["engine"].add(loop.tally)
    assert loop.tally.problems == []
    assert loop.tally.cases == len(hits)
    assert loop.tally.pairs > 10


def is_of_relay(hit: Hit) -> bool:
    return hit.name.startswith("relay.")


def test_an_export_of_parquet_is_restored_whatever_kills_that(tallies: Tallies) -> None:
    """I1, I5: killed at every point of each export; and while one is replaced, killed again."""

    def is_of_export(hit: Hit) -> bool:
        return hit.name.startswith(("delivery.export.", "parts."))

    loop = CrashLoop(run_restoring, settle=check_settled, final=check_answers)
    hits = list(loop.singles(keep=is_of_export))
    for first in hits:
        if first.name == "parts.replace.aside":
            loop.pairs(first, keep=is_of_export)
    tallies["engine"].add(loop.tally)
    assert loop.tally.problems == []
    assert loop.tally.cases == len(hits)
    assert loop.tally.pairs > 3


def test_gc_killed_anywhere_removes_only_garbage(tmp_path: Path, tallies: Tallies) -> None:
    """I1, I5: killed at every point of gc, and again in the gc after it: nothing committed goes."""
    make_littered(tmp_path)
    leave_elsewhere(tmp_path)
    assert all(getattr(garbage_in(tmp_path), kind) for kind in KINDS)
    collect = partial(run_gc, tmp_path)
    loop = CrashLoop(collect, settle=check_intact, final=check_collected_everywhere)
    hits = list(loop.singles())
    for first in hits:
        if first.name.startswith("gc.") and first.number == 1:
            loop.pairs(first, keep=lambda hit: hit.name.startswith("gc."))
    tallies["engine"].add(loop.tally)
    assert loop.tally.problems == []
    assert loop.tally.cases == len(hits)
    assert loop.tally.pairs > 10


def test_every_point_of_the_engine_is_reached(tallies: Tallies) -> None:
    """A crash point nobody reaches is a promise nobody tested."""
    paid = ("ledger.", "postgres.", "calls.")
    delivery = ("closing.", "external.", "notice.", "sweep.")
    doors = ("gateway.", "router.", "queue.", "client.")
    elsewhere = (*paid, *delivery, *doors, "intake.frame.", "worker.")
    wanted = {name for name in POINTS if not name.startswith(elsewhere)}
    assert wanted - tallies["engine"].points == set()


def test_the_loop_sees_a_lost_chunk() -> None:
    """The harness itself: a workload that loses a row must be called lost."""

    def loses(root: Path) -> None:
        run_files(root)
        path = root / "out" / "texts.csv"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))

    def rows_only(root: Path) -> None:
        lines = (root / "out" / "texts.csv").read_text().splitlines()[1:]
        assert sorted(lines) == ["one", "two"], "lost: a row"

    loop = CrashLoop(loses, settle=check_settled, final=rows_only)
    loop.passes()
    assert loop.tally.found["lost"] == 1
    assert str(Hit("a.b", 2)) == "a.b:2"
