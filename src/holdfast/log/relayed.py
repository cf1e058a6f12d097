"""The store's topics, carried by a log elsewhere: an outbox, a relay, and a reader in one.

The outbox is the store's own topics: a transaction appends a reference there together with what it
is about. A fetch finds out from the outbox what is to come, and gives it when it has come back from
the log elsewhere:

1. What the log holds is read from where the last reading stopped.
2. At its end, what is still missing is sent, in batches, each confirmed before it counts. A log
   that takes no id twice may hold it further up: the confirmation says where, and it is read there.
3. A record counts if its number in the outbox is the next one wanted. All others are passed over:
   what was sent twice, by us or by a former process that woke up, and what comes too early.

So positions are the store's alone. What the log knows of them is a hint where to begin to read: a
hint that is lost or wrong costs a second sending, nothing else, and so does a log that lost
records, or is another one than before. What comes back must be what was sent, byte by byte.

The log is told how far it was read when a reader commits, never when it reads, and drops what is
below that where it can. A reader that keeps nothing of what it read is killed: the log has it all.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from holdfast._base.clock import Clock
from holdfast._base.crashpoint import crashpoint
from holdfast._base.ids import START, Offset
from holdfast.config import BATCH_SIZE, FETCH_TIMEOUT_MS
from holdfast.errors import Damaged, LogEmptied, UsageInvalid
from holdfast.log.contract import (
    Capability,
    Position,
    QueueBackend,
    QueueEndpoint,
    Record,
    StoredRecord,
)
from holdfast.log.embedded import EmbeddedBackend
from holdfast.log.open import open_backend
from holdfast.store.contract import Store, TopicStore
from holdfast.store.rows import Fence

NUMBER_HEADER = "holdfast-offset"
"""Carries a record's offset in the outbox."""
READER_GROUP = "holdfast"
"""The group under which the log elsewhere is told how far it was read."""
LOSSES_MAX = 5
"""How often a log may lose a topic while a batch is brought over it. More: a log that keeps nothing
is asked for ever. Fewer: a broker that is killed again and again ends the run."""
SENDINGS_MAX = 5
"""How often one record is sent before a log that confirms it and never shows it is called so."""


@dataclass(slots=True)
class _Cursor:
    """Where one partition is read on the log elsewhere."""

    expected: int = -1
    """The number in the outbox of what is wanted next; -1: nothing was read yet."""
    place: Offset = START
    """The offset on the log elsewhere from which on it is looked for."""
    places: dict[int, Offset] = field(default_factory=dict)
    """Number in the outbox -> `place` when it was wanted next, of what the last fetch read."""
    noted: Offset = START
    lock: threading.Lock = field(default_factory=threading.Lock)


class RelayedBackend(EmbeddedBackend):
    """A log on a store whose records travel over `remote`, which somebody else starts and stops.

    `name` tells the topics of this store from those of all others on the same log. A `fence` is
    carried by what changes the store, as on the store's own log.
    """

    capabilities = EmbeddedBackend.capabilities - {Capability.SHARED}

    def __init__(
        self,
        store: TopicStore,
        remote: QueueBackend,
        *,
        name: str,
        batch_size: int = BATCH_SIZE,
        fetch_timeout_s: float = FETCH_TIMEOUT_MS / 1000,
        clock: Clock | None = None,
        fence: Fence | None = None,
    ) -> None:
        super().__init__(store, clock=clock, fence=fence)
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
            for left in reversed(range(LOSSES_MAX)):
                if self._has_come(topic, partition, wanted, is_last=left == 0):
                    break
            crashpoint("relay.read.after")
        return wanted

    def _has_come(
        self, topic: str, partition: int, wanted: Sequence[StoredRecord], *, is_last: bool
    ) -> bool:
        """Bring `wanted` over the log elsewhere; False: it lost the topic in the middle."""
        try:
            cursor = self._cursor(topic, partition)
            with cursor.lock:
                self._note(cursor, topic, partition)
                self._begin(cursor, topic, partition, wanted[0].offset)
                self._collect(cursor, topic, partition, wanted)
        except (LogEmptied, UsageInvalid):
            if is_last or _is_there(self._remote, self.remote_topic(topic)):
                raise
            return False
        return True

    def _cursor(self, topic: str, partition: int) -> _Cursor:
        """Return where a partition is read; at its beginning, if the log does not know the topic:
        one that lost it holds nothing, and is sent what is missing.
        """
        name = self.remote_topic(topic)
        with self._making:
            if not _is_there(self._remote, name):
                for key in [key for key in self._cursors if key[0] == topic]:
                    del self._cursors[key]
            found = self._cursors.get((topic, partition))
            if found is None:
                self._remote.create_topic(name, partitions=self.partitions(topic))
                found = self._cursors[topic, partition] = _Cursor()
            return found

    def _begin(self, cursor: _Cursor, topic: str, partition: int, number: int) -> None:
        """Make ready to look for record `number`."""
        if cursor.expected != number:
            known = cursor.places.get(number)
            cursor.place = self._hint(cursor, topic, partition) if known is None else known
            cursor.expected = number
        cursor.places = {number: cursor.place}

    def _hint(self, cursor: _Cursor, topic: str, partition: int) -> Offset:
        """Return where to begin: where the last process stopped, or else where the log begins."""
        name = self.remote_topic(topic)
        first, end = self._remote.bounds(name, partition=partition)
        hint = START
        if cursor.expected < 0:
            hint = self._remote.get_committed_offset(name, READER_GROUP, partition=partition)
        return hint if first <= hint <= end else first

    def _note(self, cursor: _Cursor, topic: str, partition: int) -> None:
        """Tell the log how far it was read: as far as every group has committed, here.

        Not at each commit: when all that was read is done, or a batch since the last time.
        1. It is told. Crash after: it keeps records that nobody reads, until it is told again.
        2. It drops what is below, if it can.
        """
        least = self.get_min_committed_offset(topic, partition=partition)
        place = cursor.places.get(least, START)
        is_due = least == cursor.expected or place - cursor.noted >= self._batch_size
        if place > cursor.noted and is_due:
            try:
                self._drop_there(topic, partition, place)
            except (LogEmptied, UsageInvalid):
                if _is_there(self._remote, self.remote_topic(topic)):
                    raise
            cursor.noted = place
            cursor.places = {n: at for n, at in cursor.places.items() if n >= least}

    def _drop_there(self, topic: str, partition: int, place: Offset) -> None:
        name = self.remote_topic(topic)
        self._remote.commit_offset(name, READER_GROUP, place, partition=partition)
        crashpoint("relay.note.after")
        if Capability.TRUNCATE in self._remote.capabilities:
            self._remote.truncate_before(name, place, partition=partition)

    def commit_offset(self, topic: str, group: str, offset: Offset, *, partition: int = 0) -> None:
        """Record durably that a group is done with everything below; then tell the log."""
        super().commit_offset(topic, group, offset, partition=partition)
        self._tell(topic, partition)

    def produce_and_commit(
        self,
        topic: str,
        records: Sequence[Record],
        positions: Sequence[Position],
        *,
        partition: int = 0,
    ) -> list[Offset]:
        """Append records and advance positions as one transaction; then tell the log."""
        offsets = super().produce_and_commit(topic, records, positions, partition=partition)
        for position in positions:
            self._tell(position.topic, position.partition)
        return offsets

    def _tell(self, topic: str, partition: int) -> None:
        cursor = self._cursors.get((topic, partition))
        if cursor is not None:
            with cursor.lock:
                self._note(cursor, topic, partition)

    def _collect(
        self, cursor: _Cursor, topic: str, partition: int, wanted: Sequence[StoredRecord]
    ) -> None:
        """Read until all of `wanted` has come, sending what the log does not hold."""
        got, sendings = 0, 0
        timeout_s = 0.0
        name = self.remote_topic(topic)
        while got < len(wanted):
            more = self._remote.fetch_batch(
                name,
                cursor.place,
                count=self._batch_size,
                partition=partition,
                timeout_s=timeout_s,
            )
            if not more:
                if sendings == SENDINGS_MAX:
                    what = f"topic {topic}: record {wanted[got].offset} is confirmed, but not held"
                    raise Damaged(path=self._remote.endpoint().url, what=what)
                batch = wanted[got : got + self._batch_size]
                # Further up than we are: the log takes no id twice, or it began anew.
                cursor.place = min(cursor.place, self._send(name, partition, batch))
                sendings, timeout_s = sendings + 1, self._fetch_timeout_s
            for stored in more:
                cursor.place = Offset(stored.offset + 1)
                if _number_of(stored.record) == wanted[got].offset:
                    self._check(topic, stored.record, wanted[got])
                    got, sendings, timeout_s = got + 1, 0, 0.0
                    cursor.expected = wanted[got - 1].offset + 1
                    cursor.places[cursor.expected] = cursor.place
                    if got == len(wanted):
                        break

    def _send(self, name: str, partition: int, batch: Sequence[StoredRecord]) -> Offset:
        """Send records; returns where the first of them lies."""
        records = [
            one.record._replace(headers={**one.record.headers, NUMBER_HEADER: str(one.offset)})
            for one in batch
        ]
        crashpoint("relay.send.before")
        offsets = self._remote.produce_batch(name, records, partition=partition)
        crashpoint("relay.send.after")
        return offsets[0]

    def _check(self, topic: str, found: Record, wanted: StoredRecord) -> None:
        sent = wanted.record
        if (found.value, found.key, found.record_id) != (sent.value, sent.key, sent.record_id):
            what = f"topic {topic}: record {wanted.offset} is not what was sent"
            raise Damaged(path=self._remote.endpoint().url, what=what)

    def truncate_before(self, topic: str, offset: Offset, *, partition: int = 0) -> Offset:
        """Drop records below `offset`, never beyond the minimum committed offset.

        1. There, if all of it was read. Crash after: what is here is the reason to do it again.
        2. Here.
        """
        _, end = self.bounds(topic, partition=partition)
        if offset >= end:
            self.release(topic, partition=partition)
        return super().truncate_before(topic, offset, partition=partition)

    def release(self, topic: str, *, partition: int = 0) -> None:
        """Drop what the log elsewhere holds of a topic of which every group has read all.

        What is read of others is dropped on the way. This is for what a crash left.
        """
        least = self.get_min_committed_offset(topic, partition=partition)
        _, end = self.bounds(topic, partition=partition)
        name = self.remote_topic(topic)
        if least >= end and _is_there(self._remote, name):
            _, place = self._remote.bounds(name, partition=partition)
            self._drop_there(topic, partition, place)


def _is_there(remote: QueueBackend, name: str) -> bool:
    try:
        return remote.partitions(name) > 0
    except UsageInvalid:
        return False


def _number_of(record: Record) -> int:
    text = record.headers.get(NUMBER_HEADER, "")
    return int(text) if text.isascii() and text.isdigit() else -1


@dataclass(frozen=True, slots=True)
class Route:
    """How the references of some topics travel: over which log, how many at once."""

    log: str
    batch_size: int = BATCH_SIZE
    fetch_timeout_ms: int = FETCH_TIMEOUT_MS


@contextmanager
def open_logs(store: Store, routes: Mapping[int, Route]) -> Iterator[dict[int, RelayedBackend]]:
    """Give a log for each route, by its number. Each URL is opened and started once."""
    with ExitStack() as stack:
        remotes: dict[str, QueueBackend] = {}
        for url in dict.fromkeys(route.log for route in routes.values()):
            remotes[url] = open_backend(url)
        for remote in remotes.values():
            stack.callback(remote.stop)
            remote.start()
        yield {
            number: RelayedBackend(
                store,
                remotes[route.log],
                name=store.store_id(),
                batch_size=route.batch_size,
                fetch_timeout_s=route.fetch_timeout_ms / 1000,
            )
            for number, route in routes.items()
        }
