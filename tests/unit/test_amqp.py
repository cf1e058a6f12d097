"""What can be said of queues without a broker: addresses, names, declarations, callbacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.amqp.address import address_of, refuse_password
from holdfast.amqp.consumer import three_arguments
from holdfast.amqp.contract import Message
from holdfast.amqp.names import client_queue, dead_queue, notice_queue, retry_queue
from holdfast.amqp.topology import (
    CARRIED,
    QueueSpec,
    attempts_of,
    declarations,
    expiry_after,
    version_of,
)
from holdfast.errors import StorageFailed, UsageInvalid

SECRET = "pa ss@/:?"


def test_a_password_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    for environment in (
        {"HOLDFAST_AMQP_PASSWORD": SECRET},
        {"HOLDFAST_AMQP_PASSWORD_FILE": str(file)},
    ):
        address = address_of("amqp://ada@host:5673/v", environment)
        assert address.url == "amqp://ada:pa%20ss%40%2F%3A%3F@host:5673/v"
        assert address.label == "amqp://ada@host:5673/v"
        assert SECRET not in repr(address)
        assert address.safe(f"x {SECRET}\ny.") == "x ***" + " y"


def test_a_url_may_carry_its_password_and_it_wins() -> None:
    address = address_of("amqps://ada:own@host/", {"HOLDFAST_AMQP_PASSWORD": "other"})
    assert address.url == "amqps://ada:own@host/"
    assert "own" not in address.label
    refuse_password("amqps://ada@host/")
    with pytest.raises(UsageInvalid) as caught:
        refuse_password("amqps://ada:own@host/")
    assert "own@" not in str(caught.value)


def test_a_missing_password_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed) as caught:
        address_of("amqp://ada@host/", {"HOLDFAST_AMQP_PASSWORD_FILE": str(tmp_path / "none")})
    assert caught.value.path == str(tmp_path / "none")


@pytest.mark.parametrize(
    "url",
    ["", "host", "http://host/", "amqp://", "amqp://a:se@cret@host/", "amqp://h:x/", "amqp://h/#f"],
)
def test_a_url_that_cannot_be_read_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageInvalid) as caught:
        address_of(url, {})
    assert "cret" not in str(caught.value)


def test_names_are_made_of_what_queues_are_for() -> None:
    assert client_queue("ada") == "clients.ada.in"
    assert notice_queue("ada") == "clients.ada.notices"
    assert (retry_queue("q"), dead_queue("q")) == ("q.retry", "q.dead")


@pytest.mark.parametrize("client", ["", "a.b", "a/b", "x" * 65, "#", "a b", "\u00e4"])
def test_a_client_that_is_no_name_gets_no_queue(client: str) -> None:
    """A dot would let one client's name reach into another's queues."""
    with pytest.raises(UsageInvalid):
        client_queue(client)


def test_every_queue_is_a_quorum_queue_and_points_at_its_neighbours() -> None:
    made = declarations(QueueSpec("q", retry_delay_s=0.25), (3, 10))
    assert list(made) == ["q.dead", "q.retry", "q"]
    assert {arguments["x-queue-type"] for arguments in made.values()} == {"quorum"}
    assert made["q"]["x-dead-letter-routing-key"] == "q.retry"
    assert made["q.retry"]["x-dead-letter-routing-key"] == "q"
    assert made["q.retry"]["x-message-ttl"] == 250
    assert "x-dead-letter-exchange" not in made["q.dead"]
    for name in ("q", "q.retry"):
        assert made[name]["x-dead-letter-strategy"] == "at-least-once"
    assert not any("x-expires" in arguments for arguments in made.values())


def test_redeliveries_are_not_limited_where_a_broker_would() -> None:
    """From version 4 on a message is dropped after 20 lost connections, unless one says no."""
    assert all(a["x-delivery-limit"] == -1 for a in declarations(QueueSpec("q"), (4, 0)).values())
    assert not any("x-delivery-limit" in a for a in declarations(QueueSpec("q"), (3, 13)).values())
    assert version_of({"version": "3.10.8"}) == version_of({"version": b"3.10.8"}) == (3, 10)
    assert version_of({}) == ()


@given(st.floats(1, 1e8))
def test_a_queue_expires_later_than_its_run_is_abandoned(abandon_s: float) -> None:
    expires_s = expiry_after(abandon_s)
    assert expires_s >= abandon_s + 3600
    made = declarations(QueueSpec("q", expires_s=expires_s), (3, 10))
    assert {a["x-expires"] for a in made.values()} == {round(expires_s * 1000)}


def test_only_rejections_by_this_queue_count_as_attempts() -> None:
    deaths = [
        {"queue": "q", "reason": "rejected", "count": 2},
        {"queue": "q.retry", "reason": "expired", "count": 2},
        {"queue": "q", "reason": "delivery_limit", "count": 9},
        {"queue": "other", "reason": "rejected", "count": 9},
    ]
    assert attempts_of("q", {"x-death": deaths, "x-delivery-count": 40}) == 2
    assert attempts_of("q", {}) == 0


@given(st.recursive(st.none() | st.integers() | st.text(), st.lists))
def test_a_forged_count_does_not_raise(value: Any) -> None:
    assert attempts_of("q", {"x-death": value}) == 0
    assert attempts_of("q", {"x-death": [{"queue": value, "count": value}]}) == 0
    assert 0 <= attempts_of("q", {CARRIED: value}) < 1 << 31


def test_a_callback_takes_the_message_alone_or_all_three() -> None:
    message = Message(b"x")
    seen: list[Any] = []

    def alone(one: Message) -> None:
        seen.append(one)

    def every(one: Message, redelivered: bool, handle: Any) -> bool:
        seen.append((one, redelivered, handle))
        return False

    handle: Any = object()
    assert three_arguments(alone)(message, True, handle) is None
    assert three_arguments(every)(message, True, handle) is False
    assert seen == [message, (message, True, handle)]


def test_a_callback_with_other_arguments_is_refused_when_consuming_begins() -> None:
    with pytest.raises(UsageInvalid):
        three_arguments(lambda message, redelivered: None)  # type: ignore[arg-type]
    with pytest.raises(UsageInvalid):
        three_arguments(lambda: None)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [{"attempts_max": 0}, {"retry_delay_s": 0}, {"expires_s": -1}])
def test_a_queue_that_no_broker_takes_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageInvalid):
        QueueSpec("q", **bad)
    with pytest.raises(UsageInvalid):
        QueueSpec("x" * 250)
