"""The comparison of result files with the known answers: it sees every seeded mistake."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.apps.coffee.compare import MAX_DIFFERENCES, Comparison, Difference, compare
from holdfast.apps.coffee.oracle import Answers, Row, answers, write_answers

Mutant = Callable[[list[Row]], list[Row]]


@pytest.fixture(scope="module")
def expected() -> Answers:
    return answers(scale=0.0005, seed=1, hard=True)


def mutate(out: Path, name: str, mutant: Mutant) -> None:
    """Change the rows of a result file, not its header."""
    path = out / f"{name}.csv"
    with path.open(newline="") as file:
        header, *rows = [tuple(row) for row in csv.reader(file)]
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *mutant(rows)])


def found(out: Path, expected: Answers, name: str) -> Comparison:
    """Compare all files: every other one must be equal."""
    comparisons = {comparison.name: comparison for comparison in compare(out, expected)}
    assert list(comparisons) == ["q1", "q2_quantity", "q2_profit", "q3", "q4"]
    mine = comparisons.pop(name)
    assert all(comparison.equal for comparison in comparisons.values())
    return mine


def test_right_answers_are_equal(expected: Answers, tmp_path: Path) -> None:
    """Compare the files the oracle writes."""
    write_answers(expected, tmp_path)
    assert all(comparison.equal for comparison in compare(tmp_path, expected))


@pytest.mark.parametrize("name", ["q1", "q2_quantity", "q2_profit", "q3", "q4"])
@pytest.mark.parametrize(
    ("mutant", "lost", "duplicated", "wrong"),
    [
        (lambda rows: rows[:4] + rows[5:], 1, 0, 0),
        (lambda rows: rows[:4] + rows[3:], 0, 1, 0),
        (lambda rows: [rows[1], *rows[1:]], 1, 1, 0),
        (lambda rows: [*rows[:-1], (*rows[-1][:-1], "never")], 0, 0, 1),
        (lambda rows: [*rows[:-1], ("none such",) * len(rows[0])], 1, 0, 1),
        (lambda rows: [*rows, ("one", "more")], 0, 0, 1),
        (lambda rows: [], None, 0, 0),
    ],
    ids=["drop", "double", "swap", "change", "replace", "add", "empty"],
)
def test_a_mutant_is_told_apart(
    expected: Answers,
    tmp_path: Path,
    name: str,
    mutant: Mutant,
    lost: int | None,
    duplicated: int,
    wrong: int,
) -> None:
    """Seed one mistake into one file; the counts must name it and only it."""
    write_answers(expected, tmp_path)
    mutate(tmp_path, name, mutant)
    comparison = found(tmp_path, expected, name)
    assert not comparison.same_rows
    assert not comparison.equal
    assert comparison.lost == (comparison.rows_expected if lost is None else lost)
    assert (comparison.duplicated, comparison.wrong) == (duplicated, wrong)
    assert 1 <= len(comparison.differences) <= MAX_DIFFERENCES


@pytest.mark.parametrize("name", ["q1", "q2_quantity", "q2_profit", "q3", "q4"])
def test_another_order_is_seen_although_the_rows_are_the_same(
    expected: Answers, tmp_path: Path, name: str
) -> None:
    """Exchange the first and the last row."""
    write_answers(expected, tmp_path)
    mutate(tmp_path, name, lambda rows: [rows[-1], *rows[1:-1], rows[0]])
    comparison = found(tmp_path, expected, name)
    assert comparison.same_rows
    assert not comparison.equal
    rows = next(answer.rows for answer in expected if answer.name == name)
    assert comparison.differences[0] == Difference(1, rows[0], rows[-1])
    assert comparison.differences[1] == Difference(len(rows), rows[-1], rows[0])


def test_a_lost_copy_of_a_legitimate_duplicate_is_lost(expected: Answers, tmp_path: Path) -> None:
    """Deduplicate q1, in which one row stands twice: a comparison of sets would not see it."""
    write_answers(expected, tmp_path)
    mutate(tmp_path, "q1", lambda rows: list(dict.fromkeys(rows)))
    comparison = found(tmp_path, expected, "q1")
    assert (comparison.lost, comparison.duplicated, comparison.wrong) == (1, 0, 0)


def test_an_amount_in_another_form_is_wrong(expected: Answers, tmp_path: Path) -> None:
    """Print 75.0 as 75.00: equal as a number, not as an answer."""
    write_answers(expected, tmp_path)
    mutate(tmp_path, "q1", lambda rows: [(i, a.replace("75.005", "75.0050")) for i, a in rows])
    assert found(tmp_path, expected, "q1").wrong == 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "does not exist"),
        (b"", "has the header"),
        (b"store,birthdate\n", "has the header"),
        (b"\xff\xfe\n", "is not CSV text"),
    ],
)
def test_an_unusable_file_is_a_problem_with_a_name(
    expected: Answers, tmp_path: Path, content: bytes | None, problem: str
) -> None:
    """Remove, empty, rename the columns of and garble a file."""
    write_answers(expected, tmp_path)
    path = tmp_path / "q4.csv"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    comparison = found(tmp_path, expected, "q4")
    assert comparison.problem is not None
    assert problem in comparison.problem
    assert str(path) in comparison.problem
    assert not comparison.equal
    assert comparison.lost == comparison.rows_expected
