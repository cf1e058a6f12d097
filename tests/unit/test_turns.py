"""Whose turn it is: clients share by weight, whatever they want and however they cut it."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast._base.ids import RunId
from holdfast.engine.turns import TURN_BYTES_MIN, Turns
from holdfast.store.rows import ReadyRun

MIB = 1 << 20


def run(name: str) -> ReadyRun:
    """Return a run whose client is the first letter of its name."""
    return ReadyRun(RunId(name), name[0])


def served(turns: Turns, candidates: list[ReadyRun], count: int, size: int) -> list[str]:
    """Return who gets the next `count` turns, one at a time."""
    found = []
    for _ in range(count):
        chosen = turns.choose(candidates, 0.0)
        assert chosen is not None
        found.append(str(chosen.run_id))
        turns.end(chosen.run_id, size, 0.0)
    return found


def test_who_comes_late_is_served_next_and_owes_nothing() -> None:
    """1 MB beside 10 GB: the small one has its turns at once, and the large one goes on."""
    turns = Turns()
    served(turns, [run("a")], 50, 64 * MIB)
    both = [run("a"), run("b")]
    first = served(turns, both, 6, 64 * MIB)
    assert first.count("b") == 3
    assert "b" in first[:2]


def test_time_away_earns_nothing() -> None:
    turns = Turns()
    served(turns, [run("a"), run("b")], 10, 64 * MIB)
    served(turns, [run("a")], 50, 64 * MIB)
    back = served(turns, [run("a"), run("b")], 10, 64 * MIB)
    assert abs(back.count("b") - 5) <= 1


def test_many_runs_of_one_client_share_its_part() -> None:
    turns = Turns()
    candidates = [run("a1"), run("a2"), run("a3"), run("b1")]
    counts = Counter(served(turns, candidates, 60, 64 * MIB))
    assert counts["b1"] == 30
    assert [counts[name] for name in ("a1", "a2", "a3")] == [10, 10, 10]


def test_tiny_turns_are_not_free() -> None:
    """A client of tiny runs gets its share of turns, not all of them."""
    turns = Turns()
    counts: Counter[str] = Counter()
    for _ in range(100):
        chosen = turns.choose([run("a"), run("b")], 0.0)
        assert chosen is not None
        counts[chosen.client] += 1
        turns.end(chosen.run_id, 100 if chosen.client == "a" else TURN_BYTES_MIN, 0.0)
    assert counts == {"a": 50, "b": 50}


def test_weights() -> None:
    turns = Turns()
    heavy = ReadyRun(RunId("a"), "a", weight=3)
    counts = Counter(served(turns, [heavy, run("b")], 80, 64 * MIB))
    assert counts == {"a": 60, "b": 20}


def test_a_run_has_one_turn_at_a_time_and_a_second_place_goes_to_another_client() -> None:
    turns = Turns()
    candidates = [run("a1"), run("a2"), run("b1")]
    chosen = [turns.choose(candidates, 0.0) for _ in range(4)]
    names = [one.run_id if one else None for one in chosen]
    assert names[0] is not None
    assert {str(names[0])[0], str(names[1])[0]} == {"a", "b"}
    assert sorted(str(name) for name in names[:3]) == ["a1", "a2", "b1"]
    assert names[3] is None
    assert turns.under_way == 3


def test_who_has_nothing_to_do_rests_longer_each_time_and_wakes() -> None:
    turns = Turns()
    now_s, rests = 0.0, []
    for _ in range(8):
        began_s = now_s
        while turns.choose([run("a")], now_s) is None:
            now_s += 0.005
        turns.end(RunId("a"), None, now_s)
        rests.append(now_s - began_s)
    assert rests[0] == 0.0
    assert 0.02 <= rests[1] < 0.03
    assert rests[1:] == sorted(rests[1:])
    assert 0.25 <= rests[-1] < 0.26


def test_work_ends_a_rest() -> None:
    turns = Turns()
    for _ in range(5):
        assert turns.choose([run("a")], 100.0) is not None
        turns.end(RunId("a"), None, 0.0)
    turns.choose([run("a")], 100.0)
    turns.end(RunId("a"), MIB, 100.0)
    assert turns.choose([run("a")], 100.0) is not None


def test_a_run_that_is_troubled_is_left_alone_and_keeps_nobody_up() -> None:
    turns = Turns()
    chosen = turns.choose([run("a")], 0.0)
    assert chosen is not None
    turns.end(chosen.run_id, None, 0.0)
    turns.rest(chosen.run_id, 5.0, 0.0)
    assert turns.choose([run("a")], 4.9) is None
    other = turns.choose([run("a"), run("b")], 4.9)
    assert other == run("b")
    assert turns.choose([run("a")], 5.0) == run("a")


def test_a_turn_is_short_while_others_wait() -> None:
    turns = Turns()
    chosen = turns.choose([run("a"), run("b")], 0.0)
    assert chosen is not None
    assert turns.is_contended([run("a"), run("b")], chosen)
    assert not turns.is_contended([chosen], chosen)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 64 * MIB), min_size=2, max_size=5),
    places=st.integers(1, 3),
    count=st.integers(50, 150),
)
def test_nobody_falls_behind_by_more_than_a_turn(sizes: list[int], places: int, count: int) -> None:
    """Whatever the sizes of turns: what was done for two clients differs by some turns only,
    as long as there are fewer places than clients: else everybody is always under way.
    """
    places = min(places, len(sizes) - 1)
    turns = Turns()
    candidates = [run(chr(ord("a") + n) + str(n)) for n in range(len(sizes))]
    done: Counter[str] = Counter()
    under_way: list[ReadyRun] = []
    for _ in range(count):
        while len(under_way) < places:
            chosen = turns.choose(candidates, 0.0)
            assert chosen is not None
            under_way.append(chosen)
        ended = under_way.pop(0)
        size = max(sizes[ord(ended.client) - ord("a")], TURN_BYTES_MIN)
        done[ended.client] += size
        turns.end(ended.run_id, size, 0.0)
    largest = max(*sizes, TURN_BYTES_MIN)
    ahead = max(done[one.client] for one in candidates)
    behind = min(done[one.client] for one in candidates if one not in under_way)
    assert ahead - behind <= (places + 2) * largest
