"""What a call costs must not grow with what its client has handed in before, or with how many runs
have come to their end: others wait for it.

Costs are counted in steps of SQLite's machine, never in time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import apsw
import pytest

from holdfast._base.ids import Ordinal, RunId
from holdfast.delivery.rules import accept_piece, is_whole
from holdfast.engine.barrier import is_complete
from holdfast.errors import EndConflict
from holdfast.intake.rules import accept_chunk, accept_end
from holdfast.store.rows import End, RunState, SenderDecl
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.store_leaving import HEADER, piece
from holdfast.testing.store_samples import RUN, chunk, new_run

FEW, MANY = 10, 100
SENDERS = (SenderDecl("t", "", 1), SenderDecl("side", "", 1, whole=True))


class Place:
    """A store with a run that has `count` chunks of each table, and what a call on it costs."""

    def __init__(self, count: int, *, gap: bool = False) -> None:
        self.store = SqliteStore.memory()
        self.fence = self.store.take_lease("engine", "me")
        self.next = count + 2 if gap else count + 1
        self.store.create_run(replace(new_run(*SENDERS), client="north"))
        for ordinal in range(self.next - count, self.next):
            self.put("t", ordinal)
            self.put("side", ordinal)

    def put(self, table: str, ordinal: int) -> bool:
        return self.store.bind_chunk(RUN, chunk(ordinal, table=table), accept_chunk, is_complete)

    def end(self, count: int, table: str = "side") -> bool:
        return self.store.record_end(RUN, End(table, "", count), accept_end, is_complete)

    def refused_end(self) -> None:
        with pytest.raises(EndConflict):
            self.end(1)

    def look(self) -> Any:
        return self.store.look_at_chunk("north", RUN, chunk(self.next))


def cost(store: SqliteStore, call: Callable[[], object]) -> int:
    """Return how many steps the statements of a call take."""
    steps = 0

    def count(event: dict[str, Any]) -> None:
        nonlocal steps
        steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    connection = store._database.connection()
    connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, count)
    try:
        call()
    finally:
        connection.trace_v2(0, None)
    assert steps
    return steps


CALLS: dict[str, Callable[[Place], Callable[[], object]]] = {
    "a chunk": lambda here: lambda: here.put("t", here.next),
    "a chunk of a whole table": lambda here: lambda: here.put("side", here.next),
    "a look at a chunk": lambda here: here.look,
    "an END": lambda here: lambda: here.end(MANY * 2),
    "a refused END": lambda here: here.refused_end,
    "what a client takes": lambda here: lambda: here.store.read_use("north"),
    "the backlog of a client": lambda here: lambda: here.store.read_backlog("north"),
    "the backlog of all": lambda here: here.store.read_backlog,
    "a look at all runs": lambda here: lambda: here.store.watch_runs(here.fence),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("gap", [False, True])
def test_a_call_costs_the_same_after_many_chunks(name: str, gap: bool) -> None:
    few, many = Place(FEW, gap=gap), Place(MANY, gap=gap)
    assert cost(many.store, CALLS[name](many)) <= cost(few.store, CALLS[name](few))


def test_a_chunk_behind_its_end_costs_the_same_until_the_last() -> None:
    """Only where every sender's count is what it announced are the sets compared."""
    few, many = Place(FEW), Place(MANY)
    for here in (few, many):
        here.end(MANY * 2)
        here.end(MANY * 2, "t")
    spent = [cost(one.store, CALLS["a chunk of a whole table"](one)) for one in (few, many)]
    assert spent[1] <= spent[0]


def test_progress_without_a_gap_costs_the_same() -> None:
    few, many = (cost(one, partial(one.read_progress, RUN)) for one in _stores())
    assert many <= few


def _stores() -> list[SqliteStore]:
    return [Place(FEW).store, Place(MANY).store]


class Pieces:
    """A store with an external run of which `count` pieces have come."""

    def __init__(self, count: int) -> None:
        self.store, self.count = SqliteStore.memory(), count
        self.fence = self.store.take_lease("delivery", "me")
        self.store.create_run(replace(new_run(), senders=(), producer="requests"))
        self.store.move_run(self.fence, RUN, expected="FORWARDING", to="RECEIVING")
        self.store.record_header(self.fence, RUN, HEADER, lambda *_: True, is_whole)
        for ordinal in range(1, count + 1):
            self.put(ordinal)

    def put(self, ordinal: int) -> bool:
        one = piece("a", ordinal, 2 * MANY)
        return self.store.bind_piece(self.fence, RUN, one, accept_piece, is_whole)

    def fetch(self) -> None:
        assert self.store.read_result_piece(RUN, "a", Ordinal(self.count))


PIECE_CALLS: dict[str, Callable[[Pieces], object]] = {
    "a piece": lambda here: here.put(here.count + 1),
    "a piece again": lambda here: here.put(here.count),
    "a look at a piece": lambda here: here.store.read_external(RUN, piece("a", here.count)),
    "a download of a piece": lambda here: here.fetch(),
    "a look at all runs": lambda here: here.store.watch_runs(here.fence),
}


@pytest.mark.parametrize("name", PIECE_CALLS)
def test_a_piece_costs_the_same_after_many(name: str) -> None:
    few, many = Pieces(FEW), Pieces(MANY)
    call = PIECE_CALLS[name]
    assert cost(many.store, partial(call, many)) <= cost(few.store, partial(call, few))


KEPT_MS = 1000


class Ended:
    """A store with an open run, and `count` runs of each kind that came to their end before it."""

    def __init__(self, count: int) -> None:
        self.store = SqliteStore.memory()
        self.fence = self.store.take_lease("delivery", "me")
        for number in range(count):
            self.end(RunId(f"done-{number}"), producer="requests")
            self.end(RunId(f"failed-{number}"))
            swept = RunId(f"swept-{number}")
            self.end(swept)
            self.store.move_run(self.fence, swept, expected="FAILED", to="SWEPT")
            self.store.clear_run(self.fence, swept, uploads=f"chunks/{swept}/")
        self.store.create_run(replace(new_run(*SENDERS), client="north"))
        self.look()

    def end(self, run_id: RunId, producer: str = "") -> None:
        run = replace(new_run(run_id=run_id), producer=producer, client="")
        self.store.create_run(replace(run, senders=()) if producer else run)
        moves = (
            ("FORWARDING", "RECEIVING", "COMPLETING", "DONE") if producer else ("OPEN", "FAILED")
        )
        for at, to in pairwise(moves):
            self.store.move_run(self.fence, run_id, expected=at, to=to)
        self.store.forget_queues(self.fence, run_id)

    def look(self) -> list[RunId]:
        seen = self.store.watch_runs(self.fence, sweep_ms=KEPT_MS, expire_ms=None)
        return [one.run.run_id for one in seen]


ENDED_CALLS: dict[str, Callable[[Ended], object]] = {
    "a look at all runs": Ended.look,
    "how long runs are idle": lambda here: here.store.read_idle(),
    "runs to be cleared": lambda here: here.store.count_uncleared(),
    "runs in a state": lambda here: here.store.list_runs_in(RunState.COMPLETING, RunState.OPEN),
}


@pytest.mark.parametrize("name", ENDED_CALLS)
def test_a_call_costs_the_same_after_many_runs(name: str) -> None:
    few, many = Ended(FEW), Ended(MANY)
    assert few.look() == many.look() == [RUN]
    call = ENDED_CALLS[name]
    assert cost(many.store, partial(call, many)) <= cost(few.store, partial(call, few))
