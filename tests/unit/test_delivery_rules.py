"""Pure decisions of delivery: what is taken, what fails a run, when to wait, what to sweep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast._base.ids import Ordinal, RunId
from holdfast._base.intervals import Intervals
from holdfast.config import Config
from holdfast.delivery.patience import retry_after_s, wait_ms
from holdfast.delivery.rules import accept_header, accept_piece, is_whole, lacks
from holdfast.delivery.sweep import Duty, duty
from holdfast.delivery.waiting import missing_inputs
from holdfast.errors import ResultConflict, RunGone
from holdfast.store.result_rows import (
    ExternalFacts,
    ExternalPiece,
    SeriesDecl,
    SeriesProgress,
    Watched,
)
from holdfast.store.rows import CLOSED_STATES, Run, RunKind, SenderProgress

RUN = RunId("r")
HEADER = (SeriesDecl("a"), SeriesDecl("b"))


def facts(
    *progress: SeriesProgress,
    header: tuple[SeriesDecl, ...] | None = None,
    stored: ExternalPiece | None = None,
    state: str = "RECEIVING",
) -> ExternalFacts:
    return ExternalFacts(RUN, state, header, progress, stored)


def piece(
    ordinal: int = 1, total: int = 2, series: str = "a", checksum: str = "c"
) -> ExternalPiece:
    return ExternalPiece(series, Ordinal(ordinal), total, "", 1, checksum)


def came(series: str, total: int | None, *ordinals: int) -> SeriesProgress:
    return SeriesProgress(series, total, Intervals.of(ordinals))


def test_a_piece_is_taken_before_the_header_and_after_it() -> None:
    assert accept_piece(piece(), facts())
    assert accept_piece(piece(), facts(came("a", None), came("b", None), header=HEADER))
    assert accept_piece(piece(2), facts(came("a", 2, 1)))


def test_a_repeated_piece_is_acked_again() -> None:
    assert not accept_piece(piece(), facts(came("a", 2, 1), stored=piece()))
    assert not accept_piece(piece(), facts(came("a", 2, 1), stored=piece(), state="COMPLETING"))
    assert not accept_piece(piece(0, 0), facts(came("a", 0)))
    assert accept_piece(piece(0, 0), facts(came("a", None), header=HEADER))


@pytest.mark.parametrize(
    ("sent", "known"),
    [
        (piece(checksum="d"), facts(came("a", 2, 1), stored=piece())),
        (piece(2, 3), facts(came("a", 2, 1))),
        (piece(0, 0), facts(came("a", 2, 1))),
        (piece(series="z"), facts(header=HEADER)),
    ],
    ids=["other bytes", "other total", "empty after all", "unknown series"],
)
def test_a_producer_that_contradicts_itself_fails_its_run(
    sent: ExternalPiece, known: ExternalFacts
) -> None:
    with pytest.raises(ResultConflict) as caught:
        accept_piece(sent, known)
    assert caught.value.run == RUN
    assert caught.value.stored != caught.value.sent


def test_a_header_is_recorded_once_and_names_what_came() -> None:
    assert accept_header(HEADER, facts())
    assert accept_header((), facts())
    assert accept_header(HEADER, facts(came("a", 2, 1)))
    assert not accept_header(HEADER, facts(came("a", 2, 1), header=HEADER))
    for wrong, known in (
        (HEADER, facts(header=HEADER[:1])),
        (HEADER[:1], facts(came("b", 1, 1))),
        ((HEADER[0], HEADER[0]), facts()),
        ((), facts(header=HEADER)),
    ):
        with pytest.raises(ResultConflict):
            accept_header(wrong, known)


@pytest.mark.parametrize("state", sorted(CLOSED_STATES))
def test_a_run_that_is_over_takes_nothing(state: str) -> None:
    with pytest.raises(RunGone):
        accept_piece(piece(), facts(state=state))
    with pytest.raises(RunGone):
        accept_header(HEADER, facts(state=state))


def test_whole_means_sets_without_a_gap_in_every_series() -> None:
    assert is_whole(facts(header=()))
    assert is_whole(facts(came("a", 2, 2, 1), came("b", 0), header=HEADER))
    for lacking in (
        facts(),
        facts(came("a", 2, 1, 2)),
        facts(came("a", 2, 1, 2), came("b", None), header=HEADER),
        facts(came("a", 2, 1), came("b", 0), header=HEADER),
        facts(came("a", 2, 1, 3), came("b", 0), header=HEADER),
    ):
        assert not is_whole(lacking)
    assert lacks(facts()) == ["the header"]
    found = facts(came("a", 4, 2), came("b", None), header=HEADER)
    assert lacks(found) == ["pieces 1, 3-4 of series a", "all of series b"]
    assert lacks(facts(came("a", 1, 1), header=HEADER[:1])) == []


def test_inputs_that_are_missing_are_named() -> None:
    def sender(announced: int | None, *received: int, produced: bool = False) -> SenderProgress:
        got = Intervals.of(received)
        return SenderProgress("t", "s", 1, False, announced, got, Intervals(), produced)

    assert missing_inputs([sender(None, 1)]) == ["END of t, sender s"]
    assert missing_inputs([sender(3, 2)]) == ["chunks 1, 3 of t, sender s"]
    assert missing_inputs([sender(2, 1, 2), sender(0), sender(None, produced=True)]) == []
    assert missing_inputs([replace(sender(None), sender="")]) == ["END of t"]


CONFIG = Config(
    abandon_after_s=10, sweep_after_s=20, expire_after_s=30, notice_wait_s=1, notice_wait_max_s=60
)


def watched(state: str, idle_s: float, *, has_queues: bool = False) -> Watched:
    run = Run(RUN, "c", "p", {}, 1, state, None, 0, 0, RunKind.SPARK)
    return Watched(run, state, int(idle_s * 1000), has_queues)


@pytest.mark.parametrize(
    ("state", "idle_s", "waits", "wanted"),
    [
        ("OPEN", 9.9, True, Duty.NOTHING),
        ("OPEN", 10, True, Duty.ABANDON),
        ("OPEN", 1e6, False, Duty.NOTHING),
        ("RECEIVING", 10, True, Duty.ABANDON),
        ("COMPLETING", 1e6, False, Duty.NOTHING),
        ("DONE", 29.9, False, Duty.NOTHING),
        ("DONE", 30, False, Duty.SWEEP),
        ("FAILED", 19.9, False, Duty.NOTHING),
        ("FAILED", 20, False, Duty.SWEEP),
        ("CANCELLED", 20, False, Duty.SWEEP),
        ("ABANDONED", 20, False, Duty.SWEEP),
        ("SWEPT", 0, False, Duty.CLEAR),
    ],
)
def test_what_is_done_about_a_run(state: str, idle_s: float, waits: bool, wanted: Duty) -> None:
    assert duty(watched(state, idle_s), CONFIG, waits=waits) is wanted


def test_by_default_nothing_is_abandoned_or_expires() -> None:
    for state in ("OPEN", "RECEIVING", "DONE"):
        assert duty(watched(state, 1e12), Config(), waits=True) is Duty.NOTHING


def test_queues_of_a_done_run_go_at_once() -> None:
    assert duty(watched("DONE", 0, has_queues=True), CONFIG, waits=False) is Duty.DROP_QUEUES
    assert duty(watched("FAILED", 0, has_queues=True), CONFIG, waits=False) is Duty.NOTHING
    assert duty(watched("OPEN", 0, has_queues=True), CONFIG, waits=False) is Duty.NOTHING


def test_waits_double_with_a_jitter_and_end() -> None:
    waits = [wait_ms(CONFIG, "n", failures, None) for failures in range(1, 20)]
    for failures, wait in enumerate(waits, start=1):
        full = min(1000 * 2 ** (failures - 1), 60_000)
        assert wait is not None
        assert full / 2 <= wait <= full
    assert wait_ms(CONFIG, "n", 3, None) == waits[2]
    assert len({wait_ms(CONFIG, f"n{number}", 5, None) for number in range(50)}) > 40
    assert wait_ms(CONFIG, "n", 20, None) is None
    assert wait_ms(Config(notice_attempts_max=1), "n", 1, 5) is None


def test_retry_after_is_heeded_up_to_the_longest_wait() -> None:
    assert wait_ms(CONFIG, "n", 1, 30) == 30_000
    assert wait_ms(CONFIG, "n", 1, 10**9) == 60_000
    assert wait_ms(CONFIG, "n", 1, 0) == wait_ms(CONFIG, "n", 1, None)
    assert retry_after_s("17") == 17
    assert retry_after_s(" 17 ") == 17
    for other in (
        None,
        "",
        "-1",
        "1.5",
        "Wed, 21 Oct 2015 07:28:00 GMT",
        "9" * 40,
        "\u00b2",
        "\u0663",
    ):
        assert retry_after_s(other) is None
