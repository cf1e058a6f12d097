"""What a journal says: its records, one by one, turned into what stands. No input or output.

Per client: the state, which chunks are counted in it, the chunks that came but are not counted
(in order), those that wait in the buffer, ENDs, and what was sent. A finished client leaves its
name and its ENDs, so that a late copy of one of its messages cannot revive it, and a message that
contradicts them is told from a copy.

Formats: docs/internals/worker-journal.md#records.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast._base.frames import HEADER_BYTES
from holdfast._base.intervals import Intervals
from holdfast.errors import Damaged
from holdfast.worker.journal import Record
from holdfast.worker.messages import (
    KIND_CHUNK,
    Chunk,
    ChunkId,
    End,
    chunk_id_of,
    decode_body,
    encode_body,
)

KIND_DATA, KIND_STATE, KIND_SEND, KIND_BUFFER, KIND_CLEAR = 1, 2, 3, 4, 5
SENDS_PER_RECORD = 1000
"""At most. Fewer: more frames to read. More: a frame nears the largest there may be."""
_HEAD = struct.Struct("<I")
_CHUNK = bytes([KIND_CHUNK])

Source = tuple[str, str]
"""A table type and a sender."""
Covers = Mapping[Source, Intervals]
"""Ordinals per source."""


@dataclass(slots=True)
class ClientBooks:
    """What stands for one client. Chunks stay bodies until somebody asks for them."""

    state: bytes | None = None
    last: ChunkId | None = None
    counted: dict[Source, Intervals] = field(default_factory=dict)
    came: dict[ChunkId, bytes] = field(default_factory=dict)
    buffered: dict[ChunkId, bytes] = field(default_factory=dict)
    ends: dict[Source, int] = field(default_factory=dict)
    sent: dict[str, None] = field(default_factory=dict)
    held: Counter[Source] = field(default_factory=Counter)
    """How many chunks of each source came and are not counted."""
    highest: dict[Source, int] = field(default_factory=dict)
    """The highest ordinal of each source that came, counted or not."""
    live_bytes: int = 0

    def is_complete(self, source: Source) -> bool:
        """Tell whether the chunks that came *equal* those that the source's END announced.

        `total` different ordinals, none of them above it, are 1 to `total`. No buffer is gone
        through: this is asked at each message.
        """
        total, counted = self.ends.get(source), self.counted.get(source, Intervals())
        if total is None or self.highest.get(source, 0) > total:
            return False
        return len(counted) + self.held[source] == total

    def knows(self, chunk_id: ChunkId) -> bool:
        """Tell whether a chunk came here before, counted or not."""
        return chunk_id in self.came or chunk_id in self.buffered or self.has_counted(chunk_id)

    def has_counted(self, chunk_id: ChunkId) -> bool:
        """Tell whether a chunk is counted."""
        source = (chunk_id.table_type, chunk_id.sender)
        return chunk_id.ordinal in self.counted.get(source, Intervals())


def covers_of(ids: Iterable[ChunkId]) -> Covers:
    """Return chunks as ordinals per source."""
    ordinals: dict[Source, list[int]] = {}
    for one in ids:
        ordinals.setdefault((one.table_type, one.sender), []).append(one.ordinal)
    return {source: Intervals.of(numbers) for source, numbers in ordinals.items()}


def chunks_in(bodies: Iterable[bytes], *, path: str) -> list[Chunk]:
    """Return the chunks of which these are the bodies."""
    found = (decode_body(KIND_CHUNK, body, path=path) for body in bodies)
    return [chunk for chunk in found if isinstance(chunk, Chunk)]


def message_record(kind: int, message: Chunk | End) -> Record:
    """Return a DATA or a BUFFER record: the message that came."""
    message_kind, body = encode_body(message)
    return kind, bytes([message_kind]) + body


def state_record(
    last: ChunkId, covers: Covers, state: bytes, *, forgets_sends: bool = False
) -> Record:
    """Return a STATE record: the state, and which chunks it counts for the first time.

    `forgets_sends`: what went out before it was sent for those it counts, and is not asked for.
    """
    head = _json(
        {
            "client": last.client,
            "last": last[1:],
            "covers": _listed(covers),
            "forgets_sends": forgets_sends,
        }
    )
    return KIND_STATE, _HEAD.pack(len(head)) + head + state


def send_records(client: str, message_ids: Iterable[str]) -> Iterator[Record]:
    """Yield SEND records: these went out."""
    ids = list(message_ids)
    for place in range(0, len(ids), SENDS_PER_RECORD):
        fields = {"client": client, "message_ids": ids[place : place + SENDS_PER_RECORD]}
        yield KIND_SEND, _json(fields)


def clear_record(client: str, covers: Covers) -> Record:
    """Return a CLEAR record: these chunks are counted without a state."""
    fields = {"client": client, "covers": _listed(covers), "ends": [], "finished": False}
    return KIND_CLEAR, _json(fields)


def finish_record(client: str, ends: Mapping[Source, int]) -> Record:
    """Return a CLEAR record: of this client, only what its senders announced is kept."""
    listed = [[*source, total] for source, total in sorted(ends.items())]
    fields = {"client": client, "covers": [], "ends": listed, "finished": True}
    return KIND_CLEAR, _json(fields)


def _sends_bytes(message_ids: Iterable[str]) -> int:
    """Return what the names of sent messages need: each, its quotes and a comma."""
    return sum(len(one) + 3 for one in message_ids)


def _listed(covers: Covers) -> list[Any]:
    return [[*source, found.ranges] for source, found in sorted(covers.items())]


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")


class Books:
    """All clients of one worker. `live_bytes` is what a journal needs that says only what stands.

    It leaves out the few bytes of counted ranges, and those around the names of what was sent.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.clients: dict[str, ClientBooks] = {}
        self.finished: dict[str, dict[Source, int]] = {}
        self.live_bytes = 0

    def of(self, client: str) -> ClientBooks:
        """Return what stands for a client; empty for one not heard of, which is not noted."""
        return self.clients.get(client) or ClientBooks()

    def ends_of(self, client: str) -> Mapping[Source, int]:
        """Return what the senders of a client announced, also of a finished one."""
        found = self.finished.get(client)
        return self.of(client).ends if found is None else found

    def apply(self, record: Record) -> None:
        """Take one record in.

        Raises:
            Damaged: it is of no known kind.
        """
        kind, payload = record
        size = HEADER_BYTES + len(payload)
        if kind in (KIND_DATA, KIND_BUFFER):
            self._take_message(kind, payload, size)
        elif kind == KIND_STATE:
            self._take_state(payload)
        elif kind == KIND_SEND:
            fields = json.loads(payload)
            books = self._client(fields["client"])
            new = [one for one in fields["message_ids"] if one not in books.sent]
            books.sent.update(dict.fromkeys(new))
            self._grow(books, _sends_bytes(new))
        elif kind == KIND_CLEAR:
            fields = json.loads(payload)
            self._count(self._client(fields["client"]), fields["client"], fields["covers"])
            if fields["finished"]:
                self.live_bytes += size - self.clients.pop(fields["client"]).live_bytes
                ends = {(table, sender): total for table, sender, total in fields["ends"]}
                self.finished[fields["client"]] = ends
        else:
            raise Damaged(path=self._path, what=f"it holds a record of unknown kind {kind}")

    def _client(self, name: str) -> ClientBooks:
        books = self.clients.get(name)
        if books is None:
            books = self.clients[name] = ClientBooks()
        return books

    def _grow(self, books: ClientBooks, size: int) -> None:
        books.live_bytes += size
        self.live_bytes += size

    def _take_message(self, kind: int, payload: bytes, size: int) -> None:
        body = payload[1:]
        if payload[0] == KIND_CHUNK:
            chunk_id = chunk_id_of(body, path=self._path)
            books = self._client(chunk_id.client)
            (books.came if kind == KIND_DATA else books.buffered)[chunk_id] = body
            source = (chunk_id.table_type, chunk_id.sender)
            books.held[source] += 1
            if chunk_id.ordinal > books.highest.get(source, 0):
                books.highest[source] = chunk_id.ordinal
        else:
            end = decode_body(payload[0], body, path=self._path)
            if not isinstance(end, End):
                raise Damaged(path=self._path, what="it holds a query END, which no worker keeps")
            books = self._client(end.client)
            books.ends[end.table_type, end.sender] = end.total_chunks
        self._grow(books, size)

    def _take_state(self, payload: bytes) -> None:
        (head_size,) = _HEAD.unpack_from(payload)
        head = json.loads(payload[_HEAD.size : _HEAD.size + head_size])
        state = payload[_HEAD.size + head_size :]
        books = self._client(head["client"])
        self._grow(books, len(state) - len(books.state or b""))
        books.state, books.last = state, ChunkId(head["client"], *head["last"])
        if head["forgets_sends"]:
            self._grow(books, -_sends_bytes(books.sent))
            books.sent.clear()
        self._count(books, head["client"], head["covers"])

    def _count(self, books: ClientBooks, client: str, covers: list[Any]) -> None:
        for table_type, sender, ranges in covers:
            source = (table_type, sender)
            before = books.counted.get(source, Intervals()).ranges
            added = [(low, high) for low, high in ranges]
            books.counted[source] = found = Intervals.merged([*before, *added])
            books.highest[source] = max(books.highest.get(source, 0), found.ranges[-1][1])
            if not (books.came or books.buffered):
                continue
            for ordinal in (number for low, high in added for number in range(low, high + 1)):
                self._drop(books, ChunkId(client, table_type, sender, ordinal))

    def _drop(self, books: ClientBooks, chunk_id: ChunkId) -> None:
        for held in (books.came, books.buffered):
            if (body := held.pop(chunk_id, None)) is not None:
                books.held[chunk_id.table_type, chunk_id.sender] -= 1
                self._grow(books, -HEADER_BYTES - 1 - len(body))

    def records(self) -> Iterator[Record]:
        """Yield the fewest records that say what stands."""
        for client, announced in self.finished.items():
            yield finish_record(client, announced)
        for client, books in self.clients.items():
            if books.state is not None and books.last is not None:
                yield state_record(books.last, books.counted, books.state)
            elif books.counted:
                yield clear_record(client, books.counted)
            for (table_type, sender), total in books.ends.items():
                yield message_record(KIND_DATA, End(client, table_type, total, sender))
            for body in books.came.values():
                yield KIND_DATA, _CHUNK + body
            for body in books.buffered.values():
                yield KIND_BUFFER, _CHUNK + body
            yield from send_records(client, books.sent)
