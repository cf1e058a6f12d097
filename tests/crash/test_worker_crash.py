"""Kills a filter and an aggregator at every crash point of the worker, and in recoveries."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from functools import partial
from itertools import count

import pytest
from tests.crash import worker_work

from holdfast._base.crashpoint import POINTS
from holdfast.testing.crash import CrashLoop, Hit, Tally
from holdfast.worker import persistence

WORKER_POINTS = {
    name for name in POINTS if name.startswith("worker.") and not name.startswith("worker.inherit.")
}


TRY_ALL = os.environ.get("HOLDFAST_WORKER_CRASHES") == "all"
"""All passes and all pairs: minutes. Otherwise a part of each that `make crash` has time for."""


@pytest.fixture(autouse=True)
def _compacts_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small journal is rewritten too; the children are forked and see it."""
    monkeypatch.setattr(persistence, "COMPACT_BYTES_MIN", 1000)


def crashes_of(clients: tuple[str, ...]) -> CrashLoop:
    return CrashLoop(
        partial(worker_work.run, clients),
        settle=partial(worker_work.check_any_moment, clients),
        final=partial(worker_work.check_final, clients),
    )


def keep_single(hit: Hit) -> bool:
    return hit.name in WORKER_POINTS and (TRY_ALL or hit.number in (1, 5))


@pytest.mark.slow
def test_crash_at_every_point(tallies: defaultdict[str, Tally]) -> None:
    """Two passes of every point, at least: recover, compare with the oracle."""
    loop = crashes_of(worker_work.CLIENTS)
    hits = list(loop.singles(keep=keep_single))
    tallies["worker"].add(loop.tally)
    assert not loop.tally.problems, "\n".join(loop.tally.problems)
    assert {hit.name for hit in hits} == WORKER_POINTS - {"worker.recover.each"}


@pytest.mark.slow
def test_crash_in_every_recovery(tallies: defaultdict[str, Tally]) -> None:
    """The first pass of every point, then of every 19th of what recovers from it, in turn."""
    loop = crashes_of(worker_work.CLIENTS[:1])
    seconds: Counter[str] = Counter()
    turn = count()

    def keep(hit: Hit) -> bool:
        if hit.name not in WORKER_POINTS or hit.number > 1:
            return False
        kept = TRY_ALL or next(turn) % 19 == 0 or hit.name == "worker.recover.each"
        seconds[hit.name] += kept
        return kept

    for name in filter(WORKER_POINTS.__contains__, loop.passes()):
        loop.pairs(Hit(name, 1), keep=keep)
    tallies["worker"].add(loop.tally)
    assert not loop.tally.problems, "\n".join(loop.tally.problems)
    assert "worker.recover.each" in seconds
    assert loop.tally.pairs >= 25
