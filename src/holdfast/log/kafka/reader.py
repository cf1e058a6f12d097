"""Reading one partition ahead, and turning messages into records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from holdfast.log.contract import Record, StoredRecord
from holdfast.log.kafka.connection import TIMED_OUT
from holdfast.log.kafka.names import topic_name
from holdfast.log.kafka.settings import KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka._types import HeadersType

ID_HEADER = "holdfast-id"
"""Carries a record's id."""
READ_AHEAD_KIB = 8 << 10
"""What a reader holds at most of what comes next."""
BATCH_RECORDS_MAX = 1000
"""Records that a producer puts into one batch where a broker knows batches only."""

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
            self._assign(offset)
            self.position = offset

    def _assign(self, offset: int) -> None:
        self._consumer.assign([TopicPartition(self._name, self.partition, offset)])

    def take(self, count: int, timeout_s: float) -> list[StoredRecord]:
        """Return up to `count` records that follow; waits until there are so many.

        Raises:
            KafkaException: the broker said something else.
        """
        found: list[StoredRecord] = []
        for message in self._consume(count, timeout_s):
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

    def _consume(self, count: int, timeout_s: float) -> list[Message]:
        return self._consumer.consume(count, timeout_s)

    def close(self) -> None:
        """Let go of the connection."""
        self._consumer.close()


class BatchReader(Reader):
    """A reader for a broker that knows where batches begin, but not what is inside them.

    Asked for an offset, such a broker (Tansu on memory and S3) begins with the first batch that
    begins there or later, and so leaves out the rest of one that began before. And it says that
    the log ends behind the first record of its last batch. So a jump begins a batch earlier and
    drops what comes before; and to find the end, the last batch is read.
    """

    def __init__(self, settings: KafkaSettings, topic: str, partition: int) -> None:
        super().__init__(settings, topic, partition)
        self._settings = settings
        self._back = 0
        self._dropping = False
        self._kept: list[Message] = []
        self._tail: Reader | None = None
        self._told = self._end = -1

    def bounds(self, timeout_s: float) -> tuple[int, int]:
        """Return the first offset held and the next to be given, which the broker does not know."""
        first, told = super().bounds(timeout_s)
        if told > 0 and told != self._told:
            self._tail = self._tail or Reader(self._settings, self.topic, self.partition)
            self._tail.position = -1
            self._tail.seek(told - 1)
            last = self._tail.take(1, timeout_s)
            if not last:
                raise KafkaException(KafkaError(TIMED_OUT))
            # A batch comes as a whole: when its first record is here, all of them are.
            while more := self._tail.take(BATCH_RECORDS_MAX, 0.0):
                last = more
            self._told, self._end = told, last[-1].offset + 1
        return first, max(told, self._end)

    def _assign(self, offset: int) -> None:
        self._back = max(self._back, BATCH_RECORDS_MAX)
        self._dropping, self._kept = True, []
        super()._assign(max(0, offset - self._back))

    def _consume(self, count: int, timeout_s: float) -> list[Message]:
        if self._dropping:
            self._kept = self._drop(timeout_s)
        kept, self._kept = self._kept[:count], self._kept[count:]
        return kept if kept or self._dropping else super()._consume(count, timeout_s)

    def _drop(self, timeout_s: float) -> list[Message]:
        """Return what was read at or behind the wanted offset, having dropped what lies before."""
        found = super()._consume(self._back, timeout_s)
        first = found[0].offset() if found and found[0].error() is None else None
        if first is not None and self.position < first and self._back < self.position:
            self._back *= 8  # somebody wrote larger batches
            self._assign(self.position)
            return []
        good = [one for one in found if one.error() or (one.offset() or 0) >= self.position]
        self._dropping = not good
        return good

    def close(self) -> None:
        """Let go of both connections."""
        super().close()
        if self._tail is not None:
            self._tail.close()


def reader_of(settings: KafkaSettings, topic: str, partition: int) -> Reader:
    """Return a reader that suits the broker."""
    kind = BatchReader if settings.reads == "batch" else Reader
    return kind(settings, topic, partition)


def _texts(headers: HeadersType) -> dict[str, str]:
    pairs = headers.items() if isinstance(headers, dict) else headers
    return {
        name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""
        for name, value in pairs
    }
