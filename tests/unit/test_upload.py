"""Chunks handed in one by one: bytes, then the row, then the ack; and what a refusal leaves."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.crash.workloads import CHUNKS as DOCUMENTS
from tests.crash.workloads import SMALL, check_answers, make_pipeline
from tests.unit.disk_tape import Tape
from tests.unit.plain_runs import rows_of

from holdfast._base import crashpoint
from holdfast._base.ids import START, Ordinal, RunId
from holdfast.blobs.local import LocalBlobs
from holdfast.client.refusals import RETRYABLE
from holdfast.engine.barrier import is_complete
from holdfast.engine.drive import open_run
from holdfast.engine.finish import finish
from holdfast.engine.loop import Engine
from holdfast.engine.state import Held, hold
from holdfast.errors import (
    CallerError,
    ChecksumWrong,
    ChunkConflict,
    DiskFull,
    EndConflict,
    RunGone,
    StorageFailed,
    UploadSwept,
    UsageInvalid,
)
from holdfast.gateway.refusals import status_of
from holdfast.intake.rules import accept_chunk
from holdfast.intake.upload import CHUNKS, put_chunk, put_end, sweep_uploads
from holdfast.log.embedded import EmbeddedBackend
from holdfast.queries import verify
from holdfast.router.refusals import WAITS
from holdfast.store.contract import ingress_topic
from holdfast.store.references import chunk_of
from holdfast.store.rows import Chunk, ChunkKind, End, RunState
from holdfast.testing.plain import PlainExecutor

TEXT = b"shop,amount\na,1\n"
OTHER = b"shop,amount\na,2\n"
ENDS = [End("sales", "b", 1), End("shops", "", 1), End("notes", "", 1), End("sales", "", 3)]
SHOPS = next(text for table, _, _, text in DOCUMENTS if table == "shops").encode()


def chunk(ordinal: int = 1, *, table: str = "sales", sender: str = "", checksum: str = "") -> Chunk:
    return Chunk(table, sender, Ordinal(ordinal), ChunkKind.BLOB, "", 0, checksum)


class Door:
    """A held state with one open run of the toy pipeline, and its blobs."""

    def __init__(self, held: Held, root: Path) -> None:
        self.root, self.held, self.store = root, held, held.store
        self.blobs = LocalBlobs(held.directory.blobs)
        self.run_id: RunId = open_run(held.store, make_pipeline().spec(), root).run_id

    def put(self, text: bytes = TEXT, **options: Any) -> bool:
        return put_chunk(
            self.store,
            self.blobs,
            self.run_id,
            chunk(**options),
            [text],
            barrier=is_complete,
        )

    def end(self, count: int, *, table: str = "sales", sender: str = "") -> bool:
        return put_end(self.store, self.run_id, End(table, sender, count), is_complete)

    def names(self) -> list[str]:
        return list(self.blobs.names())

    def state(self) -> str:
        run = self.store.read_run(self.run_id)
        assert run is not None
        return run.state

    def advance(self) -> str:
        pipeline = make_pipeline()
        engine = Engine(
            self.held,
            pipeline.spec(),
            PlainExecutor(pipeline),
            log=EmbeddedBackend(self.store),
            blobs=self.blobs,
            config=SMALL,
        )
        return engine.advance(self.run_id)

    def complete(self) -> None:
        """Hand in all of the toy pipeline's documents and ENDs, and finish."""
        for table, sender, ordinal, text in DOCUMENTS:
            self.put(text.encode(), ordinal=ordinal, table=table, sender=sender)
        for end in ENDS:
            put_end(self.store, self.run_id, end, is_complete)
        self.advance()
        finish(self.held, self.run_id, self.root / "out")

    def changes_nothing(self, call: Callable[[], object], error: type[Exception]) -> Any:
        """Call; the error comes, and no row and no blob is other than before."""
        rows, names = rows_of(self.root, apart=()), self.names()
        with pytest.raises(error) as caught:
            call()
        assert rows_of(self.root, apart=()) == rows
        assert self.names() == names
        return caught.value


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with hold(tmp_path / "state", SMALL) as held:
        yield Door(held, tmp_path)


def test_a_chunk_is_bound_with_what_its_bytes_say_and_its_reference_is_in_the_log(
    door: Door,
) -> None:
    assert door.put() is True
    (bound,) = door.store.list_chunks(door.run_id)
    assert (bound.size, bound.checksum) == (len(TEXT), hashlib.sha256(TEXT).hexdigest())
    assert b"".join(door.blobs.read(bound.location)) == TEXT
    assert door.names() == [bound.location]
    log = EmbeddedBackend(door.store).fetch_batch(ingress_topic(door.run_id, 1), START, count=10)
    assert [chunk_of(record.record) for record in log] == [bound]


def test_the_bytes_are_durable_before_a_row_binds_them(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole tape of the disk up to the binding transaction, read at its crash point."""
    tape = Tape(door.root / "state" / "blobs", monkeypatch)
    seen: list[list[str]] = []
    crashpoint.arm("store.transaction.before", 1, die=lambda: seen.append(list(tape.calls)))
    try:
        door.put()
    finally:
        crashpoint.disarm()
    before = seen[0]
    written = before.index(f"fsync .tmp {len(TEXT)}")
    linked = next(n for n, call in enumerate(before) if call.startswith("link chunks/"))
    parent = os.path.dirname(before[linked].removeprefix("link "))
    assert written < linked < before.index(f"fsync {parent}")


def test_the_same_chunk_again_is_acknowledged_and_leaves_no_second_blob(door: Door) -> None:
    assert door.put() is True
    rows, names = rows_of(door.root, apart=()), door.names()
    assert door.put() is False
    assert rows_of(door.root, apart=()) == rows
    assert door.names() == names


def test_other_bytes_under_the_same_ordinal_leave_no_blob_and_the_run_unchanged(
    door: Door,
) -> None:
    door.put()
    error = door.changes_nothing(lambda: door.put(OTHER), ChunkConflict)
    assert error.stored == hashlib.sha256(TEXT).hexdigest()
    assert error.sent == hashlib.sha256(OTHER).hexdigest()


def test_the_same_bytes_under_other_ordinals_or_senders_are_other_chunks(door: Door) -> None:
    """Identity is (run, table, sender, ordinal), never content."""
    assert door.put()
    assert door.put(ordinal=2)
    assert door.put(sender="b")
    assert len(door.names()) == len(set(door.names())) == 3


def test_bytes_that_cannot_be_judged_are_not_kept(door: Door) -> None:
    """A look that fails, for whatever reason, is no refusal; nothing would ever count the blob."""

    def broken(*_: object) -> str:
        raise StorageFailed(path="p", error="e")

    def put() -> None:
        put_chunk(
            *(door.store, door.blobs, door.run_id, chunk(), [TEXT]),
            barrier=is_complete,
            check=broken,
        )

    door.changes_nothing(put, StorageFailed)
    assert door.put()


def test_bytes_that_are_not_those_the_sender_hashed_are_refused(door: Door) -> None:
    wrong = hashlib.sha256(OTHER).hexdigest()
    error = door.changes_nothing(lambda: door.put(checksum=wrong), ChecksumWrong)
    assert (error.named, error.arrived) == (wrong, hashlib.sha256(TEXT).hexdigest())
    assert door.put(checksum=hashlib.sha256(TEXT).hexdigest()) is True


@pytest.mark.parametrize(
    "options",
    [
        {"sender": "nobody"},
        {"table": "nothing"},
        {"table": "doubled"},
        {"table": "../../etc"},
        {"sender": "../x"},
    ],
    ids=str,
)
def test_an_unknown_sender_or_table_is_refused(door: Door, options: dict[str, Any]) -> None:
    """`doubled` is a durable stage's table: nobody hands in chunks of it."""
    door.changes_nothing(lambda: door.put(**options), UsageInvalid)
    if "/" not in options.get("table", ""):
        door.changes_nothing(lambda: door.end(0, **options), UsageInvalid)


@pytest.mark.parametrize("ordinal", [0, -1])
def test_ordinals_count_from_one(door: Door, ordinal: int) -> None:
    door.changes_nothing(lambda: door.put(ordinal=ordinal), ChunkConflict)


def test_numbers_greater_than_any_store_can_hold_are_refused_and_leave_nothing(
    door: Door,
) -> None:
    """F24: a limit with a name, not an overflow somewhere below."""
    door.changes_nothing(lambda: door.put(ordinal=2**63), CallerError)
    door.changes_nothing(lambda: door.end(2**63), CallerError)


def test_a_run_nobody_opened_is_gone(door: Door) -> None:
    door.run_id = RunId("unknown")
    door.changes_nothing(door.put, RunGone)
    door.changes_nothing(lambda: door.end(0), RunGone)


def test_a_blob_condemned_between_upload_and_binding_is_refused_and_sent_again(
    door: Door,
) -> None:
    """The sweeper comes in between: it stands in the way at the crash point behind the upload."""

    def condemn() -> None:
        assert door.store.condemn_blob(door.names()[0])

    crashpoint.arm("intake.blob.after", 1, die=condemn)
    try:
        with pytest.raises(UploadSwept):
            door.put()
    finally:
        crashpoint.disarm()
    assert door.names() == []
    assert door.store.list_chunks(door.run_id) == []
    assert door.put() is True


def test_the_sweeper_removes_only_uploads_that_no_row_binds(door: Door) -> None:
    door.put()
    bound = door.names()
    orphan = f"{CHUNKS}{door.run_id}/sales/x/2-dead"
    door.blobs.create(orphan, [b"bytes"])
    other = f"{CHUNKS}other-run/sales/x/2-dead"
    door.blobs.create(other, [b"bytes"])
    rows = rows_of(door.root, apart=("condemned",))
    assert sweep_uploads(door.store, door.blobs, door.run_id) == 1
    assert sorted(door.names()) == sorted([*bound, other])
    assert rows_of(door.root, apart=("condemned",)) == rows
    assert sweep_uploads(door.store, door.blobs, door.run_id) == 0


def test_a_swept_upload_is_never_bound_even_if_its_row_comes_late(door: Door) -> None:
    """An uploader that was stopped behind its upload wakes up when the bytes are long gone."""

    def sweep() -> None:
        assert sweep_uploads(door.store, door.blobs, door.run_id) == 1
        assert door.names() == []

    crashpoint.arm("intake.blob.after", 1, die=sweep)
    try:
        with pytest.raises(UploadSwept):
            door.put()
    finally:
        crashpoint.disarm()
    assert door.names() == []
    assert door.store.list_chunks(door.run_id) == []
    assert door.put() is True
    assert verify(door.root / "state").findings == ()


def test_clients_and_routers_send_a_swept_upload_again_by_themselves() -> None:
    error = UploadSwept(table="sales", ordinal=1)
    assert status_of(error) in RETRYABLE
    assert isinstance(error, WAITS)


def test_a_condemned_blob_that_is_still_there_is_not_bound(door: Door) -> None:
    name = f"{CHUNKS}{door.run_id}/slow"
    door.blobs.create(name, [TEXT])
    assert door.store.condemn_blob(name)
    late = replace(chunk(), location=name, checksum="x", size=1)
    with pytest.raises(UploadSwept):
        door.store.bind_chunk(door.run_id, late, accept_chunk, is_complete)


@pytest.mark.parametrize(
    ("point", "bound"), [("store.transaction.before", 0), ("store.transaction.after", 1)]
)
def test_an_upload_whose_binding_fails_stays_only_where_a_row_binds_it(
    door: Door, point: str, bound: int
) -> None:
    """The store's disk fails in the commit or right behind it; the sender cannot tell which."""

    def fail() -> None:
        raise StorageFailed(path="store", error="I/O error")

    crashpoint.arm(point, 1, die=fail)
    try:
        with pytest.raises(StorageFailed):
            door.put()
    finally:
        crashpoint.disarm()
    assert len(door.names()) == len(door.store.list_chunks(door.run_id)) == bound
    assert door.put() is not bool(bound)
    assert door.names() == [one.location for one in door.store.list_chunks(door.run_id)]


def test_an_upload_that_cannot_be_removed_does_not_hide_why_its_binding_failed(door: Door) -> None:
    """The store takes nothing at all: the first error is raised, and the orphan is swept later."""

    def fail() -> None:
        crashpoint.arm("store.transaction.before", 1, die=fail)
        raise DiskFull(path="store")

    crashpoint.arm("store.transaction.before", 1, die=fail)
    try:
        with pytest.raises(DiskFull):
            door.put()
    finally:
        crashpoint.disarm()
    assert len(door.names()) == 1
    assert sweep_uploads(door.store, door.blobs, door.run_id) == 1


def test_a_bound_blob_cannot_be_condemned(door: Door) -> None:
    door.put()
    assert door.store.condemn_blob(door.names()[0]) is False


def test_an_end_twice_is_acknowledged_and_another_count_refused(door: Door) -> None:
    door.put()
    assert door.end(1) is True
    assert door.end(1) is False
    error = door.changes_nothing(lambda: door.end(2), EndConflict)
    assert (error.known, error.sent) == (1, 2)


def test_an_end_below_a_received_chunk_and_a_chunk_beyond_an_end_are_refused(door: Door) -> None:
    door.put(ordinal=3)
    error = door.changes_nothing(lambda: door.end(2), EndConflict)
    assert (error.known, error.sent) == (3, 2)
    door.end(3)
    conflict = door.changes_nothing(lambda: door.put(ordinal=4), ChunkConflict)
    assert (conflict.stored, conflict.sent) == ("3", "4")


def test_a_finished_run_acknowledges_what_it_has_and_takes_nothing_more(door: Door) -> None:
    door.complete()
    check_answers(door.root)
    table, sender, ordinal, text = DOCUMENTS[0]
    assert door.put(text.encode(), ordinal=ordinal, table=table, sender=sender) is False
    assert door.end(3) is False
    error = door.changes_nothing(lambda: door.put(ordinal=4), RunGone)
    assert (error.run, error.state) == (door.run_id, "DONE")
    door.changes_nothing(lambda: door.put(OTHER, ordinal=ordinal), ChunkConflict)
    door.changes_nothing(lambda: door.end(4), EndConflict)
    assert verify(door.root / "state", door.root / "out").findings == ()


def test_a_swept_run_is_gone_for_everything(door: Door) -> None:
    door.complete()
    assert door.store.move_run(door.held.fence, door.run_id, expected="DONE", to="SWEPT")
    table, sender, ordinal, text = DOCUMENTS[0]
    door.changes_nothing(
        lambda: door.put(text.encode(), ordinal=ordinal, table=table, sender=sender), RunGone
    )
    door.changes_nothing(lambda: door.end(3), RunGone)


def test_nothing_is_final_while_an_end_or_a_chunk_is_missing(door: Door) -> None:
    """Ends before data, a gap in the middle, a sender that is silent: the run waits, for ever."""
    door.put(ordinal=1)
    door.put(ordinal=3)
    door.put(SHOPS, table="shops")
    for end in (End("sales", "", 3), End("shops", "", 1), End("notes", "", 0)):
        put_end(door.store, door.run_id, end, is_complete)
    assert door.advance() == RunState.OPEN
    door.put(ordinal=2)
    assert door.advance() == RunState.OPEN
    assert door.end(0, sender="b")
    assert door.advance() == RunState.COMPLETING


def test_the_last_chunk_of_a_whole_table_may_come_behind_its_end(door: Door) -> None:
    """Nothing else moves the run then: the binding itself has to look at the barrier."""
    door.put()
    for end in (End("sales", "", 1), End("sales", "b", 0), End("notes", "", 0)):
        put_end(door.store, door.run_id, end, is_complete)
    assert door.advance() == RunState.OPEN
    door.end(1, table="shops")
    door.put(SHOPS, table="shops")
    assert door.advance() == RunState.COMPLETING
