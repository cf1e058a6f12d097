"""The pure parts of the client: answers, refusals, patience, events, addresses."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast._base.intervals import Intervals
from holdfast.client.answers import ordinals, run_info
from holdfast.client.door import check_token, check_url
from holdfast.client.patience import ASKED_MOST_S, Patience
from holdfast.client.refusals import error_of, retry_after_s
from holdfast.client.sse import SentEvent, read_events
from holdfast.errors import ChunkConflict, HoldfastError, ServerRefused, UsageInvalid

CONFLICT = ChunkConflict(table="t", sender="", ordinal=3, what="twice", stored="a", sent="b")


def test_a_refusal_becomes_the_error_that_the_server_raised() -> None:
    body = json.dumps({"code": CONFLICT.code, "message": str(CONFLICT), **CONFLICT.facts()})
    again = error_of(409, body.encode())
    assert type(again) is ChunkConflict
    assert again.facts() == CONFLICT.facts()


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b'{"code": "CHUNK_CONFLICT", "message": "facts are missing"}', "facts are missing"),
        (b'{"code": "OF_ANOTHER_VERSION", "message": "so and so."}', "so and so"),
        (b'{"detail": [{"loc": ["query"]}]}', "query"),
        (b"<html>502 Bad Gateway</html>", "502 Bad Gateway"),
        (b"\xff\xfe", ""),
        (b"[1, 2]", "[1, 2]"),
        (b"", "no reason given"),
    ],
)
def test_a_refusal_that_is_not_known_keeps_its_words(body: bytes, part: str) -> None:
    error = error_of(418, body)
    assert isinstance(error, ServerRefused)
    assert error.status == 418
    assert part in error.what


def test_only_seconds_are_taken_from_retry_after() -> None:
    assert retry_after_s("3") == 3.0
    assert retry_after_s(None) is None
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") is None
    assert retry_after_s("-1") is None
    assert retry_after_s("\u00b2") is None


def test_waits_double_up_to_the_most_and_are_never_none_of_it() -> None:
    patience = Patience(first_s=0.1, most_s=5.0)
    pauses = [
        patience.pause_s(attempt, 0.0, status=None, asked_s=None, who="a")
        for attempt in range(1, 60)
    ]
    known = [pause for pause in pauses if pause is not None]
    assert len(known) == 59
    assert all(0.05 <= pause <= 5.0 for pause in known)
    assert known[0] <= 0.1
    assert all(pause >= 2.5 for pause in known[7:])


def test_clients_do_not_come_back_as_one() -> None:
    patience = Patience()
    waits = {patience.pause_s(4, 0.0, status=None, asked_s=None, who=str(who)) for who in range(50)}
    assert len(waits) == 50


def test_a_silent_server_is_given_up_before_one_that_says_it_is_busy() -> None:
    patience = Patience(silent_s=10.0, busy_s=100.0)
    assert patience.pause_s(9, 11.0, status=None, asked_s=None, who="a") is None
    assert patience.pause_s(9, 11.0, status=503, asked_s=None, who="a") is None
    assert patience.pause_s(9, 11.0, status=429, asked_s=None, who="a") is not None
    assert patience.pause_s(9, 101.0, status=429, asked_s=None, who="a") is None


def test_what_the_server_asks_for_is_waited_at_least_and_not_without_end() -> None:
    patience = Patience()
    asked = patience.pause_s(1, 0.0, status=429, asked_s=7.0, who="a")
    strange = patience.pause_s(1, 0.0, status=429, asked_s=1e9, who="a")
    assert asked is not None
    assert strange is not None
    assert asked >= 7.0
    assert strange <= ASKED_MOST_S + patience.most_s


@given(st.sets(st.integers(1, 60)))
def test_ordinals_are_read_as_they_are_written(numbers: set[int]) -> None:
    written = str(Intervals.of(numbers))
    assert set(ordinals(written)) == numbers
    assert set(ordinals(written.replace(" ", ""))) == numbers


@pytest.mark.parametrize("document", [{}, {"run": "a"}, [], "text", {"run": "a", "tables": 1}])
def test_an_answer_of_another_program_is_refused(document: object) -> None:
    with pytest.raises(ServerRefused):
        run_info(document)  # type: ignore[arg-type]


def test_events_are_read_with_their_ids_and_heartbeats_are_nothing() -> None:
    lines = [": beat", "", "id: 1", "data: a", "data: b", "", "event: x", "", "id: 2", "data:c", ""]
    assert list(read_events([*lines, "data: cut off"])) == [
        SentEvent("1", "a\nb"),
        SentEvent("2", "c"),
    ]


@pytest.mark.parametrize(
    "url",
    [
        *("", "127.0.0.1:8080", "ftp://a", "http://", "https://user:word@host/"),
        *("http://example.org", "http://10.0.0.1:8080", "https://host/?token=a"),
    ],
)
def test_an_address_that_is_none_or_unsafe_is_refused(url: str) -> None:
    with pytest.raises(UsageInvalid):
        check_url(url, plain_http=False)


def test_a_token_goes_in_clear_only_within_this_machine_or_if_told() -> None:
    assert check_url("http://127.0.0.1:8080", plain_http=False)
    assert check_url("http://[::1]:8080", plain_http=False)
    assert check_url("http://localhost", plain_http=False)
    assert not check_url("https://example.org/holdfast", plain_http=False)
    assert not check_url("http://example.org", plain_http=True)


@pytest.mark.parametrize("token", ["", " \n", "two words", "a\nb", "caf\u00e9"])
def test_a_token_that_is_none_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(UsageInvalid) as refused:
        check_token(token)
    assert not token.strip() or token not in str(refused.value)
    assert isinstance(refused.value, HoldfastError)
