"""Compares result files with the known answers, row by row.

Rows are compared as multisets with multiplicity, and then in order. What differs is sorted into
three kinds, so that the cause shows:

- lost: an expected row that is not there, nor anything in its place;
- duplicated: a copy too many of an expected row;
- wrong: a row that was not expected at all. It takes the place of a missing row with the same key
  (the columns that name what the row is about), which then does not count as lost.
"""

import csv
from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Final

from holdfast.apps.coffee.oracle import Answer, Answers, Row

KEY_COLUMNS: Final = {"q1": 1, "q2_quantity": 1, "q2_profit": 1, "q3": 2, "q4": 1}
# More would not help a reader to see the cause.
MAX_DIFFERENCES: Final = 3


@dataclass(frozen=True, slots=True)
class Difference:
    """The rows that stand at the same place, counted from 1; None where one side has ended."""

    position: int
    expected: Row | None
    found: Row | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is wrong with one result file.

    `problem` says why the rows could not be compared as they should: no file, no CSV, another
    header.
    """

    name: str
    rows_expected: int
    rows_found: int
    lost: int
    duplicated: int
    wrong: int
    differences: tuple[Difference, ...]
    problem: str | None = None

    @property
    def same_rows(self) -> bool:
        """Whether the file holds the expected rows, each as often as expected, in any order."""
        return self.problem is None and self.lost == self.duplicated == self.wrong == 0

    @property
    def equal(self) -> bool:
        """Whether the file holds the expected rows in the expected order."""
        return self.same_rows and not self.differences


def compare(out_dir: Path, answers: Answers) -> list[Comparison]:
    """Compare q1.csv to q4.csv of a directory with the answers, one result per file.

    A missing file is a result, not an error: all its rows are lost.
    """
    return [compare_answer(out_dir / f"{answer.name}.csv", answer) for answer in answers]


def compare_answer(path: Path, answer: Answer) -> Comparison:
    """Compare one result file with its answer."""
    problem = None
    rows: list[Row] = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = [tuple(row) for row in csv.reader(file)] or [()]
    except FileNotFoundError:
        problem = f"{path} does not exist"
    except (csv.Error, UnicodeDecodeError) as error:
        problem = f"{path} is not CSV text in UTF-8: {error}"
    else:
        if header != answer.header:
            problem = f"{path} has the header {','.join(header)}, not {','.join(answer.header)}"
    lost, duplicated, wrong = _tell_apart(answer, rows)
    return Comparison(
        name=answer.name,
        rows_expected=len(answer.rows),
        rows_found=len(rows),
        lost=lost,
        duplicated=duplicated,
        wrong=wrong,
        differences=_first_differences(expected=answer.rows, found=tuple(rows)),
        problem=problem,
    )


def _tell_apart(answer: Answer, rows: list[Row]) -> tuple[int, int, int]:
    """Count the rows lost, duplicated and wrong."""
    expected, found = Counter(answer.rows), Counter(rows)
    surplus = found - expected
    duplicated = sum(count for row, count in surplus.items() if row in expected)
    wrong = surplus.total() - duplicated
    width = KEY_COLUMNS[answer.name]
    missing_keys: Counter[Row] = Counter()
    for row, count in (expected - found).items():
        missing_keys[row[:width]] += count
    wrong_keys: Counter[Row] = Counter()
    for row, count in surplus.items():
        if row not in expected:
            wrong_keys[row[:width]] += count
    return (missing_keys - wrong_keys).total(), duplicated, wrong


def _first_differences(
    *, expected: tuple[Row, ...], found: tuple[Row, ...]
) -> tuple[Difference, ...]:
    """Return the first places at which the two lists differ."""
    differences: list[Difference] = []
    for position, (ours, theirs) in enumerate(zip_longest(expected, found), start=1):
        if ours != theirs:
            differences.append(Difference(position, ours, theirs))
            if len(differences) == MAX_DIFFERENCES:
                break
    return tuple(differences)
