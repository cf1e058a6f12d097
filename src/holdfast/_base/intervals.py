"""Sets of positive numbers kept as ranges: 1..1000 is one pair, not a thousand entries.

Ordinals arrive nearly in order, so the set of those seen is nearly always one range. A plain set
rewritten at each commit would grow without end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter


@dataclass(frozen=True, slots=True)
class Intervals:
    """A set of integers as sorted, disjoint, non-adjacent inclusive ranges."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Intervals:
        """Return the set of `numbers`, given in any order, repeated or not."""
        return cls.merged((number, number) for number in numbers)

    @classmethod
    def merged(cls, pairs: Iterable[tuple[int, int]]) -> Intervals:
        """Return the union of inclusive ranges, given in any order, overlapping or not."""
        merged: list[tuple[int, int]] = []
        for low, high in sorted(pairs):
            if merged and low <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], high))
            else:
                merged.append((low, high))
        return cls(tuple(merged))

    @classmethod
    def first(cls, count: int) -> Intervals:
        """Return {1, ..., count}; the empty set for 0."""
        return cls(((1, count),)) if count > 0 else cls()

    def __len__(self) -> int:
        """Return how many numbers are in the set."""
        return sum(high - low + 1 for low, high in self.ranges)

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers in order."""
        for low, high in self.ranges:
            yield from range(low, high + 1)

    def __contains__(self, number: object) -> bool:
        """Tell whether `number` is in the set."""
        if not isinstance(number, int):
            return False
        place = bisect_right(self.ranges, number, key=itemgetter(0))
        return place > 0 and number <= self.ranges[place - 1][1]

    def add(self, number: int) -> Intervals:
        """Return the set with `number` in it."""
        return Intervals.merged([*self.ranges, (number, number)])

    def minus(self, other: Intervals) -> Intervals:
        """Return the numbers of this set that are not in `other`, going once through both."""
        rest: list[tuple[int, int]] = []
        taken, place = other.ranges, 0
        for low, high in self.ranges:
            start = low
            while place < len(taken) and taken[place][1] < low:
                place += 1
            while place < len(taken) and taken[place][0] <= high:
                taken_low, taken_high = taken[place]
                if taken_low > start:
                    rest.append((start, taken_low - 1))
                start = taken_high + 1
                if taken_high > high:
                    break  # it may reach into our next range, too
                place += 1
            if start <= high:
                rest.append((start, high))
        return Intervals(tuple(rest))

    def __str__(self) -> str:
        """Write the set for people: `1-4, 7, 9-12`, or `none`."""
        parts = (f"{lo}" if lo == hi else f"{lo}-{hi}" for lo, hi in self.ranges)
        return ", ".join(parts) or "none"
