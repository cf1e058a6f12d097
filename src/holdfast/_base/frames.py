"""Checksummed records in a file that is only ever appended to. Format: docs/internals/frames.md.

    magic 2 | type 1 | version 1 | sequence 8 | length 4 | crc32 4 | payload   (little endian)

The checksum covers everything but itself. The sequence counts from 0, so a frame that was
dropped, repeated or moved shows.

The torn-tail rule: a bad frame with no good frame behind it is the torn end of the last write,
which nobody was told about; it is cut off. A bad frame with a good one behind it is damage in
the middle; it is an error and never skipped.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.errors import Damaged, UsageInvalid

MAGIC = b"\xf5\x48"
VERSION = 1
PAYLOAD_BYTES_MAX = 64 << 20
"""64 MiB: larger values belong in blobs. A flipped length cannot ask for more memory than this."""
_HEADER = struct.Struct("<2sBBQI")
_CRC = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CRC.size


@dataclass(frozen=True, slots=True)
class Frame:
    """One record: its kind, its place in the sequence, its bytes."""

    kind: int
    sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Scan:
    """What a file holds: its good frames and where they end; bytes beyond are a torn tail."""

    frames: tuple[Frame, ...]
    end: int


def encode(frame: Frame) -> bytes:
    """Return the bytes of `frame`.

    Raises:
        UsageInvalid: the payload is larger than a frame may be.
    """
    if len(frame.payload) > PAYLOAD_BYTES_MAX:
        raise UsageInvalid(
            what=f"a record of {len(frame.payload)} bytes is over {PAYLOAD_BYTES_MAX}",
            remedy="Put large values into a blob and record its name.",
        )
    head = _HEADER.pack(MAGIC, frame.kind, VERSION, frame.sequence, len(frame.payload))
    return head + _CRC.pack(zlib.crc32(frame.payload, zlib.crc32(head))) + frame.payload


def _decode_at(data: bytes, start: int) -> tuple[Frame, int] | None:
    """Return the good frame at `start` and its end, or None."""
    if start + HEADER_BYTES > len(data):
        return None
    magic, kind, version, sequence, length = _HEADER.unpack_from(data, start)
    stop = start + HEADER_BYTES + length
    if magic != MAGIC or version != VERSION or length > PAYLOAD_BYTES_MAX or stop > len(data):
        return None
    payload = data[start + HEADER_BYTES : stop]
    (crc,) = _CRC.unpack_from(data, start + _HEADER.size)
    if crc != zlib.crc32(payload, zlib.crc32(data[start : start + _HEADER.size])):
        return None
    return Frame(kind, sequence, payload), stop


def _good_frames_behind(data: bytes, start: int) -> Iterator[int]:
    position = data.find(MAGIC, start)
    while position >= 0:
        if _decode_at(data, position) is not None:
            yield position
        position = data.find(MAGIC, position + 1)


def scan(data: bytes, *, path: str, first_sequence: int = 0) -> Scan:
    """Return the frames of a file, applying the torn-tail rule.

    Raises:
        Damaged: a frame in the middle is bad, missing, repeated or out of sequence.
    """
    frames: list[Frame] = []
    position = 0
    while position < len(data):
        found = _decode_at(data, position)
        if found is None:
            if (behind := next(_good_frames_behind(data, position + 1), None)) is not None:
                what = f"the record at byte {position} is bad, one at byte {behind} is good"
                raise Damaged(path=path, what=what)
            break
        frame, stop = found
        if frame.sequence != first_sequence + len(frames):
            what = f"record {first_sequence + len(frames)} is missing, found {frame.sequence}"
            raise Damaged(path=path, what=what)
        frames.append(frame)
        position = stop
    return Scan(tuple(frames), position)
