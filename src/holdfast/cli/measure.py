"""Figures: what is measured, how often, and how they are printed. No figure stands alone: what is
compared is run in turn, several times, and each figure keeps all its values.

The spread of a figure is the distance of its outermost values over its median: what this machine
did to the same work within one run. A difference below it means nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from holdfast._base.clock import SystemClock

Better = Literal["lower", "higher"]
RATIO = "x"
"""The unit of a ratio: the only kind of figure that may be compared between machines."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured thing, all its values, and what it should reach."""

    name: str
    unit: str
    values: tuple[float, ...]
    better: Better = "lower"
    reach: float | None = None
    note: str = ""

    @property
    def median(self) -> float:
        """The value in the middle."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """The distance of the outermost values, over the median."""
        return (max(self.values) - min(self.values)) / abs(self.median) if self.median else 0.0

    @property
    def reached(self) -> bool | None:
        """Whether the median reaches what it should. None: nothing was promised."""
        if self.reach is None:
            return None
        return self.median <= self.reach if self.better == "lower" else self.median >= self.reach

    def as_json(self) -> dict[str, Any]:
        """Return the figure as a result file holds it."""
        return {
            "name": self.name,
            "unit": self.unit,
            "better": self.better,
            "reach": self.reach,
            "note": self.note,
            "median": self.median,
            "spread": self.spread,
            "values": list(self.values),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Return the figure that `as_json` wrote; median and spread are computed anew."""
        return cls(
            name=found["name"],
            unit=found["unit"],
            values=tuple(found["values"]),
            better=found["better"],
            reach=found["reach"],
            note=found["note"],
        )


def ratio(
    name: str,
    above: Sequence[float],
    below: Sequence[float],
    *,
    reach: float | None = None,
    better: Better = "lower",
    note: str = "",
) -> Figure:
    """Return the ratio of two things measured in turn: one value per round, round by round."""
    values = tuple(a / b for a, b in zip(above, below, strict=True))
    return Figure(name, RATIO, values, better, reach, note)


def in_turn(
    sides: Mapping[str, Callable[[], float]], rounds: int, told: Callable[[str], None]
) -> dict[str, list[float]]:
    """Run every side once a round and return what each returned, by name.

    Every second round runs backwards, so that no side always follows the same other one.
    """
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides)[:: 1 if number % 2 == 0 else -1]:
            value = sides[name]()
            told(f"  round {number + 1} of {rounds}: {name} {value:,.2f}")
            found[name].append(value)
    return found


def stopwatch(work: Callable[[], object]) -> float:
    """Return how many seconds some work takes."""
    clock = SystemClock()
    started = clock.monotonic_s()
    work()
    return clock.monotonic_s() - started


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def show(value: float) -> str:
    """Print a value with three significant digits or more, and thousands apart."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 0.1 else f"{value:.2f}"


def table(figures: Iterable[Figure]) -> list[str]:
    """Return the lines of a Markdown table of figures."""
    rows = [("what", "median", "spread", "reach", "")]
    for one in figures:
        sign = "<=" if one.better == "lower" else ">="
        reach = "" if one.reach is None else f"{sign} {show(one.reach)} {one.unit}"
        verdict = {None: "", True: "reached", False: "MISSED"}[one.reached]
        median = f"{show(one.median)} {one.unit}".strip()
        rows.append((one.name, median, f"{one.spread:.0%}", reach, verdict))
    widths = [max(3, *(len(row[column]) for row in rows)) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    rule = "| " + " | ".join("-" * width for width in widths) + " |"
    return [lines[0], rule, *lines[1:]]
