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
_WHOLE = struct.Struct("<2sBBQII")
HEADER_BYTES = _WHOLE.size


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


def _end_at(data: bytes, start: int) -> tuple[int, int, int] | None:
    """Return kind, sequence and end of the good frame at `start`, or None."""
    if start + HEADER_BYTES > len(data):
        return None
    magic, kind, version, sequence, length, crc = _WHOLE.unpack_from(data, start)
    stop = start + HEADER_BYTES + length
    if magic != MAGIC or version != VERSION or length > PAYLOAD_BYTES_MAX or stop > len(data):
        return None
    head = zlib.crc32(data[start : start + _HEADER.size])
    if crc != zlib.crc32(data[start + HEADER_BYTES : stop], head):
        return None
    return kind, sequence, stop


def _good_frames_behind(data: bytes, start: int) -> Iterator[int]:
    position = data.find(MAGIC, start)
    while position >= 0:
        if _end_at(data, position) is not None:
            yield position
        position = data.find(MAGIC, position + 1)


def walk(data: bytes, *, path: str, first_sequence: int = 0) -> Iterator[tuple[int, int, int]]:
    """Yield kind, start and end of each frame of a file, applying the torn-tail rule.

    The payload is what follows HEADER_BYTES after the start. No object is made per frame: who
    reads a hundred thousand of them feels it.

    Raises:
        Damaged: a frame in the middle is bad, missing, repeated or out of sequence.
    """
    position, expected = 0, first_sequence
    while position < len(data):
        found = _end_at(data, position)
        if found is None:
            if (behind := next(_good_frames_behind(data, position + 1), None)) is not None:
                what = f"the record at byte {position} is bad, one at byte {behind} is good"
                raise Damaged(path=path, what=what)
            return
        kind, sequence, stop = found
        if sequence != expected:
            raise Damaged(path=path, what=f"record {expected} is missing, found {sequence}")
        yield kind, position, stop
        position, expected = stop, expected + 1


def scan(data: bytes, *, path: str, first_sequence: int = 0) -> Scan:
    """Return the frames of a file, applying the torn-tail rule.

    Raises:
        Damaged: a frame in the middle is bad, missing, repeated or out of sequence.
    """
    places = list(walk(data, path=path, first_sequence=first_sequence))
    frames = (
        Frame(kind, sequence, data[start + HEADER_BYTES : stop])
        for sequence, (kind, start, stop) in enumerate(places, first_sequence)
    )
    return Scan(tuple(frames), places[-1][2] if places else 0)
