"""Sets of positive numbers kept as ranges: 1..1000 is one pair, not a thousand entries.

Ordinals arrive nearly in order, so the set of those seen is nearly always one range. A plain set
rewritten at each commit would grow without end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


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
        return isinstance(number, int) and any(lo <= number <= hi for lo, hi in self.ranges)

    def add(self, number: int) -> Intervals:
        """Return the set with `number` in it."""
        return Intervals.merged([*self.ranges, (number, number)])

    def minus(self, other: Intervals) -> Intervals:
        """Return the numbers of this set that are not in `other`."""
        rest: list[tuple[int, int]] = []
        for low, high in self.ranges:
            start = low
            for other_low, other_high in other.ranges:
                if other_high < start or other_low > high:
                    continue
                if other_low > start:
                    rest.append((start, other_low - 1))
                start = other_high + 1
            if start <= high:
                rest.append((start, high))
        return Intervals(tuple(rest))

    def __str__(self) -> str:
        """Write the set for people: `1-4, 7, 9-12`, or `none`."""
        parts = (f"{lo}" if lo == hi else f"{lo}-{hi}" for lo, hi in self.ranges)
        return ", ".join(parts) or "none"
