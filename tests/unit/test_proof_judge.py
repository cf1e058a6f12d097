"""The judge of `make proof-paid` finds what is wrong: each kind of fault, put in by hand."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.proof.books import Plan, Seen, Verdict, judge

SLOTS = frozenset({"a", "b", "c"})


def verdict(
    plan: Plan,
    *,
    calls: dict[str, int] | None = None,
    attempts: dict[str, int] | None = None,
    seen: Seen | None = None,
) -> Verdict:
    counted = Counter({"a": 1, "b": 1, "c": 1} if calls is None else calls)
    answers: dict[str, list[str | None]] = {key: [f"{key} said"] for key in SLOTS}
    meant = dict.fromkeys(SLOTS, 1) | (attempts or {})
    found = seen or Seen(answers=answers)
    return judge(plan, Seen(), Counter({"a": 7}), found, counted, meant)


def plan(**changes: object) -> Plan:
    return Plan("x", 3, SLOTS, **changes)  # type: ignore[arg-type]  # keywords of each test


def good(**changes: list[str | None]) -> dict[str, list[str | None]]:
    return {"a": ["1"], "b": ["2"], "c": ["3"], **changes}


def test_each_slot_once_is_right() -> None:
    found = verdict(plan())
    assert found.wrong == ()
    assert (found.calls, found.plain_calls, found.bought_again) == (3, 7, 0)


def test_a_call_behind_the_ledgers_back_is_bought_again() -> None:
    found = verdict(plan(again="in doubt", most=3), calls={"a": 3, "b": 1, "c": 1})
    assert found.bought_again == 2
    assert "called 3 times" in found.wrong[0]


def test_what_the_policy_asked_again_is_listed() -> None:
    doubt = plan(again="in doubt", most=1)
    found = verdict(doubt, calls={"a": 2, "b": 1, "c": 1}, attempts={"a": 2})
    assert found.wrong == ()
    assert found.asked_again == {"a": 1}
    assert (found.bought_again, found.in_doubt) == (0, 1)


@pytest.mark.parametrize(
    ("changes", "calls", "word"),
    [
        ({}, {"a": 2, "b": 1, "c": 1}, "without a policy"),
        ({"again": "in doubt", "most": 0}, {"a": 2, "b": 1, "c": 1}, "at most 0"),
        ({"again": "refused", "keys": {"b"}}, {"a": 2, "b": 1, "c": 1}, "not refused"),
        ({}, {"a": 1, "b": 1}, "never called"),
        ({}, {"a": 1, "b": 1, "c": 1, "d": 1}, "nobody has"),
    ],
)
def test_wrong_calls(changes: dict[str, object], calls: dict[str, int], word: str) -> None:
    found = verdict(plan(**changes), calls=calls, attempts={"a": 2})
    assert len(found.wrong) == 1
    assert word in found.wrong[0]


@pytest.mark.parametrize(
    ("seen", "word"),
    [
        (Seen(outcome="aborted", answers=good()), "the job ended"),
        (Seen(answers=good(a=["1", "2"])), "has the answers"),
        (Seen(answers=good(a=[None])), "has the answers"),
        (Seen(answers={"a": ["1"], "b": ["2"]}), "have no answer"),
        (Seen(answers=good(), recorded={"a": 2}), "bought again"),
    ],
)
def test_wrong_answers(seen: Seen, word: str) -> None:
    found = verdict(plan(), seen=seen)
    assert len(found.wrong) == 1
    assert word in found.wrong[0]


def test_a_slot_without_an_answer_must_have_none() -> None:
    expected = plan(empty=frozenset({"a"}))
    assert verdict(expected, seen=Seen(answers=good(a=[None]))).wrong == ()
    assert verdict(expected, seen=Seen(answers=good())).wrong != ()
