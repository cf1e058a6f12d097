"""A ledger in a directory: SQLite for open slots, a segment per writer, Parquet for the settled.

    ledger.sqlite          slots, owners, steps (database.py, slots.py, steps.py)
    owners/TOKEN.lock      the life of an owner (owner.py)
    segments/TOKEN-N.seg   outcomes not yet compacted (segment.py)
    settled/TOKEN.parquet  outcomes sorted by slot hash (settled.py, compact.py)
    blobs/SHA256           answers above BLOB_BYTES
    reuse/                 how often answers were given again (reuse.py)
    rate/                  token buckets shared by the host's processes (rate.py)

Format: docs/internals/ledger.md. Invariants:

* A slot's outcome is durable in the segment before its row says so, and before `settle` returns.
* A dead owner's open slots become in doubt only after its segments were read to their last frame.

Crash points: `ledger.owner.*`, `ledger.segment.*`, `ledger.blob.after`, `ledger.seal.after`, and
those of the modules above.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from holdfast._base.clock import Clock, SystemClock
from holdfast._base.crashpoint import crashpoint
from holdfast._base.files import os_errors, sha256_of, write_replace
from holdfast.errors import LedgerMismatch, StorageFailed
from holdfast.ledger import owners, slots, steps
from holdfast.ledger.claims import claim as take
from holdfast.ledger.compact import Compactor, due, round_of, waiting
from holdfast.ledger.contract import (
    Claim,
    DeadLetter,
    Grant,
    Limit,
    Outcome,
    Reused,
    Slot,
    SlotHash,
    Step,
    Totals,
    View,
)
from holdfast.ledger.database import Database
from holdfast.ledger.owner import OwnerLock, new_owner
from holdfast.ledger.places import ledger_path, make_ledger_directory
from holdfast.ledger.reading import Reader
from holdfast.ledger.reuse import add_reused, read_reused
from holdfast.ledger.segment import Entry, Placed, SegmentWriter

BLOB_BYTES = 1 << 20
"""Larger answers go to a blob. Smaller: more files. Larger: a segment or row group of few rows."""

SEGMENT_BYTES = 8 << 20
"""A segment is sealed at this size. Smaller: more files and compactions. Larger: more to read when
an owner died, and more memory while it is compacted."""


class FileLedger:
    """The ledger in a directory of this machine. Fulfils `holdfast.ledger.contract.Ledger`.

    Opening changes nothing. The first claim makes this process an owner.
    """

    def __init__(
        self,
        url: str,
        *,
        create: bool = True,
        expected_id: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Open the ledger; make it if it is new and `create` allows.

        Raises:
            UsageInvalid: the path is relative.
            LedgerMismatch: it is not the ledger `expected_id`.
            Damaged, StoreNewer, StorageFailed, DiskFull, DependencyMissing: see `holdfast.errors`.
        """
        self.path = ledger_path(url)
        self._clock = clock or SystemClock()
        if not (create or (self.path / "ledger.sqlite").exists()):
            raise LedgerMismatch(path=str(self.path), found="none", wanted=str(expected_id))
        make_ledger_directory(self.path)
        # SQLite does not wait when two connections turn a new file into WAL mode at once.
        with owners.try_lock(self.path / "open.lock", wait=True):
            self._database = Database(self.path / "ledger.sqlite", create=create)
        self._id = self._database.ledger_id
        if expected_id not in (None, self._id):
            raise LedgerMismatch(path=str(self.path), found=self._id, wanted=str(expected_id))
        self._reader = Reader(self._database, self.path)
        # Taken in this order: appending, owning, the database's own, unseen.
        self._appending = threading.RLock()
        self._owning = threading.Lock()
        self._unseen = threading.Lock()
        self._lock: OwnerLock | None = None
        self._owner = 0
        self._token = ""
        self._abandoned = False
        self._writer: SegmentWriter | None = None
        self._segment = 0
        self._segments_made = 0
        self._change = 0
        self._unindexed: list[tuple[int, Placed]] = []
        self._housekeeper: threading.Thread | None = None

    @property
    def id(self) -> str:
        """The random id given when the ledger was made."""
        return self._id

    def step(self, name: str, fingerprint: Mapping[str, str], *, on_change: str) -> Step:
        """Register a step, or find it. See the contract."""
        return steps.register(self._database, name, fingerprint, on_change)

    def totals(self, step: int) -> Totals:
        """Return what a step has asked and spent."""
        return steps.totals(self._database, step)

    def count_reused(self, step: int, added: Reused) -> None:
        """Add to what a step's recorded answers have saved. See the contract."""
        add_reused(self.path / "reuse" / str(step), added)

    def reused(self, step: int) -> Reused:
        """Return what a step's recorded answers have saved."""
        return read_reused(self.path / "reuse" / str(step))

    # Lookups

    def lookup(self, wanted: Sequence[SlotHash]) -> View:
        """Return what is known of slots. Every outcome returned is durable."""
        return self._reader.lookup(wanted)

    def dead_letters(self, step: int) -> Iterator[DeadLetter]:
        """Yield the rows refused for good under on_error="dead_letter"."""
        yield from slots.dead_letters(self._database, step)

    # Claims and settlements

    def claim(self, claims: Sequence[Claim], *, generation: int, limit: Limit) -> Grant:
        """Take slots, durably, in one transaction. See the contract."""
        owner = self._own()
        recorded = self._take_unindexed()
        try:
            grant, self._change = take(self._database, owner, claims, generation, limit, recorded)
        except BaseException:  # whatever it is, the outcomes are still to be shown
            self._add_unindexed(recorded)
            raise
        return grant

    def _take_unindexed(self) -> list[tuple[int, Placed]]:
        with self._unseen:
            taken, self._unindexed = self._unindexed, []
        return taken

    def _add_unindexed(self, recorded: Sequence[tuple[int, Placed]]) -> None:
        with self._unseen:
            self._unindexed.extend(recorded)

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Make outcomes durable before returning. See the contract.

        1. Large answers are durable in blobs. Crash after: an orphan blob, found again by name.
        2. The outcomes are durable in this owner's segment. From here on they are settled.
        3. Their rows follow, with the next claim or `flush`; until then the segment alone knows.
        """
        if not outcomes:
            return
        entries = [self._entry(outcome) for outcome in outcomes]
        with self._appending:
            self._own()
            writer = self._writer or self._open_segment()
            places = writer.append(entries)
            segment = self._segment
            self._add_unindexed(
                [(segment, Placed(e, p)) for e, p in zip(entries, places, strict=True)]
            )
            if writer.end >= SEGMENT_BYTES:
                self._seal_segment()

    def _entry(self, outcome: Outcome) -> Entry:
        stamped = outcome if outcome.recorded_ms else self._stamped(outcome)
        if outcome.answer is None or len(outcome.answer) <= BLOB_BYTES:
            return Entry(stamped, self._change)
        name = sha256_of([outcome.answer])
        with os_errors(self.path / "blobs" / name):
            write_replace(self.path / "blobs" / name, [outcome.answer])
        crashpoint("ledger.blob.after")
        return Entry(stamped, self._change, name)

    def _stamped(self, o: Outcome) -> Outcome:
        # Not `replace`: it costs as much as writing the outcome.
        now = self._clock.wall_ms()
        return Outcome(
            o.slot, o.status, o.answer, o.reason, o.attempts, o.cost_micros, now, o.dead_letter
        )

    def flush(self) -> None:
        """Make everything that was settled visible to others before returning."""
        recorded = self._take_unindexed()
        try:
            slots.index(self._database, self._owner, recorded)
        except BaseException:  # whatever it is, the outcomes are still to be shown
            self._add_unindexed(recorded)
            raise

    def release(self, given: Sequence[Slot], *, in_doubt: bool = False) -> None:
        """Give back claimed slots. See the contract."""
        if given:
            hashes = [slot.hash for slot in given]
            slots.release(self._database, self._own(), hashes, in_doubt=in_doubt)

    def _own(self) -> int:
        """Become an owner: the lock is held before any row names us."""
        if self._abandoned:
            raise StorageFailed(path=str(self.path), error="this owner was given up; open it again")
        with self._owning:
            if self._lock is None:
                lock = new_owner(self.path / "owners")
                crashpoint("ledger.owner.before")
                self._owner = owners.register(
                    self._database, lock.token, os.getpid(), self._clock.wall_ms()
                )
                crashpoint("ledger.owner.after")
                self._lock, self._token = lock, lock.token
        return self._owner

    def _open_segment(self) -> SegmentWriter:
        """Start a segment. Its header is durable before its row: a row always has a file."""
        number = self._segments_made = self._segments_made + 1
        name = f"{self._token}-{number}.seg"
        path = self.path / "segments" / name
        writer = SegmentWriter(path, ledger_id=self.id, owner=self._token, number=number)
        crashpoint("ledger.segment.before")
        self._segment = owners.register_segment(self._database, self._owner, name)
        crashpoint("ledger.segment.after")
        self._writer = writer
        return writer

    def _seal_segment(self) -> None:
        """Close the segment once all of it is visible, and let it be compacted."""
        if self._writer is not None:
            self.flush()
            owners.seal_segment(self._database, self._segment, self._writer.end)
            crashpoint("ledger.seal.after")
            self._writer.close()
            self._writer = None
            self._start_housekeeper()

    # Dead owners and compaction

    def reap(self, suspected: Sequence[int]) -> bool:
        """Read what dead ones of these owners recorded. See the contract."""
        done = [
            owners.reap(self._database, self.path, owner)
            for owner in suspected
            if owner != self._owner
        ]
        return any(done)

    def tidy(self) -> None:
        """Read out every dead owner and compact what is due. Whoever starts a job calls it."""
        self.reap_all()
        owners.sweep_locks(self._database, self.path / "owners")
        self.compact(force=False)

    def reap_all(self) -> None:
        """Read out every dead owner: afterwards open slots belong to the living."""
        self.reap(owners.all_of(self._database))

    def verify(self) -> None:
        """Compare every checksum of the database. Files are checked when they are read."""
        self._database.verify()

    def compact(self, *, force: bool = True) -> None:
        """Move sealed segments into settled files, unless another process is at it."""
        with owners.try_lock(self.path / "compact.lock") as mine:
            if not mine:
                return
            compactor = Compactor(self._database, self.path / "segments", self.path / "settled")
            worked = False
            while (sealed := waiting(self._database)) and (force or due(sealed)):
                if not compactor.compact(round_of(sealed)):
                    break
                worked = True
            while compactor.merge():
                worked = True
            if worked or force:
                compactor.sweep()

    def _start_housekeeper(self) -> None:
        if self._housekeeper is None or not self._housekeeper.is_alive():
            self._housekeeper = threading.Thread(
                target=self.compact, kwargs={"force": False}, name="holdfast-compact", daemon=True
            )
            self._housekeeper.start()

    @property
    def is_sure(self) -> bool:
        """Tell that nobody else owns our slots: the kernel keeps our lock as long as we live."""
        return True

    def assure(self) -> None:
        """Do nothing: see `is_sure`."""

    def rate_file(self, step: int) -> Path:
        """Return the file by which the tasks of this host share a step's rate."""
        return self.path / "rate" / str(step)

    def abandon(self) -> None:
        """End this owner as a crash would: its lock goes, others read its segments."""
        self._abandoned = True
        if self._lock is not None:
            self._lock.release()

    @property
    def is_usable(self) -> bool:
        """Tell whether this handle may still claim."""
        return not self._abandoned

    def close(self) -> None:
        """Flush and end this owner. Slots still open are in doubt afterwards."""
        with self._appending:
            if self._lock is not None and not self._abandoned:
                self._seal_segment()
                slots.reap(self._database, self._owner, ())
                self._lock.release(remove=True)
                self._lock = None
        if self._housekeeper is not None:
            self._housekeeper.join()
        self._reader.close()
        self._database.close()
