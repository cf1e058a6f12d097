"""The coffee-shop oracle: it agrees with a naive implementation, and its printing and hash."""

from pathlib import Path

import pytest
from tests.unit.coffee_naive import naive_answers

from holdfast.apps.coffee.generator import generate
from holdfast.apps.coffee.oracle import Answers, answers, order_free_hash, write_answers


def as_lists(computed: Answers) -> dict[str, list[tuple[str, ...]]]:
    return {answer.name: list(answer.rows) for answer in computed}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("scale", [0.0005, 0.0012])
def test_oracle_agrees_with_the_naive_implementation(
    scale: float, hard: bool, seed: int, tmp_path: Path
) -> None:
    """Generate files, compute the answers from them with csv and Decimal, and compare in order."""
    generate(tmp_path / "data", scale=scale, seed=seed, hard=hard)
    computed = answers(scale=scale, seed=seed, hard=hard)
    assert as_lists(computed) == naive_answers(tmp_path / "data")
    assert computed.q1_count > 10
    assert len(computed.q2_quantity.rows) == len(computed.q2_profit.rows) == 18
    assert len(computed.q3.rows) == (30 if not hard else 30 + 1 + 1 + 2)
    assert len(computed.q4.rows) == (30 if not hard else 30 + 2 + 3 + 1)


@pytest.mark.parametrize("hard", [False, True])
def test_almost_no_rows_are_no_problem(hard: bool, tmp_path: Path) -> None:
    """Generate a scale at which most days, and most months' users, have no row."""
    generate(tmp_path / "data", scale=0.000001, seed=1, hard=hard)
    computed = answers(scale=0.000001, seed=1, hard=hard)
    assert as_lists(computed) == naive_answers(tmp_path / "data")


def test_answers_of_two_seeds_differ_in_every_query() -> None:
    """Compare two clients' answers: a leak between them would have to show."""
    for hard in (False, True):
        one = answers(scale=0.0005, seed=1, hard=hard)
        two = answers(scale=0.0005, seed=2, hard=hard)
        assert all(a.rows != b.rows for a, b in zip(one, two, strict=True))
        assert not {row[0] for row in one.q1.rows} & {row[0] for row in two.q1.rows}
        assert one.q1_hash != two.q1_hash


def test_hard_rows_are_answered_as_the_tie_rules_say() -> None:
    """Look at the stores of hard mode, whose answers are known by construction."""
    computed = answers(scale=0.0012, seed=1, hard=True)
    ranking = [birthdate for store, birthdate in computed.q4.rows if store == "G Coffee @ Ranking"]
    few = [birthdate for store, birthdate in computed.q4.rows if store.endswith(", East")]
    assert ranking[0] == few[0] == ""
    assert len(ranking) == 3
    assert len(few) == 2
    assert few[1] in ranking
    assert [row for row in computed.q3.rows if row[1] == "99"] == [
        ("2024-H2", "99", "80.0"),
        ("2025-H1", "99", "80.0"),
    ]
    amounts = [amount for _, amount in computed.q1.rows]
    assert amounts.count("75.005") == 1
    assert "74.995" not in amounts


def test_twins_count_twice_in_q1() -> None:
    """Find the transaction that stands twice in its file twice in the answer."""
    rows = answers(scale=0.0005, seed=1, hard=True).q1.rows
    assert len(rows) - len(set(rows)) == 1


def test_written_answers_have_the_published_form(tmp_path: Path) -> None:
    """Write the answers twice into one place and read the bytes."""
    computed = answers(scale=0.0005, seed=1, hard=True)
    write_answers(computed, tmp_path / "deep" / "out")
    write_answers(computed, tmp_path / "deep" / "out")
    texts = {path.name: path.read_bytes() for path in (tmp_path / "deep" / "out").iterdir()}
    assert set(texts) == {"q1.csv", "q2_quantity.csv", "q2_profit.csv", "q3.csv", "q4.csv"}
    assert texts["q1.csv"].startswith(b"transaction_id,final_amount\n")
    assert texts["q4.csv"].startswith(b"store_name,birthdate\n")
    assert b'\n2024-H1,"G Coffee @ Pier 11, East",' not in texts["q3.csv"]
    assert b'\n2024-H2,"G Coffee @ Pier 11, East",80.0\n' in texts["q3.csv"]
    assert b'\n2024-05,"Matcha Latte, Iced",' in texts["q2_profit.csv"]
    assert all(b"\r" not in text and text.endswith(b"\n") for text in texts.values())
    assert texts["q1.csv"].count(b"\n") == computed.q1_count + 1


def test_hash_ignores_order_and_sees_loss_and_duplication() -> None:
    """Hash rows reordered, doubled, dropped and changed."""
    rows = [("a", "75.0"), ("b", "76.095"), ("c", "80.0")]
    whole = order_free_hash(rows)
    assert len(whole) == 32
    assert order_free_hash(reversed(rows)) == whole
    others = [rows[:2], [*rows, rows[0]], [*rows, rows[0], rows[0]], [*rows[:2], ("c", "80.5")]]
    hashes = {order_free_hash(other) for other in others}
    assert len(hashes | {whole}) == len(others) + 1
    assert order_free_hash([]) == "0" * 32
