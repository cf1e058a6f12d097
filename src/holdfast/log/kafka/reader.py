"""Reading one partition ahead, and turning messages into records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, TopicPartition

from holdfast.log.contract import Record, StoredRecord
from holdfast.log.kafka.names import topic_name
from holdfast.log.kafka.settings import KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka._types import HeadersType

ID_HEADER = "holdfast-id"
"""Carries a record's id."""
READ_AHEAD_KIB = 8 << 10
"""What a reader holds at most of what comes next."""

# The `__init__` of a frozen dataclass costs more than the rest of reading a record, so these two
# classes are filled by the setters of their slots, as the embedded log does.
_new = object.__new__
_set_value, _set_id, _set_key, _set_headers = (
    getattr(Record, name).__set__ for name in ("value", "record_id", "key", "headers")
)
_set_topic, _set_partition, _set_offset, _set_record = (
    getattr(StoredRecord, name).__set__ for name in ("topic", "partition", "offset", "record")
)


class Reader:
    """One consumer of one partition, which reads ahead. Used by one call at a time."""

    def __init__(self, settings: KafkaSettings, topic: str, partition: int) -> None:
        self.topic, self.partition = topic, partition
        self.position = -1
        """The offset of what `take` gives next; -1: nothing is being read."""
        self._name = topic_name(settings.prefix, topic)
        self._consumer = Consumer({
            **settings.client(),
            "group.id": self._name,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "queued.max.messages.kbytes": READ_AHEAD_KIB,
            # A jump waits for the fetch that is under way: at most this long.
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 50,
            "fetch.queue.backoff.ms": 5,
        })  # fmt: skip

    def bounds(self, timeout_s: float) -> tuple[int, int]:
        """Ask the broker for the first offset held and the next to be given."""
        where = TopicPartition(self._name, self.partition)
        return self._consumer.get_watermark_offsets(where, timeout=timeout_s)

    def seek(self, offset: int) -> None:
        """Read from `offset` on, unless it is what comes next anyway."""
        if offset != self.position:
            self._consumer.assign([TopicPartition(self._name, self.partition, offset)])
            self.position = offset

    def take(self, count: int, timeout_s: float) -> list[StoredRecord]:
        """Return up to `count` records that follow; waits until there are so many.

        Raises:
            KafkaException: the broker said something else.
        """
        found: list[StoredRecord] = []
        for message in self._consumer.consume(count, timeout_s):
            error = message.error()
            if error is not None:
                self.position = -1
                raise KafkaException(error)
            record = _new(Record)
            _set_value(record, message.value() or b"")
            _set_key(record, message.key() or b"")
            headers = message.headers()
            if headers is None:
                _set_id(record, "")
                _set_headers(record, {})
            else:
                texts = _texts(headers)
                _set_id(record, texts.pop(ID_HEADER, ""))
                _set_headers(record, texts)
            stored = _new(StoredRecord)
            _set_topic(stored, self.topic)
            _set_partition(stored, self.partition)
            _set_offset(stored, message.offset())
            _set_record(stored, record)
            found.append(stored)
        if found:
            self.position = found[-1].offset + 1
        return found

    def close(self) -> None:
        """Let go of the connection."""
        self._consumer.close()


def _texts(headers: HeadersType) -> dict[str, str]:
    pairs = headers.items() if isinstance(headers, dict) else headers
    return {
        name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""
        for name, value in pairs
    }
