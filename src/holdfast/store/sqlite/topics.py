"""Topics of the embedded log: shards, records, offsets of groups.

A record's key packs its shard and its offset into one integer, so the records of a shard lie side
by side in the tree: an append touches the last page only, a fetch reads pages in a row. Only
records that have an id are in the index of ids. Offsets come from the shard's own counter.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import apsw

from holdfast._base.ids import START, Offset
from holdfast._base.invariant import invariant
from holdfast.errors import UsageInvalid
from holdfast.log.contract import NO_HEADERS, Record, StoredRecord
from holdfast.store.rows import Fence
from holdfast.store.sqlite.base import Part, canonical, hold_fence, row_of, rows_of
from holdfast.store.sqlite.schema import OFFSET_BITS

_KNOWN_IDS = f"""
SELECT record_id, place & {(1 << OFFSET_BITS) - 1} FROM record
WHERE place >> {OFFSET_BITS} = ? AND record_id IN (SELECT value FROM json_each(?))
"""  # noqa: S608 - constants only


def make_topic(connection: apsw.Connection, topic: str, partitions: int) -> int:
    """Create a topic if it is missing; return how many partitions it has."""
    if partitions < 1:
        raise UsageInvalid(
            what=f"topic {topic} with {partitions} partitions", remedy="Give at least one."
        )
    connection.execute(
        "INSERT INTO topic (name, partitions) VALUES (?, ?) ON CONFLICT DO NOTHING",
        (topic, partitions),
    )
    created = connection.changes() == 1
    sql = "SELECT topic_id, partitions FROM topic WHERE name = ?"
    [(topic_id, stored)] = rows_of(connection, sql, topic)
    if created:
        connection.executemany(
            "INSERT INTO shard (topic_id, partition) VALUES (?, ?)",
            ((topic_id, partition) for partition in range(stored)),
        )
    return int(stored)


def find_shard(connection: apsw.Connection, topic: str, partition: int) -> tuple[int, int, int]:
    """Return the id of a shard, the first offset it holds and the next it will give.

    Raises:
        UsageInvalid: there is no such topic or partition.
    """
    row = row_of(
        connection,
        """SELECT shard_id, first_offset, next_offset
           FROM topic JOIN shard USING (topic_id) WHERE name = ? AND partition = ?""",
        topic,
        partition,
    )
    if row is None:
        raise UsageInvalid(
            what=f"topic {topic} has no partition {partition}, or does not exist",
            remedy="Create the topic first, with enough partitions.",
        )
    shard_id, first_offset, next_offset = row
    return shard_id, first_offset, next_offset


def _known_offsets(
    connection: apsw.Connection, shard_id: int, records: Sequence[Record]
) -> dict[str, int]:
    """Return the offsets of those ids of `records` that the shard still holds."""
    names = [record.record_id for record in records if record.record_id]
    if not names:
        return {}
    rows = rows_of(connection, _KNOWN_IDS, shard_id, json.dumps(names))
    return dict(rows)


def append(
    connection: apsw.Connection, topic: str, partition: int, records: Sequence[Record]
) -> list[Offset]:
    """Append records in an open transaction; return their offsets, old ones for known ids."""
    shard_id, _, first_free = find_shard(connection, topic, partition)
    known = _known_offsets(connection, shard_id, records)
    base = shard_id << OFFSET_BITS
    offsets: list[Offset] = []
    rows: list[tuple[Any, ...]] = []
    free = first_free
    for record in records:
        name = record.record_id
        if name and name in known:
            offsets.append(Offset(known[name]))
            continue
        if name:
            known[name] = free
        headers = canonical(dict(record.headers)) if record.headers else None
        rows.append((base | free, record.value, name or None, record.key or None, headers))
        offsets.append(Offset(free))
        free += 1
    if rows:
        # The counter first: it locks the shard where a database locks rows.
        connection.execute(
            "UPDATE shard SET next_offset = next_offset + ? WHERE shard_id = ?",
            (len(rows), shard_id),
        )
        connection.executemany("INSERT INTO record VALUES (?, ?, ?, ?, ?)", rows)
    return offsets


def set_offset(
    connection: apsw.Connection, topic: str, partition: int, group: str, offset: Offset
) -> None:
    """Set a group's position in an open transaction, if it grows.

    Raises:
        UsageInvalid: the offset is beyond the end: records still to come would be skipped.
    """
    shard_id, _, next_offset = find_shard(connection, topic, partition)
    if not 0 <= offset <= next_offset:
        raise UsageInvalid(
            what=f"offset {offset} of topic {topic}, partition {partition}, which ends at"
            f" {next_offset}",
            remedy="Commit the offset of the last record processed, plus one.",
        )
    know_group(connection, topic, group)
    connection.execute(
        """INSERT INTO group_offset VALUES (?, ?, ?) ON CONFLICT DO UPDATE
           SET next_offset = excluded.next_offset WHERE excluded.next_offset > next_offset""",
        (shard_id, group, offset),
    )


def know_group(connection: apsw.Connection, topic: str, group: str) -> None:
    """Make a group known, in an open transaction."""
    connection.execute(
        """INSERT INTO topic_group SELECT topic_id, ? FROM topic WHERE name = ?
           ON CONFLICT DO NOTHING""",
        (group, topic),
    )


def drop_topic(connection: apsw.Connection, topic: str) -> None:
    """Remove a topic with its records, groups and positions. One that is missing is no error."""
    row = row_of(connection, "SELECT topic_id FROM topic WHERE name = ?", topic)
    if row is None:
        return
    (topic_id,) = row
    sql = "SELECT shard_id FROM shard WHERE topic_id = ?"
    for (shard_id,) in rows_of(connection, sql, topic_id):
        connection.execute(
            "DELETE FROM record WHERE place >= ? AND place < ?",
            (shard_id << OFFSET_BITS, (shard_id + 1) << OFFSET_BITS),
        )
        connection.execute("DELETE FROM group_offset WHERE shard_id = ?", (shard_id,))
    for table in ("shard", "topic_group", "topic"):
        sql = f"DELETE FROM {table} WHERE topic_id = ?"  # noqa: S608 - constants only
        connection.execute(sql, (topic_id,))


def positions(connection: apsw.Connection, shard_id: int) -> dict[str, Offset]:
    """Return where every known group stands in a shard; 0 where none was committed."""
    rows = rows_of(
        connection,
        """SELECT grp, COALESCE(group_offset.next_offset, 0)
           FROM shard JOIN topic_group USING (topic_id)
           LEFT JOIN group_offset USING (shard_id, grp)
           WHERE shard_id = ? ORDER BY grp""",
        shard_id,
    )
    return {group: Offset(offset) for group, offset in rows}


def _stored_records(
    topic: str, partition: int, base: int, rows: list[tuple[Any, ...]]
) -> list[StoredRecord]:
    new = tuple.__new__  # What a named tuple's own `__new__` calls: half of the time.
    found = []
    for place, value, name, key, texts in rows:
        headers = json.loads(texts) if texts else NO_HEADERS
        record = new(Record, (value, name or "", key or b"", headers))
        found.append(new(StoredRecord, (topic, partition, place - base, record)))
    return found


class TopicPart(Part):
    """Fills `holdfast.store.contract.TopicStore`."""

    def create_topic(self, topic: str, partitions: int, *, fence: Fence | None = None) -> int:
        """Create a topic if it is missing; returns how many partitions it has."""
        with self._database.transaction() as connection:
            if fence is not None:
                hold_fence(connection, fence)
            return make_topic(connection, topic, partitions)

    def list_topics(self) -> dict[str, int]:
        """Return topic -> number of partitions."""
        with self._database.reading() as connection:
            rows = rows_of(connection, "SELECT name, partitions FROM topic ORDER BY name")
            return dict(rows)

    def append_records(
        self,
        topic: str,
        partition: int,
        records: Sequence[Record],
        advance: Sequence[tuple[str, int, str, Offset]] = (),
        *,
        fence: Fence | None = None,
    ) -> list[Offset]:
        """Append records, and advance positions, as one."""
        with self._database.transaction() as connection:
            if fence is not None:
                hold_fence(connection, fence)
            offsets = append(connection, topic, partition, records)
            for position in advance:
                set_offset(connection, *position)
        return offsets

    def read_records(
        self, topic: str, partition: int, offset: Offset, count: int
    ) -> list[StoredRecord]:
        """Return up to `count` records from `offset` on, in order."""
        with self._database.reading() as connection:
            shard_id, _, _ = find_shard(connection, topic, partition)
            base = shard_id << OFFSET_BITS
            rows = rows_of(
                connection,
                """SELECT place, value, record_id, record_key, headers FROM record
                   WHERE place >= ? AND place < ? ORDER BY place LIMIT ?""",
                base + max(offset, 0),
                (shard_id + 1) << OFFSET_BITS,
                max(count, 0),
            )
        return _stored_records(topic, partition, base, rows)

    def topic_bounds(self, topic: str, partition: int) -> tuple[Offset, Offset]:
        """Return the first offset still held and the next one to be given."""
        with self._database.reading() as connection:
            _, first, free = find_shard(connection, topic, partition)
        return Offset(first), Offset(free)

    def advance_offset(
        self,
        topic: str,
        partition: int,
        group: str,
        offset: Offset,
        *,
        fence: Fence | None = None,
    ) -> None:
        """Set a group's position if it grows."""
        with self._database.transaction() as connection:
            if fence is not None:
                hold_fence(connection, fence)
            set_offset(connection, topic, partition, group, offset)

    def read_offset(self, topic: str, partition: int, group: str) -> Offset | None:
        """Return a group's position, or None if it never committed one."""
        with self._database.reading() as connection:
            shard_id, _, _ = find_shard(connection, topic, partition)
            sql = "SELECT next_offset FROM group_offset WHERE shard_id = ? AND grp = ?"
            row = row_of(connection, sql, shard_id, group)
        return Offset(row[0]) if row else None

    def register_group(self, topic: str, group: str, *, fence: Fence | None = None) -> None:
        """Make a group known; until it commits, it counts as standing at 0."""
        with self._database.transaction() as connection:
            if fence is not None:
                hold_fence(connection, fence)
            find_shard(connection, topic, 0)
            know_group(connection, topic, group)

    def list_offsets(self, topic: str, partition: int) -> dict[str, Offset]:
        """Return the position of every known group; 0 where none was committed."""
        with self._database.reading() as connection:
            shard_id, _, _ = find_shard(connection, topic, partition)
            return positions(connection, shard_id)

    def truncate_records(
        self,
        topic: str,
        partition: int,
        offset: Offset,
        *,
        unread: bool = False,
        fence: Fence | None = None,
    ) -> Offset:
        """Drop records below `offset`, never beyond what every known group has committed."""
        with self._database.transaction() as connection:
            if fence is not None:
                hold_fence(connection, fence)
            shard_id, first, free = find_shard(connection, topic, partition)
            everybody = free if unread else START
            least = min(positions(connection, shard_id).values(), default=everybody)
            target = min(offset, least)
            if target <= first:
                return Offset(first)
            invariant(target <= free, f"topic {topic} was committed beyond its end")
            base = shard_id << OFFSET_BITS
            connection.execute(
                "DELETE FROM record WHERE place >= ? AND place < ?", (base | first, base | target)
            )
            connection.execute(
                "UPDATE shard SET first_offset = ? WHERE shard_id = ?", (target, shard_id)
            )
        return Offset(target)

    def drop_topic(self, topic: str) -> None:
        """Remove a topic with its records, groups and positions."""
        with self._database.transaction() as connection:
            drop_topic(connection, topic)
