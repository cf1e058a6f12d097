"""When a part is started again, when its service gives up, when it counts as stalled."""

from __future__ import annotations

from holdfast.cli.upkeep import (
    LOOP_ENDS,
    START_S,
    STEADY_S,
    WAIT_LAST_S,
    Next,
    Pulse,
    Restarts,
    ending,
)


def test_waits_double_up_to_a_limit_and_a_loop_is_called_one() -> None:
    restarts = Restarts()
    found = [restarts.ended(-9, lived_s=1.0) for _ in range(12)]
    waits = [one.wait_s for one in found]
    assert waits[:4] == [0.2, 0.4, 0.8, 1.6]
    assert waits[-1] == WAIT_LAST_S
    assert [one.loops for one in found] == [n >= LOOP_ENDS for n in range(1, 13)]


def test_one_that_held_out_begins_anew() -> None:
    restarts = Restarts()
    for _ in range(4):
        restarts.ended(1, lived_s=1.0)
    assert restarts.ended(1, lived_s=STEADY_S) == Next(0.2)
    assert restarts.ended(1, lived_s=1.0) == Next(0.4)


def test_asked_wrongly_ends_the_service_at_once() -> None:
    assert Restarts().ended(2, lived_s=0.1) == Next(None)


def test_errors_from_the_start_on_end_the_service() -> None:
    restarts = Restarts()
    found = [restarts.ended(1, lived_s=5.0) for _ in range(LOOP_ENDS)]
    assert [one.wait_s is None for one in found] == [False] * (LOOP_ENDS - 1) + [True]


def test_a_full_disk_is_no_crash_loop() -> None:
    """However long it is full. The errors before it and after it are not in a row."""
    restarts = Restarts()
    codes = [1] * (LOOP_ENDS - 1) + [75] * (3 * LOOP_ENDS) + [1] * (LOOP_ENDS - 1)
    found = [restarts.ended(code, lived_s=1.0) for code in codes]
    assert all(one.wait_s is not None for one in found)
    assert [one.loops for one, code in zip(found, codes, strict=True) if code == 75] == (
        [False] * 3 * LOOP_ENDS
    )
    assert restarts.ended(1, lived_s=1.0) == Next(None, loops=True)


def test_kills_never_end_the_service() -> None:
    """Whoever kills a part again and again gets it again and again."""
    restarts = Restarts()
    codes = [1, 1, 1, 1, -9] * 4
    assert all(restarts.ended(code, lived_s=0.5).wait_s is not None for code in codes)


def test_one_that_once_held_out_is_always_started_again() -> None:
    restarts = Restarts()
    restarts.ended(-9, lived_s=STEADY_S)
    assert all(restarts.ended(1, lived_s=1.0).wait_s is not None for _ in range(3 * LOOP_ENDS))


def test_a_beat_that_stands_still_is_a_stall() -> None:
    pulse = Pulse(10.0, begun_s=50.0)
    assert not pulse.is_stalled(0, 50.0)
    assert not pulse.is_stalled(0, 49.0 + START_S), "it has not begun"
    assert not pulse.is_stalled(1, 201.0)
    assert not pulse.is_stalled(1, 210.9)
    assert pulse.is_stalled(1, 211.0)
    assert not pulse.is_stalled(2, 212.0)


def test_one_that_never_begins_is_a_stall_too() -> None:
    """It may be stopped before its first beat, and would be waited for without end."""
    pulse = Pulse(10.0, begun_s=50.0)
    assert not pulse.is_stalled(0, 49.0 + START_S)
    assert pulse.is_stalled(0, 50.0 + START_S)


def test_words() -> None:
    assert ending(-9) == "was ended by signal 9"
    assert ending(1) == "ended with exit code 1"
