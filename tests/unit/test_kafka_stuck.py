"""A consumer of the client library that has locked itself up: nothing waits for it for ever."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from tests.unit.test_batch_reader import FakeMessage

from holdfast._base.clock import SystemClock
from holdfast.log.kafka import consumers, fetching
from holdfast.log.kafka import reader as reading
from holdfast.log.kafka.connection import Connection
from holdfast.log.kafka.fetching import Fetching
from holdfast.log.kafka.reader import Reader
from holdfast.log.kafka.settings import KafkaSettings

SETTINGS = KafkaSettings("127.0.0.1:1", "p", timeout_s=20.0)
HELD = 6


class Healthy:
    """A consumer of a broker that holds a few records."""

    def __init__(self) -> None:
        self._next = -1

    def get_watermark_offsets(self, _: TopicPartition, timeout: float) -> tuple[int, int]:
        return 0, HELD

    def assign(self, places: list[TopicPartition]) -> None:
        self._next = places[0].offset

    def consume(self, count: int, _: float) -> list[FakeMessage]:
        first, self._next = self._next, min(self._next + count, HELD)
        return [FakeMessage(offset) for offset in range(first, self._next)]

    def close(self) -> None:
        return


class Stuck(Healthy):
    """One that gives nothing, and from `close` and what else is named never comes back."""

    def __init__(self, released: threading.Event, never: str) -> None:
        super().__init__()
        self._released, self._never = released, (never, "close")

    def _call(self, name: str) -> None:
        if name in self._never:
            self._released.wait(60)

    def get_watermark_offsets(self, _: TopicPartition, timeout: float) -> tuple[int, int]:
        self._call("get_watermark_offsets")
        return 0, HELD

    def assign(self, places: list[TopicPartition]) -> None:
        self._call("assign")

    def consume(self, count: int, _: float) -> list[FakeMessage]:
        return []

    def close(self) -> None:
        self._call("close")


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    monkeypatch.setattr(consumers, "CALL_S", 0.02)
    monkeypatch.setattr(reading, "CALL_S", 0.02)
    monkeypatch.setattr(fetching, "STUCK_S", 0.02)
    monkeypatch.setattr(fetching, "SLICE_S", 0.001)
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("never", ["consume", "assign", "get_watermark_offsets"])
def test_a_fetch_goes_on_with_another_consumer(
    released: threading.Event, monkeypatch: pytest.MonkeyPatch, never: str
) -> None:
    made: list[Healthy] = [Healthy(), Healthy(), Stuck(released, never)]
    monkeypatch.setattr(reading, "Consumer", lambda _: made.pop())
    clock = SystemClock()
    fetch = Fetching(Connection(SETTINGS, clock), clock)
    found = [one.offset for one in fetch.fetch("t", 0, 0, 4, 0.0)]
    found += [one.offset for one in fetch.fetch("t", 0, 4, 4, 0.0)]
    assert found == list(range(HELD))
    fetch.close()


def test_who_lets_go_of_it_does_not_wait(
    released: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "Consumer", lambda _: Stuck(released, "close"))
    reader = Reader(SETTINGS, "t", 0)
    reader.close()
    assert not released.is_set()


def test_what_a_call_raises_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(Healthy):
        def assign(self, places: list[TopicPartition]) -> None:
            raise KafkaException("no")

    consumer: Any = Refusing()
    monkeypatch.setattr(reading, "Consumer", lambda _: consumer)
    with pytest.raises(KafkaException):
        Reader(SETTINGS, "t", 0).seek(1)
