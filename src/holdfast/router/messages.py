"""What clients send over their queues. Format: docs/internals/router-messages.md.

A message is one frame (length, checksum) around a body: version 1 | lengths | number | texts. It
is read strictly, by its schema. It does not say whose it is: the queue does.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from holdfast._base import frames
from holdfast._base.frames import Frame
from holdfast._base.ids import Ordinal, RunId, digest
from holdfast.errors import Damaged, StoreNewer, UsageInvalid

VERSION = 1
KIND_CHUNK, KIND_END = 1, 2
FORMATS = {1: "csv", 2: "json", 3: "parquet"}
NUMBER_MAX = (1 << 63) - 1
CHECKSUM_BYTES = 32
_WHERE = "a client's message"
_HEAD = struct.Struct("<BBHHHQ")
"""Version, format (0 of an END), the lengths of three texts, ordinal or count."""
_RUN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CODES = {name: code for code, name in FORMATS.items()}


@dataclass(frozen=True, slots=True)
class ClientChunk:
    """A numbered piece of a table: a whole document, with the SHA-256 its sender computed."""

    run: RunId
    table: str
    sender: str
    ordinal: Ordinal
    format: str
    checksum: str
    payload: bytes

    @property
    def message_id(self) -> str:
        """Return its name, which does not depend on the payload."""
        return digest("client chunk", self.run, self.table, self.sender, self.ordinal)


@dataclass(frozen=True, slots=True)
class ClientEnd:
    """A sender's statement: I sent `count` chunks of this table."""

    run: RunId
    table: str
    sender: str
    count: int

    @property
    def message_id(self) -> str:
        """Return its name. The count is part of it: another count must arrive, and be refused."""
        return digest("client end", self.run, self.table, self.sender, self.count)


ClientMessage = ClientChunk | ClientEnd


def encode(message: ClientMessage) -> bytes:
    """Return the bytes that travel.

    Raises:
        UsageInvalid: it is larger than a frame may be, or a field is out of range.
    """
    if isinstance(message, ClientEnd):
        body = _head(message, 0, message.count, 0)
        return frames.encode(Frame(KIND_END, 0, body))
    checksum = bytes.fromhex(message.checksum)
    if message.format not in _CODES or len(checksum) != CHECKSUM_BYTES:
        what = f"a chunk of format {message.format!r} with checksum {message.checksum!r}"
        raise UsageInvalid(what=what, remedy=f"Use {', '.join(_CODES)}, and its SHA-256.")
    body = _head(message, _CODES[message.format], message.ordinal, 1) + checksum + message.payload
    return frames.encode(Frame(KIND_CHUNK, 0, body))


def _head(message: ClientMessage, code: int, number: int, least: int) -> bytes:
    texts = [text.encode() for text in (message.run, message.table, message.sender)]
    if not least <= number <= NUMBER_MAX or any(len(text) > 0xFFFF for text in texts):
        what = f"{type(message).__name__} of table {message.table[:80]!r} with number {number}"
        raise UsageInvalid(
            what=what, remedy="Ordinals count from 1, counts from 0; names are short."
        )
    return _HEAD.pack(VERSION, code, *map(len, texts), number) + b"".join(texts)


def decode(data: bytes) -> ClientMessage:
    """Return the message in `data`.

    Raises:
        StoreNewer: it is of a newer version.
        Damaged: it is no message.
    """
    found = frames.scan(data, path=_WHERE)
    if len(found.frames) != 1 or found.end != len(data):
        raise Damaged(path=_WHERE, what=f"{len(data)} bytes are not one frame")
    kind, body = found.frames[0].kind, found.frames[0].payload
    if body and body[0] > VERSION:
        raise StoreNewer(path=_WHERE, found=body[0], known=VERSION)
    if len(body) < _HEAD.size or body[0] != VERSION:
        raise Damaged(path=_WHERE, what="it has no version or is cut")
    _, code, *sizes, number = _HEAD.unpack_from(body)
    (run, table, sender), stop = _texts(body, sizes)
    if number > NUMBER_MAX or not _RUN.fullmatch(run):
        raise Damaged(path=_WHERE, what="its run or its number is out of range")
    if kind == KIND_END and code == 0 and stop == len(body):
        return ClientEnd(RunId(run), table, sender, number)
    payload_at = stop + CHECKSUM_BYTES
    if kind == KIND_CHUNK and code in FORMATS and number >= 1 and payload_at <= len(body):
        checksum = body[stop:payload_at].hex()
        ordinal, payload = Ordinal(number), body[payload_at:]
        return ClientChunk(RunId(run), table, sender, ordinal, FORMATS[code], checksum, payload)
    raise Damaged(path=_WHERE, what=f"kind {kind} with format {code} does not fit its schema")


def _texts(body: bytes, sizes: list[int]) -> tuple[list[str], int]:
    texts, start = [], _HEAD.size
    for size in sizes:
        stop = start + size
        if stop > len(body):
            raise Damaged(path=_WHERE, what="it is cut")
        try:
            texts.append(body[start:stop].decode())
        except UnicodeDecodeError as error:
            raise Damaged(path=_WHERE, what=f"it holds no text: {error}") from error
        start = stop
    return texts, start
