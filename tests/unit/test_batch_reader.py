"""A reader of a broker that knows batches only: what it tells of ends, and what is true."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from holdfast._base.clock import SystemClock
from holdfast.log.kafka import reader as reading
from holdfast.log.kafka.connection import Connection
from holdfast.log.kafka.fetching import Fetching
from holdfast.log.kafka.reader import AT_THE_END, BatchReader, reader_of
from holdfast.log.kafka.settings import KafkaSettings

SETTINGS = KafkaSettings("127.0.0.1:1", "p", reads="batch", timeout_s=1.0)


@dataclass
class Batch:
    first: int
    size: int
    second: int
    """When it was stored; S3 knows no more."""
    stored: bool = True
    """A batch has its offset before it is stored."""


@dataclass
class FakeTansu:
    """What Tansu 0.6 was read and seen to do on S3, for one partition."""

    batches: list[Batch] = field(default_factory=list)
    high: int = 0
    second: int = 0

    def append(self, size: int = 1, **more: Any) -> Batch:
        batch = Batch(self.high, size, self.second, **more)
        self.batches.append(batch)
        self.high += size
        return batch

    def told(self) -> int:
        """Behind the first record of the first of all batches that have the latest time."""
        stored = [one for one in self.batches if one.stored]
        if not stored:
            return 0
        latest = max(one.second for one in stored)
        return next(one.first for one in stored if one.second == latest) + 1

    def read(self, offset: int) -> list[FakeMessage]:
        """From the first batch that begins there or later."""
        found = [one for one in self.batches if one.stored and one.first >= offset]
        return [FakeMessage(one.first + place) for one in found for place in range(one.size)]


@dataclass
class FakeMessage:
    at: int
    code: int | None = None

    def error(self) -> KafkaError | None:
        return None if self.code is None else KafkaError(self.code)

    def offset(self) -> int:
        return self.at

    def value(self) -> bytes:
        return b"%d" % self.at

    def key(self) -> None:
        return None

    def headers(self) -> None:
        return None


class FakeConsumer:
    """confluent-kafka's, on a broker that answers at once. Waiting is over at once, too."""

    def __init__(self, broker: FakeTansu, config: dict[str, Any]) -> None:
        self._broker, self._says_end = broker, config.get("enable.partition.eof", False)
        self._next, self._high, self._said = -1, -1001, -1
        self._ahead: list[FakeMessage] = []

    def get_watermark_offsets(
        self, where: TopicPartition, timeout: float = 0.0, cached: bool = False
    ) -> tuple[int, int]:
        return (0, self._high) if cached else (0, self._broker.told())

    def assign(self, places: list[TopicPartition]) -> None:
        self._next, self._said, self._ahead = places[0].offset, -1, []

    def unassign(self) -> None:
        self._next = -1

    def consume(self, count: int, timeout: float) -> list[FakeMessage]:
        """Give what was read ahead, which is whole batches, and ask if that is nothing."""
        assert self._next >= 0, "nothing is assigned"
        if not self._ahead:
            self._fetch()
        found, self._ahead = self._ahead[:count], self._ahead[count:]
        return found

    def _fetch(self) -> None:
        self._high = self._broker.high
        self._ahead = self._broker.read(self._next)
        if self._ahead:
            self._next = self._ahead[-1].at + 1
        elif self._says_end and self._next == self._high != self._said:
            self._said = self._high
            self._ahead = [FakeMessage(self._high, AT_THE_END)]

    def close(self) -> None:
        self._next = -1


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> FakeTansu:
    tansu = FakeTansu()
    monkeypatch.setattr(reading, "Consumer", partial(FakeConsumer, tansu))
    return tansu


def end_of(reader: reading.Reader) -> int:
    return reader.bounds(1.0)[1]


def test_batches_of_one_second_are_all_counted(broker: FakeTansu) -> None:
    """The broker goes on telling where the first of them began."""
    reader = reader_of(SETTINGS, "t", 0, SystemClock())
    assert isinstance(reader, BatchReader)
    assert end_of(reader) == 0
    for size in (1, 1, 50, 1, 1500, 1):
        broker.append(size)
        assert broker.told() == 1
        assert end_of(reader) == broker.high
        assert end_of(reader_of(SETTINGS, "t", 0, SystemClock())) == broker.high
    broker.second = 1
    broker.append(3)
    assert broker.told() == broker.high - 2
    assert end_of(reader) == broker.high


def test_what_has_an_offset_and_is_not_stored_is_not_counted(broker: FakeTansu) -> None:
    """It may be on its way, or lost with the broker that was to store it."""
    broker.append()
    reader = reader_of(SETTINGS, "t", 0, SystemClock())
    late = broker.append(2, stored=False)
    assert end_of(reader) == end_of(reader) == 1
    late.stored = True
    assert end_of(reader) == 3


class FakeClock(SystemClock):
    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


def offsets(reader: reading.Reader) -> list[int]:
    return [one.offset for one in reader.take(100, 0.0)]


@pytest.mark.parametrize("before", [0, 1, 5, 3000])
def test_a_batch_that_is_stored_late_is_not_passed_over(broker: FakeTansu, before: int) -> None:
    """Two producers: the second one's batch was there first."""
    for _ in range(before):
        broker.append()
    reader = reader_of(SETTINGS, "t", 0, FakeClock())
    reader.seek(max(0, before - 2))
    heard: list[int] = []
    while len(heard) < min(before, 2):
        heard += offsets(reader)
    late, after = broker.append(2, stored=False), broker.append()
    assert [offsets(reader) for _ in range(5)] == [[]] * 5
    late.stored = True
    while len(heard) < min(before, 2) + 3:
        heard += offsets(reader)
    assert heard == [*range(max(0, before - 2), after.first + 1)]


def test_a_batch_that_was_lost_is_waited_for_once(broker: FakeTansu) -> None:
    broker.append(3)
    broker.append(2, stored=False)
    broker.append(2)
    clock = FakeClock()
    reader = reader_of(SETTINGS, "t", 0, clock)
    reader.seek(0)
    assert offsets(reader) + offsets(reader) == [0, 1, 2]
    assert offsets(reader) == []
    clock.now_s += SETTINGS.timeout_s
    assert offsets(reader) + offsets(reader) == [5, 6]
    broker.append()
    assert offsets(reader) == [7]


def test_a_log_that_began_anew_ends_where_it_does(broker: FakeTansu) -> None:
    broker.append(10)
    reader = reader_of(SETTINGS, "t", 0, SystemClock())
    assert end_of(reader) == 10
    broker.batches.clear()
    broker.high = 0
    assert end_of(reader) == 0
    broker.append(3)
    assert end_of(reader) == 3


@pytest.mark.parametrize("sizes", [(1,) * 20, (5, 1, 1, 3, 1, 1, 1), (1500, 1, 1)])
def test_a_listener_hears_every_record(broker: FakeTansu, sizes: tuple[int, ...]) -> None:
    """Whatever the sizes of batches, and whether a second passes in between or not."""
    clock = SystemClock()
    for changes in (0, 1):
        broker.batches.clear()
        broker.high = broker.second = 0
        fetching, heard = Fetching(Connection(SETTINGS, clock), clock), 0
        for size in sizes:
            broker.second += changes
            broker.append(size)
            while heard < broker.high:
                found = fetching.fetch("t", 0, heard, 100, 0.05)
                assert [one.offset for one in found] == [*range(heard, heard + len(found))]
                assert found, f"record {heard} did not arrive"
                heard += len(found)
        fetching.close()
