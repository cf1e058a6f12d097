"""What workers send each other. Format: docs/internals/worker-journal.md#messages.

A message is one frame (length, checksum) around a body: version 1 | fields. Texts are UTF-8 with
their length before them. It is read strictly, by its schema: an unknown kind or version, a byte
missing or one too many is refused, never guessed at.

`message_id` is a hash of what the message identifies: said again after a crash, it has the same
name, and a log that knows the name takes it once.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from holdfast._base import frames
from holdfast._base.frames import Frame
from holdfast._base.ids import digest
from holdfast.errors import Damaged, StoreNewer, UsageInvalid

VERSION = 1
KIND_CHUNK, KIND_END, KIND_QUERY_END = 1, 2, 3
TEXT_BYTES_MAX = (1 << 16) - 1
NUMBER_MAX = (1 << 63) - 1
_TEXTS = struct.Struct("<BHHHQ")
"""Version, the lengths of three texts, a number. The texts follow, then the payload."""


class ChunkId(NamedTuple):
    """What identifies a chunk: never its content."""

    client: str
    table_type: str
    sender: str
    ordinal: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A numbered piece of a client's table, from one sender. Ordinals count from 1."""

    client: str
    table_type: str
    sender: str
    ordinal: int
    payload: bytes

    @property
    def id(self) -> ChunkId:
        """Return its identity."""
        return ChunkId(self.client, self.table_type, self.sender, self.ordinal)

    @property
    def message_id(self) -> str:
        """Return its name, which does not depend on the payload."""
        return digest("chunk", *self.id)


@dataclass(frozen=True, slots=True)
class End:
    """A sender's statement: I sent `total_chunks` chunks of this client's table."""

    client: str
    table_type: str
    total_chunks: int
    sender: str

    @property
    def message_id(self) -> str:
        """Return its name. The count is part of it: another count must arrive, and be refused."""
        return digest("end", self.client, self.table_type, self.sender, self.total_chunks)


@dataclass(frozen=True, slots=True)
class QueryEnd:
    """A sender's statement: this client's query has all its results from me.

    For loops of one's own: `Worker` ends each table by its END, and neither sends nor takes this.
    """

    client: str
    query: str
    sender: str

    @property
    def message_id(self) -> str:
        """Return its name."""
        return digest("query end", self.client, self.query, self.sender)


Message = Chunk | End | QueryEnd


def encode_body(message: Message) -> tuple[int, bytes]:
    """Return the kind and the body of a message.

    Raises:
        UsageInvalid: a text is too long, or a number is out of range.
    """
    if isinstance(message, Chunk):
        return KIND_CHUNK, _body(message, message.table_type, message.ordinal, 1) + message.payload
    if isinstance(message, End):
        return KIND_END, _body(message, message.table_type, message.total_chunks, 0)
    return KIND_QUERY_END, _body(message, message.query, 0, 0)


def _body(message: Message, subject: str, number: int, number_min: int) -> bytes:
    texts = [text.encode() for text in (message.client, subject, message.sender)]
    if not number_min <= number <= NUMBER_MAX:
        what = f"{type(message).__name__} of client {message.client} with number {number}"
        raise UsageInvalid(what=what, remedy="Ordinals count from 1, totals from 0.")
    if any(len(text) > TEXT_BYTES_MAX for text in texts):
        what = f"a name in {type(message).__name__} has over {TEXT_BYTES_MAX} bytes"
        raise UsageInvalid(what=what, remedy="Use shorter names.")
    return _TEXTS.pack(VERSION, *map(len, texts), number) + b"".join(texts)


def _fields(body: bytes, path: str) -> tuple[str, str, str, int, int]:
    """Return the three texts of a body, its number, and where its payload begins."""
    if body and body[0] > VERSION:
        raise StoreNewer(path=path, found=body[0], known=VERSION)
    if len(body) < _TEXTS.size or body[0] != VERSION:
        raise Damaged(path=path, what="a worker message has no version or is cut")
    _, client_size, subject_size, sender_size, number = _TEXTS.unpack_from(body)
    subject_at = _TEXTS.size + client_size
    sender_at = subject_at + subject_size
    stop = sender_at + sender_size
    if stop > len(body) or number > NUMBER_MAX:
        raise Damaged(path=path, what="a worker message is cut")
    try:
        client = body[_TEXTS.size : subject_at].decode()
        subject = body[subject_at:sender_at].decode()
        sender = body[sender_at:stop].decode()
    except UnicodeDecodeError as error:
        raise Damaged(path=path, what=f"a worker message holds no text: {error}") from error
    return client, subject, sender, number, stop


def chunk_id_of(body: bytes, *, path: str) -> ChunkId:
    """Return whose body of a chunk this is, without its payload: who reads many feels it.

    Raises:
        StoreNewer: a newer Holdfast wrote it.
        Damaged: it is no chunk.
    """
    client, table_type, sender, ordinal, _ = _fields(body, path)
    if ordinal < 1:
        raise Damaged(path=path, what=f"a chunk has ordinal {ordinal}")
    return ChunkId(client, table_type, sender, ordinal)


def decode_body(kind: int, body: bytes, *, path: str = "a worker message") -> Message:
    """Return the message in `body`; `path` says where it was, for the error.

    Raises:
        StoreNewer: a newer Holdfast wrote it.
        Damaged: it is no message.
    """
    client, subject, sender, number, stop = _fields(body, path)
    if kind == KIND_CHUNK and number >= 1:
        return Chunk(client, subject, sender, number, body[stop:])
    if kind == KIND_END and stop == len(body):
        return End(client, subject, number, sender)
    if kind == KIND_QUERY_END and stop == len(body) and number == 0:
        return QueryEnd(client, subject, sender)
    raise Damaged(path=path, what=f"a worker message of kind {kind} does not fit its schema")


def encode(message: Message) -> bytes:
    """Return the bytes that travel.

    Raises:
        UsageInvalid: it is larger than a frame may be, or a field is out of range.
    """
    kind, body = encode_body(message)
    return frames.encode(Frame(kind, 0, body))


def decode(data: bytes) -> Message:
    """Return the message in `data`.

    Raises:
        StoreNewer: a newer Holdfast wrote it.
        Damaged: it is no message.
    """
    found = frames.scan(data, path="a worker message")
    if len(found.frames) != 1 or found.end != len(data):
        raise Damaged(path="a worker message", what=f"{len(data)} bytes are not one frame")
    return decode_body(found.frames[0].kind, found.frames[0].payload)
