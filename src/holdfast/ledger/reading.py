"""Lookups: what is known of slots, wherever their outcomes stand.

A slot is searched in SQLite (open, in doubt, recorded in a segment), then in the settled files of
the same generation. If that changed meanwhile the lookup begins again: at every moment an outcome
is in exactly one place, but not at two moments in the same.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from holdfast._base.files import sha256_of
from holdfast.errors import Damaged
from holdfast.ledger import slots
from holdfast.ledger.compact import refresh
from holdfast.ledger.contract import Outcome, SlotHash, View
from holdfast.ledger.database import Database
from holdfast.ledger.segment import Entry, read_entry
from holdfast.ledger.settled import SettledTable


class Reader:
    """Looks slots up in one ledger's directory. One thread at a time; others wait."""

    def __init__(self, database: Database, path: Path) -> None:
        self._database, self._path = database, path
        self._table = SettledTable()
        self._names: dict[int, str] = {}
        self._reading = threading.Lock()

    def lookup(self, wanted: Sequence[SlotHash]) -> View:
        """Return what is known of slots. Every outcome returned is durable."""
        with self._reading:
            while True:
                rows = slots.read(self._database, wanted)
                if self._table.generation != rows.generation:
                    refresh(self._table, self._database, self._path / "settled")
                    continue
                try:
                    entries = self._read_recorded(rows.recorded)
                except FileNotFoundError:
                    # Compacted since the rows were read: they say so when read again.
                    if slots.read(self._database, wanted).generation == rows.generation:
                        raise Damaged(
                            path=str(self._path / "segments"), what="a segment is missing"
                        ) from None
                    continue
                missing = [h for h in wanted if h not in entries and h not in rows.open]
                entries.update(self._table.find(set(missing)))
                outcomes = {h: whole(self._path, entry) for h, entry in entries.items()}
                return View(rows.generation, outcomes, rows.open)

    def _read_recorded(
        self, recorded: Mapping[SlotHash, slots.RecordedAt]
    ) -> dict[SlotHash, Entry]:
        entries: dict[SlotHash, Entry] = {}
        for hash_, at in recorded.items():
            name = self._names.get(at.segment) or slots.segment_name(self._database, at.segment)
            if name is None:
                raise FileNotFoundError
            self._names[at.segment] = name
            entry = read_entry(self._path / "segments" / name, at.place)
            if entry.outcome.slot.hash != hash_:
                raise Damaged(path=name, what=f"record {at.place.sequence} is another slot's")
            entries[hash_] = entry
        return entries

    def close(self) -> None:
        """Close the settled files."""
        with self._reading:
            self._table.close()


def whole(directory: Path, entry: Entry) -> Outcome:
    """Return an entry's outcome with its answer, which may be in a blob of the ledger there.

    Raises:
        Damaged: the blob is missing or altered.
    """
    if entry.blob is None:
        return entry.outcome
    path = directory / "blobs" / entry.blob
    try:
        answer = path.read_bytes()
    except FileNotFoundError as error:
        raise Damaged(path=str(path), what="the blob of an answer is missing") from error
    if sha256_of([answer]) != entry.blob:
        raise Damaged(path=str(path), what="the blob of an answer is altered")
    return replace(entry.outcome, answer=answer)
