"""How far groups are: each is a Kafka group of its own, per topic, that nobody ever joins.

A position is read and then written: two processes that commit for one group at the same instant
may set it back. Inside one process a lock forbids it.

Each group is asked by a consumer of its own. The admin client could ask for any, but it ends the
whole process by an assertion when a broker goes away in between (librdkafka issue 4605).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, TopicPartition

from holdfast._base.ids import START
from holdfast.log.kafka.connection import Connection
from holdfast.log.kafka.consumers import let_go
from holdfast.log.kafka.names import group_name, group_prefix, mark_name

MEMBERS_MAX = 8
"""Groups that stay connected. Fewer: one who serves many groups connects for each commit."""


class Positions:
    """Positions of the groups of any topic, by the topic's name on the broker."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._committing = threading.RLock()
        self._members: dict[str, Consumer] = {}

    def close(self) -> None:
        """Let go of all connections."""
        with self._committing:
            members, self._members = self._members, {}
        for member in members.values():
            let_go(member)

    def register(self, name: str, group: str, partitions: int) -> None:
        """Give a group the position 0 wherever it has none."""
        known = group_name(name, group)
        with self._committing:
            stored = self._read(known, name, range(partitions))
            missing = [partition for partition, offset in stored.items() if offset is None]
            self._write(known, name, dict.fromkeys(missing, START))

    def advance(self, name: str, group: str, partition: int, offset: int) -> None:
        """Set a group's position if it grows."""
        self._advance(group_name(name, group), name, partition, offset)

    def mark(self, name: str, partition: int, offset: int) -> None:
        """Set from which offset on a topic counts as held, if it grows."""
        self._advance(mark_name(name), name, partition, offset)

    def _advance(self, known: str, name: str, partition: int, offset: int) -> None:
        with self._committing:
            stored = self._read(known, name, [partition])[partition]
            if stored is None or stored < offset:
                self._write(known, name, {partition: offset})

    def of(self, name: str, group: str, partition: int) -> int:
        """Return a group's position; 0 if it never committed."""
        return self._read(group_name(name, group), name, [partition])[partition] or START

    def marked(self, name: str, partition: int) -> int:
        """Return from which offset on a topic counts as held."""
        return self._read(mark_name(name), name, [partition])[partition] or START

    def least(self, name: str, partition: int) -> int:
        """Return the least position of all known groups of a topic; 0 with none."""
        admin = self._connection.admin
        found = self._connection.again_in_future(
            lambda wait_s: admin.list_consumer_groups(request_timeout=wait_s)
        )
        if found.errors:
            raise self._connection.trouble(found.errors[0].args[0])
        groups = (one.group_id for one in found.valid or ())
        known = [one for one in groups if one.startswith(group_prefix(name))]
        positions = (
            self._read(one, name, [partition])[partition] or START
            for one in known
            if one != mark_name(name)
        )
        return min(positions, default=START)

    def _read(self, known: str, name: str, partitions: Iterable[int]) -> dict[int, int | None]:
        where = [TopicPartition(name, partition) for partition in partitions]
        with self._committing:
            member = self._member(known)
            found = self._connection.again(lambda wait_s: member.committed(where, timeout=wait_s))
        for one in found:
            if one.error is not None:
                raise self._connection.trouble(one.error)
        return {one.partition: one.offset if one.offset >= 0 else None for one in found}

    def _write(self, known: str, name: str, offsets: Mapping[int, int]) -> None:
        if not offsets:
            return
        where = [TopicPartition(name, partition, offset) for partition, offset in offsets.items()]
        member = self._member(known)
        done = self._connection.again(lambda _: member.commit(offsets=where, asynchronous=False))
        for one in done or ():
            if one.error is not None:
                raise self._connection.trouble(one.error)

    def _member(self, known: str) -> Consumer:
        """Return the consumer that speaks for a group. It joins nothing, and reads nothing."""
        member = self._members.pop(known, None)
        if member is None:
            settings = self._connection.settings.client()
            member = Consumer({**settings, "group.id": known, "enable.auto.commit": False})
        self._members[known] = member
        if len(self._members) > MEMBERS_MAX:
            let_go(self._members.pop(next(iter(self._members))))
        return member
