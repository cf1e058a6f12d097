"""Figures: medians, spreads, rounds that alternate, and the table that shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.apps.coffee.oracle import write_answers
from holdfast.cli.coffee_race import CoffeeRace
from holdfast.cli.measure import Figure, in_turn, percentile, ratio, show, table
from holdfast.errors import InvariantViolated


def test_median_and_spread_come_from_the_values() -> None:
    figure = Figure("f", "s", (4.0, 1.0, 2.0, 3.0, 2.0))
    assert figure.median == 2.0
    assert figure.spread == 1.5


@pytest.mark.parametrize(
    ("value", "better", "reach", "reached"),
    [
        (1.0, "lower", 1.1, True),
        (1.1, "lower", 1.1, True),
        (1.2, "lower", 1.1, False),
        (1.0, "higher", 1.1, False),
        (1.2, "higher", 1.1, True),
        (1.0, "lower", None, None),
    ],
)
def test_reached_depends_on_which_way_is_better(
    value: float, better: Any, reach: float | None, reached: bool | None
) -> None:
    assert Figure("f", "s", (value,), better, reach).reached is reached


def test_a_figure_survives_its_json() -> None:
    figure = Figure("f", "records/s", (1.5, 2.5, 9.0), "higher", 2.0, "a note")
    assert Figure.from_json(json.loads(json.dumps(figure.as_json()))) == figure


def test_a_ratio_is_taken_round_by_round() -> None:
    """The median of ratios, not the ratio of medians: a slow minute hits both sides of a round."""
    made = ratio("r", [2.0, 20.0, 3.0], [1.0, 10.0, 3.0], reach=1.5)
    assert made.values == (2.0, 2.0, 1.0)
    assert (made.unit, made.median, made.reached) == ("x", 2.0, False)


def test_a_ratio_of_unequal_rounds_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        ratio("r", [1.0, 2.0], [1.0])


def test_sides_run_in_turn_and_every_second_round_backwards() -> None:
    ran: list[str] = []

    def side(name: str, value: float) -> Any:
        def run() -> float:
            ran.append(name)
            return value

        return run

    told: list[str] = []
    found = in_turn({"a": side("a", 1.0), "b": side("b", 2.0)}, 3, told.append)
    assert ran == ["a", "b", "b", "a", "a", "b"]
    assert found == {"a": [1.0] * 3, "b": [2.0] * 3}
    assert len(told) == 6


@pytest.mark.parametrize(
    ("share", "wanted"), [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (0.001, 1.0)]
)
def test_percentiles(share: float, wanted: float) -> None:
    assert percentile([float(n) for n in range(100, 0, -1)], share) == wanted


def test_the_p99_of_few_values_is_the_largest() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567.0, "1,234,567"),
        (123.4, "123"),
        (12.345, "12.35"),
        (0.5, "0.50"),
        (0.01234, "0.0123"),
    ],
)
def test_values_are_shown_with_the_digits_that_mean_something(value: float, text: str) -> None:
    assert show(value) == text


def test_the_table_says_what_was_reached_and_what_was_missed() -> None:
    good, bad = Figure("good", "x", (1.0, 1.1), reach=1.1), Figure("bad", "s", (2.0,), reach=1.0)
    plain = Figure("plain", "MiB", (100.0,))
    lines = table([good, bad, plain])
    assert len({len(line) for line in lines}) == 1, "columns are not aligned"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[2] == ["good", "1.05 x", "10%", "<= 1.10 x", "reached"]
    assert cells[3] == ["bad", "2.00 s", "0%", "<= 1.00 s", "MISSED"]
    assert cells[4] == ["plain", "100 MiB", "0%", "", ""]


def test_a_table_without_promises_is_aligned_too() -> None:
    lines = table([Figure("a", "s", (1.0,)), Figure("longer", "s", (1.0,))])
    assert len({len(line) for line in lines}) == 1
    assert set(lines[1]) == set("|- ")


def test_a_race_with_a_wrong_answer_stops(tmp_path: Path) -> None:
    """A quick wrong answer is no figure."""
    race = CoffeeRace(cast(Any, None), tmp_path, scale=0.001)
    assert race.checked(lambda: write_answers(race.right, race.out)) >= 0
    with pytest.raises(InvariantViolated, match="q1, q2_quantity, q2_profit, q3, q4"):
        race.checked(lambda: None)

    def spoil() -> None:
        write_answers(race.right, race.out)
        path = race.out / "q3.csv"
        path.write_text(path.read_text().replace("-H1,", "-H2,", 1))

    with pytest.raises(InvariantViolated, match=r"answers: q3\b"):
        race.checked(spoil)
