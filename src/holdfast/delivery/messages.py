"""What external producers and delivery say to each other: docs/internals/producer-messages.md.

A message is one frame (length, checksum) around a body: version 1 | length of the head 4 | head |
data. The head is canonical JSON; only a payload has data behind it. It is read strictly: an unknown
kind or version, a field missing or one too many is refused, never guessed at. So is a series with
a name by which no client could fetch it, or in a format that none would take.

`message_id` is a hash of what a message says: said again after a crash, it has the same name, and
a log that knows the name takes it once.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from typing import Any

from holdfast._base import frames
from holdfast._base.frames import Frame
from holdfast._base.ids import RunId, digest, is_name
from holdfast.errors import Damaged, StoreNewer, UsageInvalid
from holdfast.store.result_rows import SeriesDecl

VERSION = 1
KIND_REQUEST, KIND_HEADER, KIND_PAYLOAD = 1, 2, 3
HEAD_BYTES_MAX = 1 << 20
"""1 MiB of names and columns: more is no header."""
DATA_BYTES_MAX = 8 << 20
"""8 MiB in one message: delivery holds a few in memory at once. Larger pieces go by reference."""
FORMATS = ("csv", "parquet")
"""What a client makes files of. It refuses any other, and its run would be DONE all the same."""
_LEAD = struct.Struct("<BI")
_LABEL = "a producer's message"


@dataclass(frozen=True, slots=True)
class Request:
    """What a producer is asked: compute this run, and answer on these two queues."""

    run: RunId
    client: str
    header_queue: str
    payload_queue: str

    @property
    def message_id(self) -> str:
        """Return its name: asked again after a crash, the same."""
        return digest("request", self.run)


@dataclass(frozen=True, slots=True)
class Header:
    """A producer's statement which series a run has: all of them, and no other."""

    run: RunId
    series: tuple[SeriesDecl, ...]

    @property
    def message_id(self) -> str:
        """Return its name. The series are part of it: other ones must arrive, and be refused."""
        return digest("header", encode(self))


@dataclass(frozen=True, slots=True)
class Payload:
    """One piece of a series, 1 to `total`: its bytes, or the name of a blob that holds them.

    Ordinal 0 of total 0 says that the series is empty. `checksum` is the SHA-256 of the bytes.
    """

    run: RunId
    series: str
    ordinal: int
    total: int
    checksum: str
    data: bytes = b""
    reference: str = ""

    @property
    def message_id(self) -> str:
        """Return its name. The checksum is part of it: other bytes must arrive, and be refused."""
        return digest("payload", self.run, self.series, self.ordinal, self.total, self.checksum)


Message = Request | Header | Payload


def payload_of(run: RunId, series: str, ordinal: int, total: int, data: bytes) -> Payload:
    """Return the payload that carries `data`, with its checksum."""
    return Payload(run, series, ordinal, total, hashlib.sha256(data).hexdigest(), data)


def encode(message: Message) -> bytes:
    """Return the bytes that travel.

    Raises:
        UsageInvalid: a number is out of range, a series' name or format is none, or the data is
            larger than a frame may be.
    """
    if isinstance(message, Request):
        fields: dict[str, Any] = {
            "run": message.run,
            "client": message.client,
            "header_queue": message.header_queue,
            "payload_queue": message.payload_queue,
        }
        return _frame(KIND_REQUEST, fields)
    if isinstance(message, Header):
        _check_series(message.series)
        series = [
            {"series": one.series, "columns": list(one.columns), "format": one.format}
            for one in message.series
        ]
        return _frame(KIND_HEADER, {"run": message.run, "series": series})
    _check_names([message.series])
    remedy = "Give ordinals 1 to the total; put larger data into a blob and send its name."
    _check_payload(message, UsageInvalid(what=_unfit(message), remedy=remedy))
    fields = {
        "run": message.run,
        "series": message.series,
        "ordinal": message.ordinal,
        "total": message.total,
        "checksum": message.checksum,
        "reference": message.reference,
    }
    return _frame(KIND_PAYLOAD, fields, message.data)


def _frame(kind: int, fields: dict[str, Any], data: bytes = b"") -> bytes:
    head = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")
    if len(head) > HEAD_BYTES_MAX:
        what = f"the head of {_LABEL} has {len(head)} bytes, over {HEAD_BYTES_MAX}"
        raise UsageInvalid(what=what, remedy="Use fewer or shorter names.")
    return frames.encode(Frame(kind, 0, _LEAD.pack(VERSION, len(head)) + head + data))


def decode(data: bytes) -> Message:
    """Return the message in `data`.

    Raises:
        StoreNewer: a newer Holdfast wrote it.
        Damaged: it is no message.
    """
    found = frames.scan(data, path=_LABEL)
    if len(found.frames) != 1 or found.end != len(data):
        raise Damaged(path=_LABEL, what=f"{len(data)} bytes are not one frame")
    kind, body = found.frames[0].kind, found.frames[0].payload
    if body and body[0] > VERSION:
        raise StoreNewer(path=_LABEL, found=body[0], known=VERSION)
    if len(body) < _LEAD.size or body[0] != VERSION:
        raise _damaged("it has no version or is cut")
    _, size = _LEAD.unpack_from(body)
    stop = _LEAD.size + size
    if size > HEAD_BYTES_MAX or stop > len(body):
        raise _damaged("its head is cut")
    try:
        fields = json.loads(body[_LEAD.size : stop])
        return _message(kind, fields, body[stop:])
    except (UsageInvalid, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(f"its head does not fit ({error})") from error


def _message(kind: int, fields: object, data: bytes) -> Message:
    """Return the message with these fields; any that is missing, extra or odd raises."""
    if not isinstance(fields, dict):
        raise TypeError("no object")
    match kind:
        case _ if kind != KIND_PAYLOAD and data:
            raise ValueError("data behind it")
        case frame if frame == KIND_REQUEST:
            _require(fields, texts=("run", "client", "header_queue", "payload_queue"))
            return Request(**fields)
        case frame if frame == KIND_HEADER:
            _require(fields, texts=("run",), lists=("series",))
            header = Header(fields["run"], tuple(_declared(one) for one in fields["series"]))
            _check_series(header.series)
            return header
        case frame if frame == KIND_PAYLOAD:
            texts = ("run", "series", "checksum", "reference")
            _require(fields, texts=texts, numbers=("ordinal", "total"))
            payload = Payload(**fields, data=data)
            _check_names([payload.series])
            _check_payload(payload, ValueError(_unfit(payload)))
            return payload
    raise ValueError(f"kind {kind}")


def _declared(fields: object) -> SeriesDecl:
    if not isinstance(fields, dict):
        raise TypeError("a series is no object")
    _require(fields, texts=("series", "format"), lists=("columns",))
    if not all(isinstance(name, str) for name in fields["columns"]):
        raise TypeError("a column is no text")
    _check_texts(fields["columns"])
    return SeriesDecl(fields["series"], tuple(fields["columns"]), fields["format"])


def _require(
    fields: dict[str, Any],
    *,
    texts: tuple[str, ...] = (),
    lists: tuple[str, ...] = (),
    numbers: tuple[str, ...] = (),
) -> None:
    if fields.keys() != {*texts, *lists, *numbers}:
        raise ValueError(f"fields {', '.join(sorted(fields))}")
    for names, kind in ((texts, str), (lists, list), (numbers, int)):
        if any(type(fields[name]) is not kind for name in names):
            raise TypeError(f"one of {', '.join(names)} is no {kind.__name__}")
    _check_texts([fields[name] for name in texts])


def _check_texts(texts: list[str]) -> None:
    """Refuse half a character, which JSON can write and nobody else can store."""
    for text in texts:
        text.encode()


def _check_names(series: list[str]) -> None:
    for name in series:
        if not is_name(name):
            raise UsageInvalid(
                what=f"series {name[:100]!r} is no name",
                remedy="Use letters, digits, _ and -, at most 64.",
            )


def _check_series(series: tuple[SeriesDecl, ...]) -> None:
    _check_names([one.series for one in series])
    for one in series:
        if one.format not in FORMATS:
            raise UsageInvalid(
                what=f"series {one.series} has the format {one.format[:100]!r}",
                remedy=f"Use {' or '.join(FORMATS)}.",
            )


def _check_payload(payload: Payload, error: Exception) -> None:
    is_piece = 1 <= payload.ordinal <= payload.total < 1 << 63
    is_empty = payload.ordinal == payload.total == 0
    has_both = bool(payload.data and payload.reference)
    has_any = bool(payload.data or payload.reference)
    is_large = len(payload.data) > DATA_BYTES_MAX
    if has_both or is_large or not (is_piece or (is_empty and not has_any)):
        raise error


def _unfit(payload: Payload) -> str:
    place = f"piece {payload.ordinal} of {payload.total} of series {payload.series}"
    return f"{place} with {len(payload.data)} bytes of data and reference {payload.reference!r}"


def _damaged(what: str) -> Damaged:
    return Damaged(path=_LABEL, what=what)
