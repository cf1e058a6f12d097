"""What is particular to the SQLite store: versions, damage, threads, forks, its file."""

import errno
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.unit.disk_tape import Tape

from holdfast._base import crashpoint
from holdfast._base.ids import Offset, RunId
from holdfast.config import DEFAULT
from holdfast.errors import (
    Damaged,
    DependencyMissing,
    DiskFull,
    InvariantViolated,
    StorageFailed,
    StoreNewer,
    UsageInvalid,
)
from holdfast.log.contract import Record
from holdfast.store.references import chunk_of, reference_to
from holdfast.store.rows import ChunkKind, SenderDecl
from holdfast.store.sqlite import SqliteStore, schema
from holdfast.store.sqlite.pages import load_checksums
from holdfast.testing.clock import VirtualClock
from holdfast.testing.expect import run_threads
from holdfast.testing.store_leaving import piece
from holdfast.testing.store_samples import RUN, Scene, bind, chunk, complete, file, new_run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a store that was made, with one run, and closed."""
    found = tmp_path / "state" / "store.db"
    store = SqliteStore.open(found)
    Scene.of(store, bound=3)
    store.close()
    return found


def raw(path: Path, *statements: str) -> None:
    """Change the file behind the store's back, with pages that fit their checksums."""
    database = apsw.Connection(str(path), vfs=load_checksums())
    for statement in statements:
        database.execute(statement)
    database.close()


@pytest.mark.parametrize("version", ["3.51.2", "3.7.0", "2.8.17"])
def test_a_sqlite_that_loses_data_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)
    with pytest.raises(DependencyMissing) as caught:
        SqliteStore.open(tmp_path / "s.db")
    assert version in caught.value.what
    with pytest.raises(DependencyMissing):
        SqliteStore.memory()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("version", ["3.51.3", "3.52.0", "4.0.0"])
def test_a_newer_sqlite_is_taken(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)
    SqliteStore.memory().close()


def test_a_newer_store_is_refused(path: Path) -> None:
    raw(path, "PRAGMA user_version = 99")
    with pytest.raises(StoreNewer) as caught:
        SqliteStore.open(path)
    assert (caught.value.found, caught.value.known) == (99, len(schema.MIGRATIONS))


def test_an_older_store_is_brought_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration runs once, in one transaction, and keeps what is there."""
    added = "CREATE TABLE added (x TEXT) STRICT; INSERT INTO added VALUES ('once');"
    broken = added + "INSERT INTO added VALUES (NULL, 'too many')"
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, broken))
    with pytest.raises(InvariantViolated):
        SqliteStore.open(path)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS[:-1], added))
    for _ in range(2):
        store = SqliteStore.open(path)
        with store._database.reading() as database:
            assert database.execute("SELECT x FROM added").fetchall() == [("once",)]
            assert database.pragma("user_version") == len(schema.MIGRATIONS)
        assert len(store.list_chunks(RUN)) == 3
        store.close()


COUNTED = (
    "SELECT * FROM sender ORDER BY run_id, position",
    "SELECT * FROM external_total ORDER BY series",
    "SELECT * FROM kept ORDER BY client",
)
FROM_VERSION_4 = (
    "ALTER TABLE attempt DROP COLUMN lost",
    "DROP TRIGGER run_is_swept",
    "DROP TRIGGER chunk_is_kept",
    "DROP TABLE kept",
    "DROP INDEX watch_by_mark",
)
TO_VERSION_2 = (
    *FROM_VERSION_4,
    "DROP TABLE owed_end",
    "DROP TABLE run_shards",
    "DROP TRIGGER chunk_is_counted",
    "DROP TRIGGER applied_is_counted",
    "DROP TRIGGER external_piece_is_counted",
    "ALTER TABLE sender DROP COLUMN applied_count",
    "ALTER TABLE sender DROP COLUMN received_count",
    "ALTER TABLE sender DROP COLUMN stored_bytes",
    "ALTER TABLE sender DROP COLUMN backlog_bytes",
    "ALTER TABLE external_total DROP COLUMN received_count",
    "PRAGMA user_version = 2",
)


def test_a_store_that_counted_nothing_is_counted(path: Path) -> None:
    """What the triggers counted row by row is what the migration counts of the same rows."""
    store = SqliteStore.open(path)
    scene = Scene(store, store.take_lease("engine", "me"))
    scene.plan("w", chunk(1), chunk(2))
    scene.commit("w", file("q", "w/q"))
    range_chunk = replace(chunk(1), kind=ChunkKind.RANGE, size=7)
    side = SenderDecl("side", "", 1, whole=True)
    store.create_run(new_run(SenderDecl("t", "", 1), side, run_id=RunId("other")))
    listing = [range_chunk, replace(range_chunk, table="side")]
    store.bind_inputs(scene.fence, RunId("other"), listing, [], complete)
    external = replace(new_run(run_id=RunId("external")), senders=(), producer="p")
    store.create_run(external)
    store.move_run(scene.fence, external.run_id, expected="FORWARDING", to="RECEIVING")
    for ordinal in (0, 2, 1):
        one = piece(f"series {ordinal > 0}", ordinal)
        store.bind_piece(scene.fence, external.run_id, one, lambda *_: True, lambda _: False)
    backlog, found = store.read_backlog(), [counted(store, sql) for sql in COUNTED]
    assert (backlog, store.read_use("client").stored_bytes) == (17, 30)
    store.close()
    raw(path, *TO_VERSION_2)
    store = SqliteStore.open(path)
    assert [counted(store, sql) for sql in COUNTED] == found
    store.bind_chunk(RUN, chunk(4), lambda *_: True)
    assert store.read_backlog() == backlog + 10
    store.check()
    store.close()


def test_runs_that_ended_before_ends_were_kept_are_watched(path: Path) -> None:
    """One that no delivery ever saw, and one that it saw last when it was still open."""
    store = SqliteStore.open(path)
    fence = store.take_lease("engine", "me")
    seen, unseen = RunId("seen"), RunId("unseen")
    for run_id in (seen, unseen):
        store.create_run(new_run(run_id=run_id))
        store.move_run(fence, run_id, expected="OPEN", to="FAILED", error="why")
    store.add_elapsed(fence, 70)
    store.close()
    raw(
        path,
        "DELETE FROM watch WHERE run_id = 'unseen'",
        "UPDATE watch SET mark = 'OPEN/1' WHERE run_id = 'seen'",
        *FROM_VERSION_4,
        "PRAGMA user_version = 4",
    )
    store = SqliteStore.open(path)
    found = {one.run.run_id: (one.mark, one.idle_ms) for one in store.list_watched()}
    assert found == {seen: ("FAILED", 0), unseen: ("FAILED", 0)}
    assert store.watch_runs(fence, sweep_ms=1) == store.watch_runs(fence)[:1]
    store.close()


def test_numbers_that_are_equal_pass_no_barrier(path: Path) -> None:
    """The sets are made of the rows: a number that says that all are applied is not believed."""
    store = SqliteStore.open(path)
    scene = Scene(store, store.take_lease("engine", "me"))
    scene.plan("w", chunk(3))
    scene.commit("w")
    raw(path, "UPDATE sender SET applied_count = 3")
    assert store.read_progress(RUN)[0].applied.ranges == ((1, 3),)
    assert scene.end(3)
    assert scene.state() == "OPEN"
    assert store.read_barriers(RUN) == []
    store.close()


def counted(store: SqliteStore, sql: str) -> list[dict[str, object]]:
    with store._database.reading() as connection:
        cursor = connection.execute(sql)
        names = [name for name, *_ in cursor.getdescription()]
        return [dict(zip(names, row, strict=True)) for row in cursor]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE sender SET received_count = received_count + 1",
        "UPDATE sender SET received_count = received_count - 1",
        "UPDATE sender SET applied_count = 1",
        "UPDATE sender SET stored_bytes = 1",
        "UPDATE kept SET bytes = bytes + 1",
        "DELETE FROM kept",
        "UPDATE sender SET backlog_bytes = 1",
        "DELETE FROM chunk WHERE ordinal = 1",
    ],
)
def test_counts_that_are_not_those_of_the_rows_are_damage(path: Path, statement: str) -> None:
    raw(path, statement)
    store = SqliteStore.open(path)
    with pytest.raises(Damaged) as caught:
        store.check()
    assert ("all of client client" if "kept" in statement else "table t") in caught.value.what
    store.close()


@pytest.mark.parametrize("content", [b"", b"\x00" * 8192, b"garbage" * 4000], ids=len)
def test_a_file_that_is_no_store_is_damage(path: Path, content: bytes) -> None:
    """An empty file too: a store is made complete or not at all."""
    path.write_bytes(content)
    with pytest.raises(Damaged):
        SqliteStore.open(path)


def test_another_programs_database_is_damage(tmp_path: Path) -> None:
    raw(tmp_path / "s.db", "CREATE TABLE t (x)", "PRAGMA user_version = 1")
    with pytest.raises(Damaged):
        SqliteStore.open(tmp_path / "s.db")


def test_damaged_pages_are_found(path: Path) -> None:
    """Each page but the first overwritten in turn: opening, or the check, gives it its name."""
    whole = path.read_bytes()
    for start in range(8192, len(whole), 8192):
        path.write_bytes(whole[:start] + b"\xff" * 8192 + whole[start + 8192 :])
        with pytest.raises(Damaged):
            SqliteStore.open(path).check()


def test_a_cut_file_is_damage(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Damaged):
        SqliteStore.open(path).check()


def test_rows_without_their_parents_are_damage(path: Path) -> None:
    raw(path, "PRAGMA foreign_keys = off", "DELETE FROM sender")
    store = SqliteStore.open(path)
    with pytest.raises(Damaged) as caught:
        store.check()
    assert "chunk" in caught.value.what
    store.close()


def test_a_commit_waits_for_the_disk(path: Path) -> None:
    store = SqliteStore.open(path)
    database = store._database.connection()
    assert database.pragma("synchronous") == 2
    assert database.pragma("journal_mode") == "wal"
    assert database.pragma("foreign_keys") == 1
    store.close()


SYNC_COUNTER = """
import sys, apsw, apsw.sqlite_extra
apsw.sqlite_extra.load(apsw.Connection(":memory:"), "vfsstat")
from holdfast.testing.store_samples import *
from holdfast.store.sqlite import SqliteStore
from holdfast.log.contract import Record
store = SqliteStore.open(sys.argv[1])
sql = "SELECT count FROM vfsstat WHERE file = 'wal' AND stat = 'sync'"
def syncs():
    return store._database.connection().execute(sql).fetchall()[0][0]
fence = store.take_lease("engine", "me")
store.create_run(new_run())
store.create_topic("t", 1)
writes = (
    lambda: store.beat_lease(fence),
    lambda: store.bind_chunk(RUN, chunk(1), bind),
    lambda: store.record_end(RUN, End("t", "", 1), announce, complete),
    lambda: store.append_records("t", 0, [Record(b"x")] * 100),
    lambda: store.advance_offset("t", 0, "g", 1),
    lambda: store.take_lease("engine", "you"),
)
for write in writes:
    before = syncs()
    write()
    print(syncs() - before)
"""


def test_each_writing_transaction_is_one_fsync_of_the_log(tmp_path: Path) -> None:
    """Counted inside SQLite, below the store: a commit that does not reach the disk shows."""
    done = subprocess.run(
        [sys.executable, "-c", SYNC_COUNTER, str(tmp_path / "s.db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["1"] * 6, done.stderr


def test_the_store_file_is_made_durably(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Complete under a temporary name, linked, entered; readable by its owner only."""
    tape = Tape(tmp_path, monkeypatch)
    store = SqliteStore.open(tmp_path / "d" / "s.db")
    made = [call for call in tape.calls if "-wal" not in call]
    entered, log = ["fsync ..", "mkdir d", "fsync ."], ["fsync d"]
    assert made == [*entered, *log, "link d/s.db", "unlink d/.tmp", "fsync d", *log]
    names = sorted(os.listdir(tmp_path / "d"))
    assert names == ["s.db", "s.db-shm", "s.db-wal"]
    assert {os.stat(tmp_path / "d" / name).st_mode & 0o777 for name in names} == {0o600}
    store.close()
    assert os.listdir(tmp_path / "d") == ["s.db"]


def test_what_a_killed_process_left_in_the_log_is_durable_before_it_is_believed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died between the write of a commit and its fsync; whoever reads that commit may ack."""
    killed = f"""
import apsw, os
from holdfast.store.sqlite.pages import load_checksums
database = apsw.Connection({str(path)!r}, vfs=load_checksums())
database.pragma("synchronous", "off")
database.execute("UPDATE meta SET value = 'kept' WHERE name = 'store_id'")
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", killed], check=True)
    size = path.with_name(f"{path.name}-wal").stat().st_size
    assert size > 0
    tape = Tape(path.parent, monkeypatch)
    store = SqliteStore.open(path)
    assert store.store_id() == "kept"
    log = tape.calls.index(f"fsync {path.name}-wal {size}")
    assert tape.calls[log + 1] == "fsync ."
    store.close()


def test_a_log_that_could_not_be_made_durable_is_not_believed_at_a_second_try(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has forgotten by then what was not written."""
    store = SqliteStore.open(path)
    refusals = [OSError(errno.EIO, "gone")]

    def fsync(_: Path) -> None:
        if refusals:
            raise refusals.pop()

    monkeypatch.setattr("holdfast._base.sqlite.fsync_file", fsync)
    with ThreadPoolExecutor(1) as other:
        for _ in range(2):
            with pytest.raises(StorageFailed):
                other.submit(store.store_id).result()
    assert refusals == []
    with pytest.raises(StorageFailed):
        store.store_id()
    store.close()


def test_what_killed_creators_left_is_swept(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        (path.parent / f".tmp-{path.name}-0123{suffix}").touch()
    (path.parent / ".tmp-other").touch()
    SqliteStore.open(path).close()
    assert sorted(os.listdir(path.parent)) == [".tmp-other", path.name]


def test_two_creators_make_one_store(tmp_path: Path) -> None:
    names: list[str] = []
    ready = threading.Barrier(4)

    def create() -> None:
        ready.wait(30)
        store = SqliteStore.open(tmp_path / "s.db")
        names.append(store.store_id())
        store.close()

    run_threads([create] * 4)
    assert len(names) == 4
    assert len(set(names)) == 1


def test_each_thread_has_its_own_connection(path: Path) -> None:
    store = SqliteStore.open(path)
    seen: list[apsw.Connection] = []
    run_threads([lambda: seen.append(store._database.connection())] * 3)
    seen += [store._database.connection(), store._database.connection()]
    assert len({id(database) for database in seen}) == 4
    store.close()
    for call in (store.list_runs, store.check):
        with pytest.raises(UsageInvalid):
            call()
    store.close()


def test_a_full_disk_leaves_the_store_as_it_was(path: Path) -> None:
    store = SqliteStore.open(path)
    store.create_topic("t", 1)
    database = store._database.connection()
    database.pragma("max_page_count", database.pragma("page_count"))
    with pytest.raises(DiskFull) as caught:
        store.append_records("t", 0, [Record(b"x" * 100_000)])
    assert caught.value.path == str(path)
    assert store.topic_bounds("t", 0) == (0, 0)
    database.pragma("max_page_count", 1 << 30)
    assert store.append_records("t", 0, [Record(b"x" * 100_000)]) == [0]
    store.close()


def test_a_read_only_file_is_refused_by_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore.open(path)
    store._database.connection().pragma("query_only", 1)
    with pytest.raises(StorageFailed):
        store.take_lease("r", "me")
    store.close()


def test_a_store_held_by_another_is_not_waited_for_without_end(path: Path) -> None:
    """The bound is `transaction_wait_s`; afterwards everything goes on."""
    store = SqliteStore.open(path, replace(DEFAULT, transaction_wait_s=0.02))
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageFailed):
        store.take_lease("r", "me")
    assert len(store.list_runs()) == 1
    other.execute("ROLLBACK")
    assert store.take_lease("r", "me").epoch == 1
    other.close()
    store.close()


@pytest.mark.parametrize("code", [apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_SHMSIZE])
def test_nothing_is_acknowledged_after_a_failed_commit(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The process is to end and recover: a second fsync would lie. Where the log's index could not
    grow, the disk is full, and the commit stands in the log: nobody may be told that it does not.
    """
    store = SqliteStore.open(path)
    failure = apsw.IOError("IOError: disk I/O error")
    failure.extendedresult = code  # type: ignore[attr-defined]  # apsw sets it so, too

    class Failing:
        def __init__(self, real: apsw.Connection) -> None:
            self._real = real

        def execute(self, sql: str, *values: Any) -> object:
            if sql == "COMMIT":
                raise failure
            return self._real.execute(sql, *values)

        def __getattr__(self, name: str) -> object:
            return getattr(self._real, name)

    real = store._database.connection()
    monkeypatch.setattr(store._database._local, "connection", Failing(real))
    with pytest.raises(StorageFailed):
        store.take_lease("r", "me")
    monkeypatch.undo()
    for call in (lambda: store.take_lease("r", "me"), store.list_runs):
        with pytest.raises(StorageFailed):
            call()
    store.close()
    again = SqliteStore.open(path)
    assert again.read_lease("r") is None
    again.close()


def test_an_exception_undoes_the_transaction(path: Path) -> None:
    store = SqliteStore.open(path)

    class Stop(BaseException):
        pass

    def stop(*_: object) -> bool:
        raise Stop

    with pytest.raises(Stop):
        store.bind_chunk(RUN, chunk(9), stop)
    assert len(store.list_chunks(RUN)) == 3
    assert store.bind_chunk(RUN, chunk(9), bind)
    store.close()


def test_a_transaction_inside_a_transaction_is_our_bug(path: Path) -> None:
    store = SqliteStore.open(path)

    def nested(*_: object) -> bool:
        return store.take_lease("r", "me").epoch > 0

    with pytest.raises(InvariantViolated):
        store.bind_chunk(RUN, chunk(9), nested)
    assert store.read_lease("r") is None
    store.close()


@pytest.mark.parametrize(
    ("point", "there"), [("store.transaction.before", False), ("store.transaction.after", True)]
)
def test_crash_points_lie_on_both_sides_of_the_commit(path: Path, point: str, there: bool) -> None:
    """Reads pass none; one writing transaction passes each once."""

    class Crash(BaseException):
        pass

    def die() -> None:
        raise Crash

    store = SqliteStore.open(path)
    crashpoint.arm(point, 1, die)
    try:
        store.list_runs()
        store.check()
        with pytest.raises(Crash):
            store.take_lease("r", "me")
    finally:
        crashpoint.disarm()
    assert (store.read_lease("r") is not None) is there
    store.close()


@pytest.mark.parametrize("table", ["applied", "planned"])
def test_a_chunk_is_planned_and_applied_once_by_constraint(path: Path, table: str) -> None:
    """The primary key itself refuses a second row, whatever the code above it does."""
    store = SqliteStore.open(path)
    fence = store.take_lease("engine", "me")
    scene = Scene(store, fence)
    scene.plan("w", chunk(1), chunk(2))
    scene.commit("w")
    again = {
        "applied": "INSERT INTO applied VALUES ('run-1', 1, 't', '', 1, NULL)",
        "planned": "INSERT INTO planned VALUES ('run-1', 1, 't', '', 1, 'w', 3)",
    }
    with pytest.raises(InvariantViolated, match="UNIQUE"), store._database.transaction() as sql:
        sql.execute(again[table])
    store.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE chunk SET ordinal = 0",
        "UPDATE chunk SET size = -1",
        "UPDATE chunk SET sender = 'undeclared'",
        "UPDATE sender SET announced = -1",
        "UPDATE run SET state = 'LOST'",
        "UPDATE run SET segments = 0",
        "UPDATE run SET segments = 'many'",
        "INSERT INTO lease VALUES ('r', 0, 'me', 0)",
        "INSERT INTO applied VALUES ('run-1', 1, 't', '', 99, NULL)",
        "UPDATE shard SET next_offset = first_offset - 1",
        "INSERT INTO group_offset VALUES (1, 'g', -1)",
    ],
)
def test_impossible_rows_are_refused_by_the_tables(path: Path, statement: str) -> None:
    store = SqliteStore.open(path)
    with pytest.raises(InvariantViolated), store._database.transaction() as sql:
        sql.execute(statement)
    store.close()


FORKED = """
import os, sys
from holdfast.errors import UsageInvalid
from holdfast.store.sqlite import SqliteStore
path = sys.argv[1]
store = SqliteStore.open(path)
store.take_lease("r", "parent")
pid = os.fork()
if pid == 0:
    code = 0
    take, reopen = lambda: store.take_lease("r", "child"), lambda: SqliteStore.open(path)
    for call in (store.list_runs, take, reopen):
        try:
            call()
            code = 1
        except UsageInvalid:
            pass
    store.close()
    os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert store.take_lease("r", "parent").epoch == 2
store.close()
pid = os.fork()
if pid == 0:
    child = SqliteStore.open(path)
    os._exit(child.take_lease("r", "child").epoch)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
print("ok")
"""


def test_no_connection_crosses_a_fork(tmp_path: Path) -> None:
    """In the child the inherited store is refused, and so is a new one beside it: SQLite's copied
    memory says that locks are held which are not. After a close before the fork, all is well.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, str(tmp_path / "s.db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "ok\n", done.stderr


OPTIMISED = """
import sys
from holdfast.errors import Fenced, InvariantViolated
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.store_samples import *
assert False, "asserts are off"
scene = Scene.of(SqliteStore.memory(), bound=0)
scene.store.bind_chunk(RUN, chunk(1), bind)
scene.plan("w", chunk(1))
scene.commit("w")
old = scene.fence
scene.fence = scene.store.take_lease("engine", "other")
for kind, call in (
    (InvariantViolated, lambda: scene.plan("x", chunk(1))),
    (InvariantViolated, lambda: scene.commit("unknown")),
    (InvariantViolated, lambda: scene.commit("w")),
    (Fenced, lambda: scene.store.beat_lease(old)),
):
    try:
        call()
    except kind:
        print("refused")
"""


def test_invariants_are_checked_without_asserts() -> None:
    """Python drops `assert` under -O; what protects data must not go with it."""
    done = subprocess.run(
        [sys.executable, "-O", "-c", OPTIMISED],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["refused"] * 4, done.stderr


def test_time_comes_from_the_clock_that_was_given() -> None:
    clock = VirtualClock(wall_ms=5000)
    store = SqliteStore.memory(clock=clock)
    fence = store.take_lease("engine", "me")
    store.create_run(new_run(created_ms=1000))
    clock.advance(2)
    assert store.move_run(fence, RUN, expected="OPEN", to="CANCELLED")
    (run,) = store.list_runs()
    assert (run.created_ms, run.updated_ms) == (1000, 7000)
    clock.jump_wall(-9000)
    assert (clock.wall_ms(), clock.monotonic_s()) == (-2000, 2.0)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)
    with pytest.raises(ValueError, match="NOWHERE"):
        store.move_run(fence, RUN, expected="CANCELLED", to="NOWHERE")
    store.close()


def test_references_name_the_chunk_and_nothing_else() -> None:
    """See docs/internals/messages.md; the id depends on the identity only."""
    record = reference_to(RUN, chunk(1))
    assert chunk_of(record) == chunk(1)
    assert reference_to(RUN, replace(chunk(1), location="other")).record_id == record.record_id
    assert reference_to(RUN, chunk(2)).record_id != record.record_id
    with pytest.raises(StoreNewer):
        chunk_of(Record(b'{"version": 2}'))
    for value in (b"", b"[]", b"{}", b'{"version": "1"}', b'{"version": 1, "kind": "x"}'):
        with pytest.raises(Damaged):
            chunk_of(Record(value))


def test_offsets_fit_into_their_place() -> None:
    """A shard that is full refuses records rather than writing into its neighbour."""
    store = SqliteStore.memory()
    store.create_topic("t", 2)
    last = (1 << schema.OFFSET_BITS) - 1
    with store._database.transaction() as sql:
        sql.execute("UPDATE shard SET next_offset = ? WHERE shard_id = 1", (last - 1,))
    assert store.append_records("t", 0, [Record(b"x", "id")]) == [last - 1]
    with pytest.raises(InvariantViolated):
        store.append_records("t", 0, [Record(b"y")])
    assert store.append_records("t", 1, [Record(b"z", "id")]) == [0]
    assert [s.offset for s in store.read_records("t", 0, Offset(0), 9)] == [last - 1]
    store.close()
