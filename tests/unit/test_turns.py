"""Whose turn it is: clients share by weight, whatever they want and however they cut it."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast._base.ids import RunId
from holdfast.engine.turns import TURN_BYTES_MIN, Turns
from holdfast.store.rows import ReadyRun

MIB = 1 << 20
SHORT = 16 * MIB


def run(name: str) -> ReadyRun:
    """Return a run whose client is the first letter of its name."""
    return ReadyRun(RunId(name), name[0])


def result(name: str, size: int = 1 << 30) -> ReadyRun:
    """Return a run of which only the results are left."""
    return ReadyRun(RunId(name), name[0], undivided_bytes=size)


def turns_of(places: int = 2) -> Turns:
    return Turns(places=places, short_bytes=SHORT)


def begun(turns: Turns, candidates: list[ReadyRun], places: int = 2) -> list[str]:
    """Return who gets the places that are free, in order."""
    found = []
    while turns.under_way < places:
        chosen = turns.choose(candidates, 0.0)
        if chosen is None:
            break
        found.append(str(chosen.run_id))
    return found


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
    turns = turns_of()
    served(turns, [run("a")], 50, 64 * MIB)
    both = [run("a"), run("b")]
    first = served(turns, both, 6, 64 * MIB)
    assert first.count("b") == 3
    assert "b" in first[:2]


def test_time_away_earns_nothing() -> None:
    turns = turns_of()
    served(turns, [run("a"), run("b")], 10, 64 * MIB)
    served(turns, [run("a")], 50, 64 * MIB)
    back = served(turns, [run("a"), run("b")], 10, 64 * MIB)
    assert abs(back.count("b") - 5) <= 1


def passed(
    turns: Turns,
    candidates: list[ReadyRun],
    count: int,
    *,
    stalled: tuple[str, ...] = (),
    from_s: float = 0.0,
) -> Counter[str]:
    """Give `count` turns one at a time, 0.1 s each; returns how many of each client gave something:
    those of `stalled` runs find nothing to do, like one that waits for an END.
    """
    found: Counter[str] = Counter()
    for number in range(count):
        now_s = from_s + number * 0.1
        chosen = turns.choose(candidates, now_s)
        assert chosen is not None
        is_stalled = chosen.run_id in stalled
        turns.end(chosen.run_id, None if is_stalled else SHORT, now_s)
        found[chosen.client] += not is_stalled
    return found


def test_a_newcomer_shares_with_who_is_served_however_long_another_has_been_stalled() -> None:
    """Or whoever was served all that time would stand still until the newcomer had as much."""
    turns = turns_of()
    passed(turns, [run("x"), run("y")], 500, stalled=("x",))
    found = passed(turns, [run("x"), run("y"), run("z")], 100, stalled=("x",), from_s=50.0)
    assert found["x"] == 0
    assert abs(found["y"] - found["z"]) <= 1


def test_who_was_stalled_starts_again_like_a_newcomer() -> None:
    """It has its next turn soon, and no more than its share after that."""
    turns = turns_of()
    both = [run("x"), run("y")]
    passed(turns, both, 500, stalled=("x",))
    assert passed(turns, both, 10, from_s=51.0)["x"] in (4, 5, 6)


def test_who_stalls_keeps_what_it_owes() -> None:
    """It had a large result, and the others are to have as much before it is next."""
    turns = turns_of()
    both = [run("x"), run("y")]
    assert begun(turns, both) == ["x", "y"]
    turns.end(RunId("x"), 20 * SHORT, 0.0)
    assert turns.choose(both, 0.0) == run("x")
    turns.end(RunId("x"), None, 0.0)
    turns.end(RunId("y"), SHORT, 0.0)
    assert passed(turns, both, 19, from_s=1.0)["x"] == 0


def test_while_all_are_stalled_a_newcomer_begins_where_they_are() -> None:
    turns = turns_of()
    passed(turns, [run("x")], 50)
    passed(turns, [run("x")], 1, stalled=("x",))
    both = [run("y"), run("x")]
    assert abs(passed(turns, both, 20, from_s=1.0)["x"] - 10) <= 1


def test_a_stalled_run_does_not_make_its_client_absent() -> None:
    """Nor do works that are all under way: a newcomer starts at what was done for it."""
    turns = turns_of(3)
    passed(turns, [run("x1"), run("x2")], 50, stalled=("x1",))
    assert turns.choose([run("x2")], 9.0) == run("x2")
    assert turns.choose([run("x1"), run("x2"), run("z")], 9.0) == run("z")
    for name in ("x2", "z"):
        turns.end(RunId(name), SHORT, 9.0)
    found = passed(turns, [run("x1"), run("x2"), run("z")], 60, stalled=("x1",), from_s=9.0)
    assert abs(found["x"] - found["z"]) <= 1


def test_a_stalled_run_shortens_nobodys_turns_until_it_works_again() -> None:
    turns = turns_of()
    both = [run("x"), run("y")]
    assert turns.choose(both, 0.0) == run("x")
    turns.end(RunId("x"), None, 0.0)
    assert turns.choose(both, 0.0) == run("y")
    assert not turns.is_contended(both, run("y"))
    turns.end(RunId("y"), SHORT, 0.0)
    assert turns.choose(both, 100.0) == run("x")
    assert turns.is_contended(both, run("x")), "it may have work, and the other waits"
    turns.end(RunId("x"), SHORT, 100.0)
    assert turns.is_contended(both, run("y"))


def test_many_runs_of_one_client_share_its_part() -> None:
    turns = turns_of()
    candidates = [run("a1"), run("a2"), run("a3"), run("b1")]
    counts = Counter(served(turns, candidates, 60, 64 * MIB))
    assert counts["b1"] == 30
    assert [counts[name] for name in ("a1", "a2", "a3")] == [10, 10, 10]


def test_tiny_turns_are_not_free() -> None:
    """A client of tiny runs gets its share of turns, not all of them."""
    turns = turns_of()
    counts: Counter[str] = Counter()
    for _ in range(100):
        chosen = turns.choose([run("a"), run("b")], 0.0)
        assert chosen is not None
        counts[chosen.client] += 1
        turns.end(chosen.run_id, 100 if chosen.client == "a" else TURN_BYTES_MIN, 0.0)
    assert counts == {"a": 50, "b": 50}


def test_weights() -> None:
    turns = turns_of()
    heavy = ReadyRun(RunId("a"), "a", weight=3)
    counts = Counter(served(turns, [heavy, run("b")], 80, 64 * MIB))
    assert counts == {"a": 60, "b": 20}


def test_a_run_has_one_turn_at_a_time_and_a_second_place_goes_to_another_client() -> None:
    turns = turns_of()
    candidates = [run("a1"), run("a2"), run("b1")]
    chosen = [turns.choose(candidates, 0.0) for _ in range(4)]
    names = [one.run_id if one else None for one in chosen]
    assert names[0] is not None
    assert {str(names[0])[0], str(names[1])[0]} == {"a", "b"}
    assert sorted(str(name) for name in names[:3]) == ["a1", "a2", "b1"]
    assert names[3] is None
    assert turns.under_way == 3


def test_who_has_nothing_to_do_rests_longer_each_time_and_wakes() -> None:
    turns = turns_of()
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
    turns = turns_of()
    for _ in range(5):
        assert turns.choose([run("a")], 100.0) is not None
        turns.end(RunId("a"), None, 0.0)
    turns.choose([run("a")], 100.0)
    turns.end(RunId("a"), MIB, 100.0)
    assert turns.choose([run("a")], 100.0) is not None


def test_a_run_that_is_troubled_is_left_alone_and_keeps_nobody_up() -> None:
    turns = turns_of()
    chosen = turns.choose([run("a")], 0.0)
    assert chosen is not None
    turns.end(chosen.run_id, None, 0.0)
    turns.rest(chosen.run_id, 5.0, 0.0)
    assert turns.choose([run("a")], 4.9) is None
    other = turns.choose([run("a"), run("b")], 4.9)
    assert other == run("b")
    assert turns.choose([run("a")], 5.0) == run("a")


def test_a_turn_is_short_while_others_wait() -> None:
    turns = turns_of()
    chosen = turns.choose([run("a"), run("b")], 0.0)
    assert chosen is not None
    assert turns.is_contended([run("a"), run("b")], chosen)
    assert not turns.is_contended([chosen], chosen)


def test_a_small_client_finds_a_place_beside_the_large_results_of_all_others() -> None:
    """Whatever it brings, a batch or a result: it waits for short turns only."""
    large = [result("a1"), result("a2"), result("c1"), result("d1")]
    for small in (run("b"), result("b", SHORT)):
        turns = turns_of()
        assert begun(turns, large) == ["a1"]
        assert begun(turns, [*large, small]) == ["b"]
        turns.end(small.run_id, MIB, 0.0)
        assert begun(turns, large) == []


def test_batches_of_a_large_client_leave_no_place_but_a_short_turn_later() -> None:
    """They are divided: what holds the last place ends soon, and then it is the newcomer's."""
    turns = turns_of()
    both = [result("a1"), run("a2"), run("a3")]
    assert begun(turns, both) == ["a1", "a2"]
    turns.end(RunId("a2"), SHORT, 0.0)
    assert begun(turns, [*both, run("b")]) == ["b"]


def test_many_runs_of_which_nothing_can_be_done_leave_every_second_turn_to_others() -> None:
    """So many that one of them is always due for a look, each of which takes a moment."""
    turns, now_s, got = turns_of(), 0.0, 0
    idle = [run(f"i{number}") for number in range(500)]
    for number in range(2000):
        chosen = turns.choose([*idle, run("work")] if number > 1000 else idle, now_s)
        now_s += 0.001
        if chosen is not None:
            is_work = chosen.run_id == "work"
            got += is_work
            turns.end(chosen.run_id, SHORT if is_work else None, now_s)
    assert 490 <= got <= 500


def test_large_results_take_turns_among_themselves_and_all_end() -> None:
    turns = turns_of(3)
    large = [result("a1"), result("a2"), result("c1")]
    assert begun(turns, large, 3) == ["a1", "c1"]
    turns.end(RunId("a1"), 1 << 30, 0.0)
    assert begun(turns, large[1:], 3) == ["a2"]


def test_a_large_result_is_not_kept_waiting_by_short_turns() -> None:
    """Short turns are under way all the time, and end one after the other: it has its turn."""
    turns = turns_of()
    short = [run("b1"), run("b2"), run("b3")]
    under_way = begun(turns, short)
    waiting = [*short, result("a")]
    for _ in range(3):
        turns.end(RunId(under_way.pop(0)), SHORT, 0.0)
        under_way += begun(turns, waiting)
    assert "a" in under_way
    assert len(under_way) == 2


def test_the_only_place_is_for_whoever_is_next() -> None:
    assert begun(turns_of(1), [result("a")], 1) == ["a"]


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 64 * MIB), min_size=2, max_size=5),
    places=st.integers(1, 3),
    count=st.integers(50, 150),
)
def test_nobody_falls_behind_by_more_than_a_turn(sizes: list[int], places: int, count: int) -> None:
    """Whatever the sizes of turns: what was done for two clients differs by some turns only,
    as long as there are fewer places than clients: else everybody is always under way. A turn
    lasts as long as it is large.
    """
    places = min(places, len(sizes) - 1)
    turns = turns_of(places)
    candidates = [run(chr(ord("a") + n) + str(n)) for n in range(len(sizes))]
    done: Counter[str] = Counter()
    ends: dict[ReadyRun, int] = {}
    now = 0
    for _ in range(count):
        while len(ends) < places:
            chosen = turns.choose(candidates, 0.0)
            assert chosen is not None
            size = max(sizes[ord(chosen.client) - ord("a")], TURN_BYTES_MIN)
            ends[chosen] = now + size
        ended = min(ends, key=lambda one: ends[one])
        now = ends.pop(ended)
        size = max(sizes[ord(ended.client) - ord("a")], TURN_BYTES_MIN)
        done[ended.client] += size
        turns.end(ended.run_id, size, 0.0)
    largest = max(*sizes, TURN_BYTES_MIN)
    ahead = max(done[one.client] for one in candidates)
    behind = min(done[one.client] for one in candidates if one not in ends)
    assert ahead - behind <= 2 * largest
