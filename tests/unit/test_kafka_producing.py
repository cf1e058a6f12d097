"""What a delivery report says decides what counts as sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from holdfast._base.clock import SystemClock
from holdfast.errors import LogEmptied, LogUnreachable
from holdfast.log.contract import Record
from holdfast.log.kafka import producing
from holdfast.log.kafka.connection import Connection
from holdfast.log.kafka.producing import Producing
from holdfast.log.kafka.settings import KafkaSettings


def test_a_question_ends_when_the_broker_has_lost_all() -> None:
    """What is known of it is doubted until it is renewed."""
    lives = [0]
    connection = Connection(KafkaSettings("h:1", "p"), SystemClock(), lambda: lives[-1])
    assert connection.again(lambda _: "answer") == "answer"
    assert not connection.is_stale()

    def dies(wait_s: float) -> str:
        lives.append(1)
        raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))

    with pytest.raises(LogEmptied):
        connection.again(dies)
    assert connection.is_stale()
    connection.renew()
    assert connection.again(lambda _: "answer") == "answer"


class FakeReport:
    def __init__(self, offset: int | None) -> None:
        self._offset = offset

    def offset(self) -> int | None:
        return self._offset


class FakeProducer:
    """Reports success for every record, at the offsets it was told; None: it does not know."""

    offsets: list[int | None]

    def __init__(self, config: dict[str, Any]) -> None:
        self._waiting: list[Callable[[None, FakeReport], None]] = []

    def produce(
        self, name: str, value: bytes, key: bytes | None, partition: int, told: Any, **more: Any
    ) -> None:
        self._waiting.append(told)

    def flush(self, timeout_s: float) -> int:
        for told, offset in zip(self._waiting, self.offsets, strict=True):
            told(None, FakeReport(offset))
        self._waiting.clear()
        return 0

    def purge(self) -> None:
        self._waiting.clear()


@pytest.fixture
def sending(monkeypatch: pytest.MonkeyPatch) -> Producing:
    monkeypatch.setattr(producing, "Producer", FakeProducer)
    return Producing(Connection(KafkaSettings("127.0.0.1:1", "p"), SystemClock()))


def test_offsets_are_those_of_the_reports(sending: Producing) -> None:
    FakeProducer.offsets = [7, 8]
    assert sending.send("p.t", 0, [Record(b"a"), Record(b"b", "id")]) == [7, 8]


def test_a_success_without_an_offset_is_none(sending: Producing) -> None:
    """A broker that died between two steps calls the next attempt a duplicate, which the client
    library takes for success; on Tansu such a batch may never have been stored.
    """
    FakeProducer.offsets = [7, None]
    with pytest.raises(LogUnreachable):
        sending.send("p.t", 0, [Record(b"a"), Record(b"b")])
