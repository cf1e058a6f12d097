"""A writer's own segment: outcomes, appended as checksummed frames, many to one fsync.

Format: docs/internals/ledger.md#segments. The first frame names ledger, owner and number; each
other frame is one outcome. Invariants:

* One process writes a segment, under a name nobody else uses, and never changes what is written.
* An outcome is durable when `append` returns, and nobody was told of it before.
* After a failed write or fsync the writer takes nothing more: what the disk holds is unknown.

Crash points: `ledger.outcome.before`, `ledger.outcome.after`.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast._base import frames
from holdfast._base.crashpoint import crashpoint
from holdfast._base.files import FILE_MODE, fsync_file, os_errors
from holdfast._base.frames import Frame
from holdfast._base.invariant import invariant
from holdfast.errors import Damaged, StorageFailed, StoreNewer
from holdfast.ledger.contract import Outcome, Slot, SlotHash, Status

FORMAT = 1
KIND_HEADER = 1
KIND_OUTCOME = 2
FIXED = struct.Struct("<16s16sIBBIqqQII")
STATUSES = (Status.BOUGHT, Status.PARKED, Status.FAILED)
HAS_ANSWER, DEAD_LETTER, IN_BLOB = 1, 2, 4


@dataclass(frozen=True, slots=True)
class Place:
    """Where an outcome stands in its segment."""

    sequence: int
    position: int
    length: int


@dataclass(frozen=True, slots=True)
class Entry:
    """An outcome as stored. With `blob`, the answer is in the blob of that name.

    `change` is the store's change number that the writer had seen: a store that shows a lower one
    has lost transactions.
    """

    outcome: Outcome
    change: int
    blob: str | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """An entry and where it stands."""

    entry: Entry
    place: Place


def encode_entry(entry: Entry) -> bytes:
    """Return the payload of an outcome's frame."""
    outcome, slot = entry.outcome, entry.outcome.slot
    key, reason = slot.key.encode(), outcome.reason.encode()
    body = entry.blob.encode() if entry.blob is not None else outcome.answer
    flags = (
        (HAS_ANSWER if body is not None else 0)
        | (DEAD_LETTER if outcome.dead_letter else 0)
        | (IN_BLOB if entry.blob is not None else 0)
    )
    fixed = FIXED.pack(
        slot.hash,
        slot.inputs,
        slot.step,
        STATUSES.index(outcome.status),
        flags,
        outcome.attempts,
        outcome.cost_micros,
        outcome.recorded_ms,
        entry.change,
        len(key),
        len(reason),
    )
    return b"".join((fixed, key, reason, body or b""))


def decode_entry(payload: bytes) -> Entry:
    """Return the outcome that `encode_entry` made bytes of."""
    (hash_, inputs, step, status, flags, attempts, cost, recorded, change, keys, reasons) = (
        FIXED.unpack_from(payload)
    )
    start = FIXED.size
    key = payload[start : start + keys].decode()
    reason = payload[start + keys : start + keys + reasons].decode()
    body = payload[start + keys + reasons :] if flags & HAS_ANSWER else None
    in_blob = bool(flags & IN_BLOB)
    outcome = Outcome(
        slot=Slot(SlotHash(hash_), step, key, inputs),
        status=STATUSES[status],
        answer=None if in_blob else body,
        reason=reason,
        attempts=attempts,
        cost_micros=cost,
        recorded_ms=recorded,
        dead_letter=bool(flags & DEAD_LETTER),
    )
    return Entry(outcome, change, body.decode() if in_blob and body is not None else None)


class SegmentWriter:
    """Appends to one new segment. Not for two threads at once."""

    def __init__(self, path: Path, *, ledger_id: str, owner: str, number: int) -> None:
        """Create the segment with its header, durable with its name."""
        self.path = path
        self._failed = False
        self._sequence = 0
        header = {"format": FORMAT, "ledger": ledger_id, "number": number, "owner": owner}
        payload = json.dumps(header, sort_keys=True).encode()
        data = frames.encode(Frame(KIND_HEADER, 0, payload))
        with os_errors(path):
            self._file = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, FILE_MODE
            )
            self._write_durably(data)
            fsync_file(path.parent)
        self._sequence = 1
        self.end = len(data)

    def append(self, entries: Sequence[Entry]) -> list[Place]:
        """Write outcomes and make them durable with one fsync. Returns where they stand.

        1. All frames go out in one write. Crash within: a torn tail that nobody was told about.
        2. One fsync for all of them. Crash before: in doubt, resolved by policy. Crash after:
           whoever reads this segment to its end finds them.
        """
        if self._failed:
            raise StorageFailed(path=str(self.path), error="an earlier write to it failed")
        places: list[Place] = []
        pieces: list[bytes] = []
        position = self.end
        for entry in entries:
            data = frames.encode(Frame(KIND_OUTCOME, self._sequence, encode_entry(entry)))
            places.append(Place(self._sequence, position, len(data)))
            pieces.append(data)
            position += len(data)
            self._sequence += 1
        with os_errors(self.path):
            self._write_durably(b"".join(pieces), told=True)
        self.end = position
        return places

    def _write_durably(self, data: bytes, *, told: bool = False) -> None:
        self._failed = True
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        if told:
            crashpoint("ledger.outcome.before")
        os.fdatasync(self._file)
        if told:
            crashpoint("ledger.outcome.after")
        self._failed = False

    def close(self) -> None:
        """Let go of the file. Everything in it is durable already."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read_payloads(path: Path, *, ledger_id: str, at_least: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield byte position and payload of each outcome, to the last valid frame (torn-tail rule).

    They come in the order of their sequence, which starts at 1. `at_least` is how many bytes were
    known to be durable: fewer good ones are damage, not a tail.

    Raises:
        Damaged: the file is missing, altered in the middle, too short, or another ledger's.
    """
    try:
        with os_errors(path):
            data = path.read_bytes()
    except StorageFailed as error:
        raise Damaged(path=str(path), what=f"the segment cannot be read ({error.error})") from error
    places = list(frames.walk(data, path=str(path)))
    end = places[-1][2] if places else 0
    if end < max(at_least, 1):
        what = f"{end} good bytes, {at_least} were recorded as durable"
        raise Damaged(path=str(path), what=what)
    kind, start, stop = places[0]
    _check_header(Frame(kind, 0, data[start + frames.HEADER_BYTES : stop]), path, ledger_id)
    for kind, start, stop in places[1:]:
        invariant(kind == KIND_OUTCOME, f"{path}: a frame of unknown kind {kind}")
        yield start, data[start + frames.HEADER_BYTES : stop]


def read_segment(path: Path, *, ledger_id: str, at_least: int = 0) -> Iterator[Placed]:
    """Yield the outcomes of a segment and their places. See `read_payloads`."""
    found = read_payloads(path, ledger_id=ledger_id, at_least=at_least)
    for sequence, (position, payload) in enumerate(found, 1):
        length = frames.HEADER_BYTES + len(payload)
        yield Placed(decode_entry(payload), Place(sequence, position, length))


def _check_header(frame: Frame, path: Path, ledger_id: str) -> None:
    if frame.kind != KIND_HEADER:
        raise Damaged(path=str(path), what="it does not begin with a header")
    header = json.loads(frame.payload)
    if header["format"] != FORMAT:
        raise StoreNewer(path=str(path), found=header["format"], known=FORMAT)
    if header["ledger"] != ledger_id:
        raise Damaged(path=str(path), what=f"it belongs to ledger {header['ledger']}")


def read_entry(path: Path, place: Place) -> Entry:
    """Return the one outcome at `place`, checked.

    Raises:
        Damaged: the bytes there are not the outcome that was recorded.
        FileNotFoundError: the segment is gone; it was compacted in the meantime.
    """
    with path.open("rb") as file:
        file.seek(place.position)
        return entry_in(file.read(place.length), path, place)


def entry_in(data: bytes, path: Path, place: Place) -> Entry:
    """Return the one outcome that the bytes at `place` are, checked.

    Raises:
        Damaged: they are not the outcome that was recorded.
    """
    found = frames.scan(data, path=str(path), first_sequence=place.sequence)
    if len(found.frames) != 1 or found.end != place.length:
        raise Damaged(path=str(path), what=f"the outcome at byte {place.position} is bad")
    return decode_entry(found.frames[0].payload)
