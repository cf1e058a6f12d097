"""The sides of `bench.backends`: every log through its adapter, and raw through its own client.

A raw side promises what the adapter promises, so that only the adapter's cost lies between the two:
a batch counts when all of it is as safe as the backend makes it, and is read in order by offset.
What it leaves out is what the adapter is for: offsets given back, groups, ids, reconnects, errors.
Records carry a value alone: no id, key or header, on both sides.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import apsw
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from holdfast._base.ids import Offset
from holdfast.log.contract import QueueBackend, Record
from holdfast.log.kafka.names import topic_name
from holdfast.log.kafka.reader import FETCH_WAIT_MS
from holdfast.log.memory import MemoryBackend
from holdfast.log.open import open_backend
from holdfast.store.sqlite.connection import CACHE_KIB, CHECKPOINT_PAGES, PAGE_BYTES
from holdfast.store.sqlite.pages import CHECKSUM_BYTES, load_checksums

LOOK_S = 0.5
"""How long a listener waits at a time: how late it notices that it is to end."""
Row = tuple[int, bytes]
RAW_POLL_S = 0.001
"""SQLite tells nobody of new rows: its raw reader looks so often."""


class Side(ABC):
    """One way to one backend. An address says where; one object is one connection."""

    def __init__(self, address: str) -> None:
        self.address = address

    @abstractmethod
    def open(self) -> None:
        """Connect, and wait for the server if it is not there yet."""

    @abstractmethod
    def close(self) -> None:
        """Let go."""

    @abstractmethod
    def create(self, topic: str) -> None:
        """Make a topic, if it is missing."""

    @abstractmethod
    def produce(self, topic: str, values: Sequence[bytes]) -> None:
        """Append a batch; returns when all of it is as safe as it will be."""

    @abstractmethod
    def fetch(self, topic: str, count: int, at_once: int, *, start: int = 0) -> None:
        """Read `count` records from `start` on, `at_once` at a time; fails if one is missing.

        A queue has no offsets: `start` is what comes next.
        """

    @abstractmethod
    def listening(self, topic: str, heard: Callable[[bytes], None]) -> AbstractContextManager[None]:
        """Call `heard` with every record appended while the block runs."""


@contextmanager
def looking(look: Callable[[], None]) -> Iterator[None]:
    """Look again and again, in a thread, while the block runs."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            look()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class LogSide(Side):
    """Any `QueueBackend`, by its URL."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.log: QueueBackend = open_backend(address)

    def open(self) -> None:
        self.log.start()

    def close(self) -> None:
        self.log.stop()

    def create(self, topic: str) -> None:
        self.log.create_topic(topic)

    def produce(self, topic: str, values: Sequence[bytes]) -> None:
        self.log.produce_batch(topic, [Record(value) for value in values])

    def fetch(self, topic: str, count: int, at_once: int, *, start: int = 0) -> None:
        found = 0
        while found < count:
            place = Offset(start + found)
            records = self.log.fetch_batch(topic, place, count=at_once, timeout_s=60)
            assert records, f"{found} of {count} records"
            assert records[0].offset == place
            found += len(records)

    @contextmanager
    def listening(self, topic: str, heard: Callable[[bytes], None]) -> Iterator[None]:
        place = self.log.bounds(topic)[1]

        def look() -> None:
            nonlocal place
            for one in self.log.fetch_batch(topic, place, count=100, timeout_s=LOOK_S):
                place = Offset(one.offset + 1)
                heard(one.record.value)

        with looking(look):
            yield


class RawList(Side):
    """A list and a condition: what a log in memory cannot do without."""

    _lists: dict[str, tuple[list[bytes], threading.Condition]] = {}  # noqa: RUF012 - shared

    def open(self) -> None:
        return

    def close(self) -> None:
        return

    def create(self, topic: str) -> None:
        self._lists.setdefault(topic, ([], threading.Condition()))

    def produce(self, topic: str, values: Sequence[bytes]) -> None:
        records, changed = self._lists[topic]
        with changed:
            records.extend(values)
            changed.notify_all()

    def fetch(self, topic: str, count: int, at_once: int, *, start: int = 0) -> None:
        records, changed = self._lists[topic]
        found = 0
        while found < count:
            with changed:
                some = records[start + found : start + found + at_once]
            assert some
            found += len(some)

    @contextmanager
    def listening(self, topic: str, heard: Callable[[bytes], None]) -> Iterator[None]:
        records, changed = self._lists[topic]
        place = len(records)

        def look() -> None:
            nonlocal place
            with changed:
                changed.wait_for(lambda: len(records) > place, LOOK_S)
                some = records[place:]
            place += len(some)
            for value in some:
                heard(value)

        with looking(look):
            yield


class RawSqlite(Side):
    """One table of one SQLite file, with the PRAGMAs and the page checksums of our own store.

    The address is the file's URL.
    """

    def open(self) -> None:
        path = Path(urlsplit(self.address).path)
        self._connection = apsw.Connection(str(path), vfs=load_checksums())
        self._connection.set_busy_timeout(10_000)
        self._connection.pragma("page_size", PAGE_BYTES)
        self._connection.reserve_bytes("main", CHECKSUM_BYTES)
        self._connection.pragma("journal_mode", "wal")
        self._connection.pragma("synchronous", "full")
        self._connection.pragma("cache_size", -CACHE_KIB)
        self._connection.pragma("wal_autocheckpoint", CHECKPOINT_PAGES)

    def close(self) -> None:
        self._connection.close()

    def create(self, topic: str) -> None:
        table = f'CREATE TABLE IF NOT EXISTS "{topic}"'
        self._connection.execute(f"{table} (place INTEGER PRIMARY KEY, value BLOB NOT NULL)")

    def produce(self, topic: str, values: Sequence[bytes]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        rows = [(value,) for value in values]
        self._connection.executemany(f'INSERT INTO "{topic}" (value) VALUES (?)', rows)
        self._connection.execute("COMMIT")

    def _rows(self, topic: str, place: int, count: int) -> list[Row]:
        sql = f'SELECT place, value FROM "{topic}" WHERE place > ? ORDER BY place LIMIT ?'
        return cast("list[Row]", self._connection.execute(sql, (place, count)).fetchall())

    def fetch(self, topic: str, count: int, at_once: int, *, start: int = 0) -> None:
        found = 0
        while found < count:
            rows = self._rows(topic, start + found, at_once)
            assert rows
            found += len(rows)

    @contextmanager
    def listening(self, topic: str, heard: Callable[[bytes], None]) -> Iterator[None]:
        place = 0

        def look() -> None:
            nonlocal place
            rows = self._rows(topic, place, 100)
            for number, value in rows:
                place = number
                heard(value)
            if not rows:
                time.sleep(RAW_POLL_S)

        with looking(look):
            yield


class RawKafka(Side):
    """confluent-kafka alone, with the producer's promises of the adapter: idempotent, all acks."""

    def open(self) -> None:
        parts = urlsplit(self.address)
        self._servers, self._prefix = parts.netloc, parts.path.strip("/")
        client = {"bootstrap.servers": self._servers, "log_level": 0}
        quick = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 1000}
        self._producer = Producer(
            {**client, **quick, "enable.idempotence": True, "acks": "all", "linger.ms": 100}
        )
        self._client = {**client, **quick}
        self._consumer: Consumer | None = None

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def create(self, topic: str) -> None:
        maker = LogSide(self.address)
        maker.open()
        maker.create(topic)
        maker.close()

    def produce(self, topic: str, values: Sequence[bytes]) -> None:
        confirmed = 0

        def told(error: KafkaError | None, _: Message) -> None:
            nonlocal confirmed
            confirmed += error is None

        name = topic_name(self._prefix, topic)
        for value in values:
            self._producer.produce(name, value, None, 0, told)
        self._producer.flush()
        assert confirmed == len(values)

    def _reading(self, topic: str, place: int) -> Consumer:
        consumer = Consumer(
            {
                **self._client,
                "group.id": "raw",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": FETCH_WAIT_MS,
            }
        )
        consumer.assign([TopicPartition(topic_name(self._prefix, topic), 0, place)])
        return consumer

    def fetch(self, topic: str, count: int, at_once: int, *, start: int = 0) -> None:
        self._consumer = self._consumer or self._reading(topic, start)
        found, deadline_s = 0, time.monotonic() + 600
        while found < count:
            assert time.monotonic() < deadline_s, f"{found} of {count} records"
            for one in self._consumer.consume(min(at_once, count - found), 1.0):
                if one.error() is None:
                    assert one.value() is not None
                    assert one.offset() == start + found
                    found += 1

    @contextmanager
    def listening(self, topic: str, heard: Callable[[bytes], None]) -> Iterator[None]:
        consumer = self._reading(topic, 0)

        def look() -> None:
            for one in consumer.consume(1, LOOK_S):
                if one.error() is None:
                    heard(one.value() or b"")

        with looking(look):
            yield
        consumer.close()


class MemorySide(LogSide):
    """The log in memory: one for all objects of this process."""

    _kept: list[MemoryBackend] = []  # noqa: RUF012 - a name lives while somebody holds it

    def open(self) -> None:
        assert isinstance(self.log, MemoryBackend)
        self._kept.append(self.log)
        super().open()
