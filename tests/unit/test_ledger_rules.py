"""The pure decisions of the paid call."""

from __future__ import annotations

import asyncio
from urllib.error import URLError

import pytest

from holdfast.errors import ProviderBusy, StepChanged
from holdfast.ledger.contract import OpenSlot, Outcome, Slot, Status, inputs_hash, slot_hash
from holdfast.ledger.rules import (
    Move,
    Policy,
    backoff_s,
    fingerprint_decision,
    next_move,
    trouble_of,
)

SLOT = Slot(slot_hash(1, "k"), 1, "k", inputs_hash(b"now"))
OTHER = inputs_hash(b"before")


def outcome(inputs: bytes = SLOT.inputs, status: Status = Status.BOUGHT) -> Outcome:
    return Outcome(Slot(SLOT.hash, 1, "k", inputs), status, b"a")


def open_slot(owner: int | None, attempts: int = 1, inputs: bytes = SLOT.inputs) -> OpenSlot:
    return OpenSlot(owner, attempts, inputs)


@pytest.mark.parametrize(
    ("known", "policy", "move"),
    [
        (None, Policy(), Move.CLAIM),
        (outcome(), Policy(), Move.REUSE),
        (outcome(status=Status.PARKED), Policy(), Move.REUSE),
        (outcome(status=Status.FAILED), Policy(error="null"), Move.REUSE),
        (outcome(status=Status.FAILED), Policy(error="dead_letter"), Move.REUSE),
        (outcome(status=Status.FAILED), Policy(), Move.RAISE),
        (outcome(OTHER), Policy(), Move.INPUT_CHANGED),
        (outcome(OTHER), Policy(input_change="keep"), Move.REUSE),
        (outcome(OTHER), Policy(input_change="new"), Move.OTHER_SLOT),
        (open_slot(7), Policy(), Move.WAIT),
        (open_slot(7), Policy(unknown="park"), Move.WAIT),
        (open_slot(7, inputs=OTHER), Policy(), Move.INPUT_CHANGED),
        (open_slot(None), Policy(), Move.CLAIM),
        (open_slot(None, 2), Policy(), Move.CLAIM_ALONE),
        (open_slot(None, 5), Policy(), Move.PARK),
        (open_slot(None), Policy(unknown="park"), Move.PARK),
        (open_slot(None), Policy(unknown="reconcile"), Move.RECONCILE),
        (open_slot(None, 5), Policy(unknown="reconcile"), Move.PARK),
    ],
)
def test_next_move(known: Outcome | OpenSlot | None, policy: Policy, move: Move) -> None:
    assert next_move(SLOT, known, policy) is move


class Http(Exception):
    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"HTTP {status}")
        self.status_code, self.headers = status, headers or {}


class ReadTimeout(Exception):
    """As httpx and requests have it: nothing of Python's own is among its bases."""


class APIConnectionError(Exception):
    """As openai has it."""


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "retryable", "unknown", "after"),
    [
        (ProviderBusy(reason="slow down", retry_after_s=3.0), True, False, 3.0),
        (TimeoutError(), True, True, 0.0),
        (ConnectionResetError(), True, True, 0.0),
        (Http(429, {"Retry-After": "7"}), True, False, 7.0),
        (Http(503, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}), True, False, 0.0),
        (Http(429, {"Retry-After": "inf"}), True, False, 3600.0),
        (Http(429, {"Retry-After": "nan"}), True, False, 0.0),
        (ProviderBusy(reason="for ever", retry_after_s=1e12), True, False, 3600.0),
        (ReadTimeout(), True, True, 0.0),
        (APIConnectionError(), True, True, 0.0),
        (URLError(ConnectionRefusedError()), True, True, 0.0),
        (asyncio.CancelledError(), True, True, 0.0),
        (Mute(), False, False, 0.0),
        (Http(400), False, False, 0.0),
        (ValueError("no"), False, False, 0.0),
    ],
)
def test_trouble(error: BaseException, retryable: bool, unknown: bool, after: float) -> None:
    trouble = trouble_of(error, None)
    assert (trouble.retryable, trouble.unknown, trouble.retry_after_s) == (
        retryable,
        unknown,
        after,
    )


def test_trouble_marked_by_the_user() -> None:
    assert trouble_of(ValueError("x"), lambda error: isinstance(error, ValueError)).retryable


def test_a_rule_of_the_users_that_raises_is_a_failure_with_both_texts() -> None:
    def marked(error: BaseException) -> bool:
        raise AttributeError("status_code")

    trouble = trouble_of(ValueError("x"), marked)
    assert not trouble.retryable
    assert "ValueError: x" in trouble.text
    assert "AttributeError: status_code" in trouble.text


def test_every_text_of_an_error_can_be_stored() -> None:
    text = trouble_of(ValueError("\udc80 and \0"), None).text
    assert text == "ValueError: ? and \\0"
    assert trouble_of(Mute(), None).text == "Mute: its text cannot be made"


def test_backoff_grows_is_bounded_and_honours_the_provider() -> None:
    waits = [backoff_s(attempt, seed=b"s") for attempt in range(1, 30)]
    assert 0.25 <= waits[0] <= 0.5
    assert max(waits) <= 60.0
    assert waits[5] > waits[0]
    assert backoff_s(1, seed=b"s", retry_after_s=100.0) == 100.0
    assert backoff_s(1, seed=b"a") != backoff_s(1, seed=b"b")


def test_fingerprint() -> None:
    assert fingerprint_decision("s", {"a": "1"}, {"a": "1"}, "refuse", asked=True) == "same"
    assert fingerprint_decision("s", {"a": "1"}, {"a": "2"}, "keep", asked=True) == "keep"
    assert fingerprint_decision("s", {"a": "1"}, {"a": "2"}, "new", asked=True) == "new"
    assert fingerprint_decision("s", {"a": "1"}, {"a": "2"}, "refuse", asked=False) == "new"
    assert fingerprint_decision("s", {"a": "1"}, {"a": "2"}, "keep", asked=False) == "keep"
    with pytest.raises(StepChanged) as caught:
        fingerprint_decision(
            "s", {"a": "1", "gone": "x"}, {"a": "2", "came": "y"}, "refuse", asked=True
        )
    assert caught.value.fields == "a, came, gone"
