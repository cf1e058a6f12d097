"""Ranges behave as the sets they stand for."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from holdfast._base.intervals import Intervals

NUMBERS = st.sets(st.integers(1, 40))


@given(NUMBERS)
def test_a_set_is_kept_exactly(numbers: set[int]) -> None:
    kept = Intervals.of(numbers)
    assert set(kept) == numbers
    assert list(kept) == sorted(numbers)
    assert len(kept) == len(numbers)
    assert all((number in kept) is (number in numbers) for number in range(42))
    assert "1" not in kept


@given(NUMBERS)
def test_there_is_one_way_to_write_a_set(numbers: set[int]) -> None:
    """Sorted, disjoint, with a gap between: so equal sets are equal values."""
    ranges = Intervals.of(numbers).ranges
    assert all(low <= high for low, high in ranges)
    assert all(left[1] + 1 < right[0] for left, right in itertools.pairwise(ranges))
    assert Intervals.of(sorted(numbers, reverse=True)) == Intervals.of(numbers)


@given(NUMBERS, NUMBERS)
def test_difference_and_union(first: set[int], second: set[int]) -> None:
    left, right = Intervals.of(first), Intervals.of(second)
    assert left.minus(right) == Intervals.of(first - second)
    assert Intervals.merged([*left.ranges, *right.ranges]) == Intervals.of(first | second)


@given(NUMBERS, st.integers(1, 40))
def test_adding(numbers: set[int], number: int) -> None:
    assert Intervals.of(numbers).add(number) == Intervals.of(numbers | {number})


@given(st.integers(-2, 50))
def test_the_first_numbers(count: int) -> None:
    assert set(Intervals.first(count)) == set(range(1, count + 1))


def test_for_people() -> None:
    assert str(Intervals.of([1, 2, 3, 7, 9, 10])) == "1-3, 7, 9-10"
    assert str(Intervals()) == "none"
