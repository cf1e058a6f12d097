"""`python -m bench.compare OLD NEW`: fails on a regression beyond the noise that was measured.

OLD and NEW are result files or directories of them. A figure is worse if its median moved in the
wrong direction by more than the larger of both spreads, and by at least a tenth. One that was
measured once says nothing of its noise: it is shown and not judged. If the two were measured on
different machines, or at different sizes, only ratios are compared.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.harness import read_result, say
from holdfast.cli.measure import RATIO, Figure, show

NOISE_MIN = 0.1
"""Five runs on a machine that others use as well do not tell less than this apart."""
TWICE = 2.0
MACHINE = ("cpu", "cores", "memory_gib")
"""The facts by which two machines are held to be alike."""


@dataclass(frozen=True, slots=True)
class Change:
    """How one figure moved; `worsening` 0.2 means that it is a fifth worse, below 0 better."""

    old: Figure
    new: Figure

    @property
    def worsening(self) -> float:
        """How much worse the new median is, as a share of the old one."""
        if self.old.median == 0:
            return 0.0
        moved = self.new.median / self.old.median - 1
        return moved if self.new.better == "lower" else _inverse(moved)

    @property
    def noise(self) -> float:
        """How much of a move means nothing."""
        return max(NOISE_MIN, self.old.spread, self.new.spread)

    @property
    def is_judged(self) -> bool:
        """Whether both sides measured their noise."""
        return min(len(self.old.values), len(self.new.values)) > 1

    @property
    def regressed(self) -> bool:
        """Whether the figure is worse by more than noise."""
        return self.is_judged and self.worsening > self.noise


def _inverse(moved: float) -> float:
    """Return how much longer the same work takes at a rate that moved: half the rate is 1.0."""
    return float("inf") if moved <= -1 else 1 / (1 + moved) - 1


def changes(old: Iterable[Figure], new: Iterable[Figure], *, ratios_only: bool) -> list[Change]:
    """Pair figures by name; what only one side has is left out."""
    before = {one.name: one for one in old}
    return [
        Change(before[one.name], one)
        for one in new
        if one.name in before and (one.unit == RATIO or not ratios_only)
    ]


def beside(old: Sequence[Figure], new: Sequence[Figure]) -> tuple[list[str], list[str]]:
    """Return lines with the ratios of both, and the names of those more than twice as bad.

    One that varied by more than that within a run has to be worse by as much.
    """
    paired = changes(old, new, ratios_only=True)
    lines = [
        f"{one.new.name}: {show(one.new.median)} now, {show(one.old.median)} committed"
        for one in paired
    ]
    return lines, [one.new.name for one in paired if one.worsening > max(TWICE - 1, one.noise)]


def compare_files(old: Path, new: Path) -> tuple[list[Change], bool]:
    """Return the changes between two result files, and whether all figures were compared."""
    old_facts, old_figures = read_result(old)
    new_facts, new_figures = read_result(new)
    alike = all(old_facts["machine"][fact] == new_facts["machine"][fact] for fact in MACHINE)
    alike = alike and old_facts["settings"]["size"] == new_facts["settings"]["size"]
    return changes(old_figures, new_figures, ratios_only=not alike), alike


def pairs_of(old: Path, new: Path) -> list[tuple[Path, Path]]:
    """Return which file is compared with which."""
    if new.is_file():
        return [(old / new.name if old.is_dir() else old, new)]
    names = {path.name for path in old.glob("*.json")} & {path.name for path in new.glob("*.json")}
    return [(old / name, new / name) for name in sorted(names)]


def main() -> None:
    """Print every change; exit with 1 if one is a regression, with 2 if nothing was compared."""
    parser = argparse.ArgumentParser(prog="bench.compare")
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    options = parser.parse_args()
    regressions = compared = 0
    for old, new in pairs_of(options.old, options.new):
        found, alike = compare_files(old, new)
        if not alike:
            say(f"{new.name}: another machine or size, so only ratios are compared")
        for one in found:
            mark = "WORSE" if one.regressed else ""
            moved = f"{abs(one.worsening):.0%} {'worse' if one.worsening > 0 else 'better'}"
            noise = f"noise {one.noise:.0%}" if one.is_judged else "measured once: not judged"
            say(
                f"{one.new.name}: {show(one.old.median)} -> {show(one.new.median)} {one.new.unit}"
                f" ({moved}, {noise}) {mark}".rstrip()
            )
        regressions += sum(one.regressed for one in found)
        compared += len(found)
    if not compared:
        say("nothing to compare: no figure is in both")
        sys.exit(2)
    say(f"{compared} figures compared, {regressions} worse beyond noise")
    sys.exit(1 if regressions else 0)


if __name__ == "__main__":
    main()
