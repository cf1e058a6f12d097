"""Reading one partition ahead, and turning messages into records."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from holdfast._base.clock import Clock
from holdfast.log.contract import NO_HEADERS, Record, StoredRecord
from holdfast.log.kafka.connection import TIMED_OUT
from holdfast.log.kafka.consumers import CALL_S, comes_back, let_go
from holdfast.log.kafka.names import topic_name
from holdfast.log.kafka.settings import KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka._types import HeadersType

ID_HEADER = "holdfast-id"
"""Carries a record's id."""
READ_AHEAD_KIB = 8 << 10
"""What a reader holds at most of what comes next."""
FETCH_WAIT_MS = 50
"""How long a broker that has nothing to give waits before it says so. Tansu does not look in
between: so late it notices a record. Longer: a jump, which waits for the fetch under way, takes
longer, too. Shorter: whoever waits asks more often, and on S3 every question is paid for."""
BATCH_RECORDS_MAX = 1000
"""Records that a producer puts into one batch where a broker knows batches only."""
STORED_S = 2.0
"""How long a batch that has its offset is waited for. Shorter: a slow S3 makes the end too near.
Longer: so long lasts a question for the end while a batch is missing that a dead broker lost."""
LATE_S = 20.0
"""How long a batch is waited for when one behind it is there. Shorter: where several produce, one
whose storing took longer is passed over, though it may be confirmed yet. Longer: so long stands
every reader, once, where a dead broker lost one."""
AT_THE_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - the client's own codes begin so


class Reader:
    """One consumer of one partition, which reads ahead. Used by one call at a time."""

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        partition: int,
        more: Mapping[str, str | int | bool] | None = None,
    ) -> None:
        self.topic, self.partition = topic, partition
        self.position = -1
        """The offset of what `take` gives next; -1: nothing is being read."""
        self._name = topic_name(settings.prefix, topic)
        self._config: dict[str, str | int | bool] = {
            **settings.client(),
            "group.id": self._name,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "queued.max.messages.kbytes": READ_AHEAD_KIB,
            "fetch.wait.max.ms": FETCH_WAIT_MS,
            "fetch.error.backoff.ms": 50,
            "fetch.queue.backoff.ms": 5,
            **(more or {}),
        }
        self._consumer = Consumer(self._config)

    def renew(self) -> None:
        """Go on with another consumer in place of one that gives nothing, from any offset."""
        stuck, self._consumer = self._consumer, Consumer(self._config)
        self.position = -1
        let_go(stuck)

    def bounds(self, timeout_s: float) -> tuple[int, int]:
        """Ask the broker for the first offset held and the next to be given."""
        where = TopicPartition(self._name, self.partition)
        found: list[tuple[int, int]] = []

        def ask() -> None:
            found.append(self._consumer.get_watermark_offsets(where, timeout=timeout_s))

        if not comes_back(ask, timeout_s + CALL_S):
            self.renew()
            raise KafkaException(KafkaError(TIMED_OUT))
        return found[0]

    def seek(self, offset: int) -> None:
        """Read from `offset` on, unless it is what comes next anyway."""
        if offset != self.position:
            self._assign(offset)
            self.position = offset

    def _assign(self, offset: int) -> None:
        where = [TopicPartition(self._name, self.partition, offset)]
        if not comes_back(partial(self._consumer.assign, where)):
            self.renew()
            self._consumer.assign(where)

    def take(self, count: int, timeout_s: float) -> list[StoredRecord]:
        """Return up to `count` records that follow; waits until there are so many.

        Raises:
            KafkaException: the broker said something else.
        """
        found: list[StoredRecord] = []
        topic, partition = self.topic, self.partition
        new = tuple.__new__  # What a named tuple's own `__new__` calls: half of the time.
        for message in self._consume(count, timeout_s):
            error = message.error()
            if error is not None:
                self.position = -1
                raise KafkaException(error)
            value, key, headers = message.value() or b"", message.key() or b"", message.headers()
            if headers is None:
                record = new(Record, (value, "", key, NO_HEADERS))
            else:
                texts = _texts(headers)
                record = new(Record, (value, texts.pop(ID_HEADER, ""), key, texts))
            found.append(new(StoredRecord, (topic, partition, message.offset(), record)))
        if found:
            self.position = found[-1].offset + 1
        return found

    def _consume(self, count: int, timeout_s: float) -> list[Message]:
        return self._consumer.consume(count, timeout_s)

    def close(self) -> None:
        """Let go of the connection."""
        let_go(self._consumer)


class Tail(Reader):
    """Finds where a log ends by reading there, for a broker that cannot be asked.

    It is used for a moment at a time: in between it reads nothing.
    """

    def __init__(self, settings: KafkaSettings, topic: str, partition: int) -> None:
        super().__init__(settings, topic, partition, {"enable.partition.eof": True})

    def find(self, batch: int, known: int, timeout_s: float) -> int:
        """Return the offset behind the last record that can be read.

        `batch` is where some batch begins, `known` how far the log reached when last seen. It is
        read from the later one; from `batch` on, if nothing is said there: a number may have been
        given to what is not there yet, or never will be, or the log is another one than before.

        Raises:
            KafkaException: the broker said something else, or nothing in time.
        """
        end = self._read_on(known, min(STORED_S, timeout_s)) if known > batch else -1
        if end < 0:
            end = self._read_on(batch, timeout_s)
        self._consumer.unassign()
        if end < 0:
            raise KafkaException(KafkaError(TIMED_OUT))
        return end

    def _read_on(self, start: int, timeout_s: float) -> int:
        """Return where the log ends, having read from `start` on; -1: the broker said nothing."""
        self._assign(start)
        where = TopicPartition(self._name, self.partition)
        end = -1
        while found := self._consume(1, timeout_s):
            for message in found + self._consume(BATCH_RECORDS_MAX, 0.0):
                error = message.error()
                if error is None:
                    end = (message.offset() or 0) + 1
                elif error.code() == AT_THE_END:
                    return max(end, start)
                else:
                    raise KafkaException(error)
            # The answer that brought these records said how far the log reached at that time.
            if end >= self._consumer.get_watermark_offsets(where, cached=True)[1]:
                break
            timeout_s = min(STORED_S, timeout_s)
        return end


class BatchReader(Reader):
    """A reader for a broker that knows where batches begin, but not what is inside them.

    What such a broker does (Tansu on memory and S3), and what is done about it:

    * Asked for an offset, it begins with the first batch that begins there or later, and so leaves
      out the rest of one that began before. A jump begins a batch earlier and drops what was not
      wanted.
    * Asked where a log ends, it names the offset behind the *first* record of the batch with the
      latest time. S3's times are whole seconds, and of several batches of one second it takes the
      first. So that is a place where some batch begins, no more: the end is found by reading on.
    * It gives a batch its offset and then stores it. So a batch may be there before the one that it
      follows, which is waited for, for a while: it may have been lost with a broker that died.
    """

    def __init__(self, settings: KafkaSettings, topic: str, partition: int, clock: Clock) -> None:
        super().__init__(settings, topic, partition)
        self._settings, self._clock = settings, clock
        self._late_s = min(LATE_S, settings.timeout_s / 2)
        self._gap, self._gap_s = -1, 0.0
        self._back = 0
        self._dropping = False
        self._kept: list[Message] = []
        self._tail: Tail | None = None
        self._end = 0

    def bounds(self, timeout_s: float) -> tuple[int, int]:
        """Return the first offset held and the next to be given, which the broker does not know."""
        first, told = super().bounds(timeout_s)
        if told > 0:
            self._tail = self._tail or Tail(self._settings, self.topic, self.partition)
            self._end = self._tail.find(told - 1, self._end, timeout_s)
        else:
            self._end = 0
        return first, self._end

    def take(self, count: int, timeout_s: float) -> list[StoredRecord]:
        """Return up to `count` records that follow; what was read is proof of how far it goes."""
        found = super().take(count, timeout_s)
        if found:
            self._end = max(self._end, self.position)
        return found

    def _assign(self, offset: int) -> None:
        self._back = max(self._back, BATCH_RECORDS_MAX)
        self._dropping, self._kept = True, []
        super()._assign(max(0, offset - self._back))

    def _consume(self, count: int, timeout_s: float) -> list[Message]:
        if self._dropping:
            self._kept = self._drop(timeout_s)
        kept, self._kept = self._kept[:count], self._kept[count:]
        found = kept if kept or self._dropping else super()._consume(count, timeout_s)
        return self._without_gap(found)

    def _without_gap(self, found: list[Message]) -> list[Message]:
        """Return what follows one another; the rest is read again with what is missing before."""
        wanted = self.position
        for place, message in enumerate(found):
            offset = message.offset() or 0
            if message.error() is None and offset > wanted and self._is_awaited(wanted):
                self._assign(wanted)
                return found[:place]
            wanted = offset + 1
        return found

    def _is_awaited(self, gap: int) -> bool:
        now_s = self._clock.monotonic_s()
        if gap != self._gap:
            self._gap, self._gap_s = gap, now_s
        return now_s < self._gap_s + self._late_s

    def _drop(self, timeout_s: float) -> list[Message]:
        """Return what was read at or behind the wanted offset, having dropped what lies before."""
        found = super()._consume(1, timeout_s)
        found += super()._consume(self._back - 1, 0.0)
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


def reader_of(settings: KafkaSettings, topic: str, partition: int, clock: Clock) -> Reader:
    """Return a reader that suits the broker."""
    if settings.reads == "batch":
        return BatchReader(settings, topic, partition, clock)
    return Reader(settings, topic, partition)


def _texts(headers: HeadersType) -> dict[str, str]:
    pairs = headers.items() if isinstance(headers, dict) else headers
    return {
        name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""
        for name, value in pairs
    }
