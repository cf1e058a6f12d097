"""A ledger in files, read as a whole. Fulfils `holdfast.ledger.books.Books`.

Reading changes nothing but this: owners that died are read out first, as the next job would, so
that a slot is said to be in doubt only if it is.

While slots are listed the ledger is not compacted: readers share the lock that a compaction takes
alone. A slot can then only gain an outcome, never move to another file.
"""

from __future__ import annotations

import fcntl
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc

from holdfast._base.files import FILE_MODE, os_errors
from holdfast.errors import Damaged
from holdfast.ledger.books import (
    WHOLE,
    Choice,
    HashRange,
    SlotState,
    SlotView,
    StepView,
    chosen_of,
    no_ledger,
    open_state,
    open_view,
    settled_view,
)
from holdfast.ledger.compact import settled_rows
from holdfast.ledger.contract import Outcome
from holdfast.ledger.database import Database, rows_of
from holdfast.ledger.drop import drop, sweep_blobs
from holdfast.ledger.file_ledger import FileLedger
from holdfast.ledger.places import ledger_path
from holdfast.ledger.reading import whole
from holdfast.ledger.receipt import receipt_of
from holdfast.ledger.segment import entry_in
from holdfast.ledger.settled import SettledFile, entry_of
from holdfast.ledger.slots import SlotRow, read_rows


class FileBooks:
    """The slots and steps of a ledger in a directory. Fulfils `Books`."""

    def __init__(self, url: str) -> None:
        """Open a ledger that exists.

        Raises:
            UsageInvalid: there is none.
            Damaged, StoreNewer, StorageFailed, DependencyMissing: see `holdfast.errors`.
        """
        self.path = ledger_path(url)
        if not (self.path / "ledger.sqlite").exists():
            raise no_ledger(url)
        self.ledger = FileLedger(url, create=False)
        self.database = Database(self.path / "ledger.sqlite", create=False)
        self.ledger.reap_all()

    def steps(self) -> list[StepView]:
        """Return every generation of every step, in order of their making."""
        with self.database.reading() as connection:
            rows = rows_of(connection, "SELECT id, name, generation FROM step ORDER BY id")
        return [self._step(*row) for row in rows]

    def _step(self, id_: int, name: str, generation: int) -> StepView:
        totals = self.ledger.totals(id_)
        receipt = receipt_of(self.ledger, id_, name)
        return StepView(id_, name, generation, totals.calls, totals.open - totals.in_doubt, receipt)

    def chosen_steps(self, choice: Choice) -> dict[int, tuple[str, int]]:
        """Return id -> (name, generation) of the steps that are meant.

        Raises:
            UsageInvalid: the choice names a step that the ledger does not know.
        """
        with self.database.reading() as connection:
            rows = rows_of(connection, "SELECT id, name, generation FROM step ORDER BY id")
        return chosen_of(choice, rows, str(self.path))

    def rows(self) -> int:
        """Return how many slots there are, about: others may be working."""
        _, files = settled_rows(self.database)
        with self.database.reading() as connection:
            (unsettled,) = rows_of(connection, "SELECT count(*) FROM slot")[0]
        return int(unsettled) + sum(file.rows for file in files)

    def slots(self, choice: Choice, within: HashRange = WHOLE) -> Iterator[SlotView]:
        """Yield the slots that are meant, each once."""
        with self._still():
            # Read once: what is open now and recorded at a second look would come twice.
            rows = self.unsettled(choice, within)
            steps = self.chosen_steps(choice)
            for row in rows:
                if row.at is None:
                    yield open_view(row.slot, row.owner, row.attempts, *steps[row.slot.step])
            for outcome in self.recorded(rows, choice):
                yield settled_view(outcome, *steps[outcome.slot.step])
            for outcome in self._settled(choice, within):
                yield settled_view(outcome, *steps[outcome.slot.step])

    @contextmanager
    def _still(self) -> Iterator[None]:
        """Keep outcomes where they are for the block."""
        path = self.path / "compact.lock"
        with os_errors(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                yield
            finally:
                os.close(descriptor)

    def unsettled(self, choice: Choice, within: HashRange = WHOLE) -> list[SlotRow]:
        """Return the rows of slots that are in no settled file, checked."""
        steps = self.chosen_steps(choice)
        with self.database.reading() as connection:
            hashes = [h for (h,) in connection.execute("SELECT hash FROM slot") if within.holds(h)]
            rows = read_rows(connection, hashes, self.database.label).values()
        return [
            row
            for row in rows
            if row.slot.step in steps
            and choice.key in (None, row.slot.key)
            and (row.at is not None or choice.takes(open_state(row.owner)))
        ]

    def recorded(self, unsettled: Sequence[SlotRow], choice: Choice) -> Iterator[Outcome]:
        """Yield those outcomes that stand in segments, a segment at a time."""
        by_segment: defaultdict[int, list[SlotRow]] = defaultdict(list)
        for row in unsettled:
            if row.at is not None:
                by_segment[row.at.segment].append(row)
        with self.database.reading() as connection:
            names = dict(rows_of(connection, "SELECT id, name FROM segment"))
        for segment, rows in by_segment.items():
            path = self.path / "segments" / str(names.get(segment))
            try:
                data = path.read_bytes()
            except FileNotFoundError as error:
                raise Damaged(path=str(path), what="a segment is missing") from error
            for row in rows:
                if row.at is not None:
                    place = row.at.place
                    piece = data[place.position : place.position + place.length]
                    outcome = whole(self.path, entry_in(piece, path, place))
                    if choice.takes(SlotState(outcome.status)):
                        yield outcome

    def _settled(self, choice: Choice, within: HashRange) -> Iterator[Outcome]:
        _, files = settled_rows(self.database)
        for row in files:
            file = SettledFile(self.path / "settled" / row.name, row.layout)
            try:
                for number in groups_in(file, within):
                    table = file.table(number)
                    mask = self.mask(table, choice)
                    for values in table.filter(mask).to_pylist():
                        if within.holds(values["hash"]):
                            yield whole(self.path, entry_of(values))
            finally:
                file.close()

    def mask(self, table: pa.Table, choice: Choice) -> pa.ChunkedArray:
        """Return which rows of a settled table are meant."""
        steps = pa.array(self.chosen_steps(choice), pa.int32())
        mask = pc.is_in(table["step"], value_set=steps)
        if choice.key is not None:
            mask = pc.and_(mask, pc.equal(table["key"], choice.key))
        if choice.states is not None:
            wanted = pa.array([str(state) for state in choice.states], pa.string())
            mask = pc.and_(mask, pc.is_in(table["status"], value_set=wanted))
        return mask

    def drop(self, choice: Choice) -> int:
        """Take chosen outcomes and slots in doubt out, in one transaction. See the contract."""
        return drop(self, choice)

    def sweep_blobs(self) -> bool:
        """Remove answers' blobs that no outcome names. False while a job might write one."""
        return sweep_blobs(self)

    def close(self) -> None:
        """Close the ledger."""
        self.database.close()
        self.ledger.close()


def groups_in(file: SettledFile, within: HashRange) -> Sequence[int]:
    """Return the row groups that can hold slots of a range."""
    groups = file.layout.groups
    return [
        number
        for number, group in enumerate(groups)
        if (within.high is None or group.first < within.high)
        and (number + 1 == len(groups) or groups[number + 1].first >= within.low)
    ]
