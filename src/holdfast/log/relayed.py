"""The store's topics, carried by a log elsewhere: an outbox, a relay, and a reader in one.

The outbox is the store's own topics: a transaction appends a reference there together with what it
is about. A fetch finds out from the outbox what is to come, and gives it when it has come back from
the log elsewhere:

1. What the log holds is read from where the last reading stopped.
2. At its end, what is still missing is sent, in batches, each confirmed before it counts.
3. A record counts if its number in the outbox is the next one wanted. All others are passed over:
   what was sent twice, by us or by a former process that woke up, and what comes too early.

So positions are the store's alone. What the log knows of them is a hint where to begin to read: a
hint that is lost or wrong costs a second sending, nothing else, and so does a log that lost
records, or is another one than before. What comes back must be what was sent, byte by byte.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from holdfast._base.clock import Clock
from holdfast._base.crashpoint import crashpoint
from holdfast._base.ids import START, Offset
from holdfast.errors import Damaged
from holdfast.log.contract import Capability, QueueBackend, QueueEndpoint, Record, StoredRecord
from holdfast.log.embedded import EmbeddedBackend
from holdfast.log.open import open_backend
from holdfast.store.contract import Store, TopicStore

NUMBER_HEADER = "holdfast-offset"
"""Carries a record's offset in the outbox."""
READER_GROUP = "holdfast"
"""The group under which the log elsewhere is told how far it was read."""
BATCH_SIZE = 100
"""References sent at once. Fewer: a confirmation each. More: a broker's limit on a request."""
FETCH_TIMEOUT_S = 1.0
"""How long a log may take to show what it has confirmed."""
SENDINGS_MAX = 5
"""How often one record is sent before a log that confirms it and never shows it is called so."""


@dataclass(slots=True)
class _Cursor:
    """Where one partition is read on the log elsewhere."""

    expected: int = -1
    """The number in the outbox of what is wanted next; -1: nothing was read yet."""
    place: Offset = START
    """The offset on the log elsewhere from which on it is looked for."""
    noted: Offset = START
    lock: threading.Lock = field(default_factory=threading.Lock)


class RelayedBackend(EmbeddedBackend):
    """A log on a store whose records travel over `remote`, which somebody else starts and stops.

    `name` tells the topics of this store from those of all others on the same log.
    """

    capabilities = EmbeddedBackend.capabilities - {Capability.SHARED}

    def __init__(
        self,
        store: TopicStore,
        remote: QueueBackend,
        *,
        name: str,
        batch_size: int = BATCH_SIZE,
        fetch_timeout_s: float = FETCH_TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(store, clock=clock)
        self._remote, self._prefix = remote, name
        self._batch_size, self._fetch_timeout_s = batch_size, fetch_timeout_s
        self._cursors: dict[tuple[str, int], _Cursor] = {}
        self._making = threading.Lock()

    def endpoint(self) -> QueueEndpoint:
        """Return the endpoint of the log elsewhere; topics are called `remote_topic` there."""
        return self._remote.endpoint()

    def remote_topic(self, topic: str) -> str:
        """Return what a topic of the store is called on the log elsewhere."""
        return f"{self._prefix}/{topic}"

    def fetch_batch(
        self,
        topic: str,
        offset: Offset,
        *,
        count: int,
        partition: int = 0,
        timeout_s: float = 0.0,
    ) -> list[StoredRecord]:
        """Return up to `count` records from `offset` on that came over the log elsewhere.

        Raises:
            LogUnreachable: it does not answer. Nothing is lost: the outbox has it.
            Damaged: what came back is not what was sent, or never comes.
        """
        wanted = super().fetch_batch(
            topic, offset, count=count, partition=partition, timeout_s=timeout_s
        )
        if wanted:
            cursor = self._cursor(topic, partition)
            with cursor.lock:
                self._begin(cursor, topic, partition, wanted[0].offset)
                self._collect(cursor, topic, partition, wanted)
            crashpoint("relay.read.after")
        return wanted

    def _cursor(self, topic: str, partition: int) -> _Cursor:
        with self._making:
            found = self._cursors.get((topic, partition))
            if found is None:
                name = self.remote_topic(topic)
                self._remote.create_topic(name, partitions=self.partitions(topic))
                found = self._cursors[topic, partition] = _Cursor()
            return found

    def _begin(self, cursor: _Cursor, topic: str, partition: int, number: int) -> None:
        """Make ready to look for record `number`, and tell the log how far it was read.

        Whoever asks for a record is done with those before it.
        """
        name = self.remote_topic(topic)
        if cursor.expected == number:
            if cursor.place > cursor.noted:
                self._remote.commit_offset(name, READER_GROUP, cursor.place, partition=partition)
                cursor.noted = cursor.place
                crashpoint("relay.note.after")
            return
        first, end = self._remote.bounds(name, partition=partition)
        hint = START
        if cursor.expected < 0:
            hint = self._remote.get_committed_offset(name, READER_GROUP, partition=partition)
        cursor.place = hint if first <= hint <= end else first
        cursor.expected = number

    def _collect(
        self, cursor: _Cursor, topic: str, partition: int, wanted: Sequence[StoredRecord]
    ) -> None:
        """Read until all of `wanted` has come, sending what the log does not hold."""
        got, sendings = 0, 0
        timeout_s = 0.0
        name = self.remote_topic(topic)
        while got < len(wanted):
            more = self._remote.fetch_batch(
                name, cursor.place, count=len(wanted), partition=partition, timeout_s=timeout_s
            )
            if not more:
                if sendings == SENDINGS_MAX:
                    what = f"topic {topic}: record {wanted[got].offset} is confirmed, but not held"
                    raise Damaged(path=self._remote.endpoint().url, what=what)
                self._send(name, partition, wanted[got : got + self._batch_size])
                sendings, timeout_s = sendings + 1, self._fetch_timeout_s
            for stored in more:
                cursor.place = Offset(stored.offset + 1)
                if _number_of(stored.record) == wanted[got].offset:
                    self._check(topic, stored.record, wanted[got])
                    got, sendings, timeout_s = got + 1, 0, 0.0
                    cursor.expected = wanted[got - 1].offset + 1
                    if got == len(wanted):
                        break

    def _send(self, name: str, partition: int, batch: Sequence[StoredRecord]) -> None:
        records = [
            replace(one.record, headers={**one.record.headers, NUMBER_HEADER: str(one.offset)})
            for one in batch
        ]
        crashpoint("relay.send.before")
        self._remote.produce_batch(name, records, partition=partition)
        crashpoint("relay.send.after")

    def _check(self, topic: str, found: Record, wanted: StoredRecord) -> None:
        sent = wanted.record
        if (found.value, found.key, found.record_id) != (sent.value, sent.key, sent.record_id):
            what = f"topic {topic}: record {wanted.offset} is not what was sent"
            raise Damaged(path=self._remote.endpoint().url, what=what)

    def truncate_before(self, topic: str, offset: Offset, *, partition: int = 0) -> Offset:
        """Drop records below `offset` here, and there what was read, where that gives room back."""
        kept = super().truncate_before(topic, offset, partition=partition)
        if Capability.TRUNCATE in self._remote.capabilities:
            cursor = self._cursor(topic, partition)
            name = self.remote_topic(topic)
            self._remote.truncate_before(name, cursor.noted, partition=partition)
        return kept


def _number_of(record: Record) -> int:
    text = record.headers.get(NUMBER_HEADER, "")
    return int(text) if text.isascii() and text.isdigit() else -1


@contextmanager
def open_log(store: Store, url: str) -> Iterator[QueueBackend]:
    """Give the log that a store's topics travel on: the store's own, unless `url` names another."""
    if not url:
        yield EmbeddedBackend(store)
        return
    remote = open_backend(url)
    try:
        remote.start()
        yield RelayedBackend(store, remote, name=store.store_id())
    finally:
        remote.stop()
