"""The barrier: sets, not counts. The model here is a plain Python set."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast._base.intervals import Intervals
from holdfast.engine.barrier import are_complete, is_complete, missing
from holdfast.store.rows import SenderProgress

Sender = tuple[int | None, set[int]]

SENDERS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 5)),
        st.sets(st.integers(1, 6), max_size=6),
    ),
    max_size=4,
)


def progress(announced: int | None, applied: set[int], *, table: str = "t") -> SenderProgress:
    seen = Intervals.of(applied)
    return SenderProgress(table, "", 1, False, announced, received=seen, applied=seen)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(senders=SENDERS)
@example(senders=[(3, {1, 2, 4})])
@example(senders=[(2, {1}), (1, {1, 2})])
@example(senders=[(2, {1, 2, 3})])
def test_complete_means_that_every_applied_set_is_exactly_the_announced_one(
    senders: list[Sender],
) -> None:
    wanted = all(
        announced is not None and applied == set(range(1, announced + 1))
        for announced, applied in senders
    )
    assert is_complete([progress(*sender) for sender in senders]) is wanted


def test_a_chunk_too_many_never_hides_one_that_is_missing() -> None:
    """Counts are equal here, per sender and in all; only sets tell."""
    assert not is_complete([progress(3, {1, 2, 4})])
    assert not is_complete([progress(3, {2, 3, 4})])
    assert not is_complete([progress(2, {1}), progress(1, {1, 2})])
    assert not is_complete([progress(2, {1, 2, 3})])


@pytest.mark.parametrize("applied", [set(), {1}, {1, 2, 3}])
def test_a_sender_without_end_is_never_complete(applied: set[int]) -> None:
    assert not is_complete([progress(None, applied)])
    assert not is_complete([progress(1, {1}), progress(None, applied)])


def test_a_sender_that_announced_nothing_is_complete_with_nothing() -> None:
    assert is_complete([progress(0, set())])
    assert not is_complete([progress(0, {1})])
    assert is_complete([])


def test_a_great_count_costs_no_memory() -> None:
    """10^12 announced chunks are one range, never a set in memory."""
    count = 10**12
    seen = Intervals(((1, count),))
    assert is_complete([SenderProgress("t", "", 1, False, count, received=seen, applied=seen)])
    assert str(missing(progress(count, {2}))) == f"1, 3-{count}"


def test_missing_names_what_was_announced_and_not_received() -> None:
    assert str(missing(progress(5, {1, 3}))) == "2, 4-5"
    assert str(missing(progress(None, {1}))) == "none"
    received = SenderProgress("t", "", 1, False, 2, Intervals.of([1, 2]), Intervals.of([1]))
    assert str(missing(received)) == "none"


def test_whole_tables_are_announced_when_they_are_complete_whatever_the_others_are() -> None:
    some = [progress(1, {1}, table="w"), progress(None, {1}, table="t")]
    assert are_complete(some, ["w"])
    assert are_complete(some, [])
    assert not are_complete(some, ["w", "t"])
    assert not are_complete([progress(2, {1}, table="w")], ["w"])
