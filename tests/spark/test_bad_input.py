"""Bad input that only Spark can meet: rows, users' stages, a full disk, a file that changes.

Each test is a phrase of docs/internals/bad-input.md. Where the words at the door matter, it is the
real one: `holdfast run` as a process, with a Spark of its own.
"""

from __future__ import annotations

import json
import random
import re
import string
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.command import Command
from tests.mounts import small_disk

from holdfast import Pipeline
from holdfast.cli.exits import DISK_WAS_FULL
from holdfast.errors import RunFailed
from holdfast.queries import describe, verify

pytestmark = pytest.mark.spark


def shop_pipeline() -> Pipeline:
    pipe = Pipeline("shop", version="1")
    pipe.input("sales", schema="shop string, amount int")

    @pipe.result("all", streamed=True, order_by=["shop", "amount"])
    def everything(sales: DataFrame) -> DataFrame:
        return sales

    return pipe


ODD_FILES = {
    "crlf": b"shop,amount\r\ncr,1\r\nlf,2\r\n",
    "no_final_newline": b"shop,amount\nlast,3",
    "quoted_comma": b'shop,amount\n"a, b",4\n"say ""x""",5\n',
    "quoted_newline": b'shop,amount\n"two\nlines",6\n"three\r\nmore",7\n',
    "byte_order_mark": b"\xef\xbb\xbfshop,amount\nbom,8\n",
    "not_ascii": "shop,amount\n\u00f8l,9\n".encode(),
    "empty": b"",
    "header_only": b"shop,amount\n",
    "header_only_without_newline": b"shop,amount",
    "mark_only": b"\xef\xbb\xbf",
}


def test_odd_but_legal_files_are_read_as_they_are_meant(
    spark: SparkSession, tmp_path: Path
) -> None:
    """All in one run, with the values that must come out, written by hand."""
    (tmp_path / "in").mkdir()
    for name, data in ODD_FILES.items():
        (tmp_path / "in" / f"sales_{name}.csv").write_bytes(data)
    seen: list[tuple[str, int]] = []
    pipe = Pipeline("odd", version="1")
    pipe.input("sales", schema="shop string, amount int")

    @pipe.result("all")
    def everything(sales: DataFrame) -> DataFrame:
        seen.extend((row["shop"], row["amount"]) for row in sales.collect())
        return sales

    report = pipe.run(spark, inputs=tmp_path / "in", state=tmp_path / "state", out=tmp_path / "out")
    assert sorted(seen, key=lambda row: row[1]) == [
        ("cr", 1),
        ("lf", 2),
        ("last", 3),
        ("a, b", 4),
        ('say "x"', 5),
        ("two\nlines", 6),
        ("three\r\nmore", 7),
        ("bom", 8),
        ("\u00f8l", 9),
    ]
    assert (report.rows, report.bad_rows) == (9, 0)


BAD_ROWS = {
    "not_utf8": (b"shop,amount\na,1\nb\xe4r,2\n", 3, r"column shop: 'b\xe4r' is not UTF-8 text"),
    "too_few": (b"shop,amount\na\nb,2\n", 2, "1 fields, 2 wanted"),
    "too_many": (b"shop,amount\na,1\nb,2,3\n", 3, "3 fields, 2 wanted"),
    "no_number": (b"shop,amount\na,1\nb,2\nc,12 EUR\n", 4, "column amount: '12 EUR' is not an int"),
    "no_quote_end": (b'shop,amount\na,1\n"b,2\nc,3\n', 3, "a quote is never closed"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_bad_row_is_named_by_file_line_and_column(
    spark: SparkSession, tmp_path: Path, case: str
) -> None:
    """The run is over, nothing is exported; the corrected file runs in a new state."""
    data, line, reason = BAD_ROWS[case]
    path = tmp_path / "sales.csv"
    path.write_bytes(data)
    given = {"inputs": {"sales": path}, "out": tmp_path / "out"}
    with pytest.raises(RunFailed) as caught:
        shop_pipeline().run(spark, state=tmp_path / "s1", **given)  # type: ignore[arg-type]
    told = str(caught.value)
    wanted = f"[BAD_ROWS] {path}: 1 bad row(s), the first at line {line}: {reason}. Correct the"
    assert wanted in told
    assert "on_bad_rows='quarantine'" in told
    assert "\n" not in told
    assert not (tmp_path / "out").exists()
    path.write_bytes(b"shop,amount\na,1\n")
    shop_pipeline().run(spark, state=tmp_path / "s2", **given)  # type: ignore[arg-type]
    assert (tmp_path / "out" / "all.csv").read_text() == "shop,amount\na,1\n"


def test_a_number_that_is_none_at_the_door(tmp_path: Path) -> None:
    command = Command(tmp_path)
    path = command.write("sales.csv", "shop,amount\na,1\nb,none\n")
    ended = command.run()
    ended.failed(
        "RUN_FAILED",
        f"{path}: 1 bad row(s), the first at line 3: column amount: 'none' is not an int",
        "Correct the file, or set the input's on_bad_rows='quarantine'",
        "use a new state directory",
    )
    assert not command.out.exists()
    assert [run.state for run in describe(command.state)] == ["FAILED"]


RAISES_IN_THE_DRIVER = """\
from holdfast import Pipeline

pipe = Pipeline("shop", version="1")
pipe.input("sales", schema="shop string, amount int")


def share(whole, parts):
    return whole / parts


@pipe.result("all", streamed=True)
def everything(sales):
    return sales.limit(int(share(1, 0)))
"""

RAISES_IN_A_WORKER = """\
from pyspark.sql import functions as F

from holdfast import Pipeline

pipe = Pipeline("shop", version="1")
pipe.input("sales", schema="shop string, amount int")


def share(amount):
    return 1 / (amount - 2)


@pipe.result("all", streamed=True)
def everything(sales):
    return sales.select(F.udf(share, "double")("amount").alias("share"))
"""


def test_a_stage_that_raises_in_the_driver(tmp_path: Path) -> None:
    """Known before there is a run, so that the corrected file goes on in the same state."""
    command = Command(tmp_path, RAISES_IN_THE_DRIVER)
    command.write("sales.csv", "shop,amount\na,1\n")
    command.run().failed(
        "STAGE_INVALID",
        "result all cannot work, at shop.py:8: ZeroDivisionError: division by zero.",
        "Correct it",
    )
    assert describe(command.state) == []


def test_a_stage_that_raises_in_a_worker(tmp_path: Path) -> None:
    command = Command(tmp_path, RAISES_IN_A_WORKER)
    command.write("sales.csv", "shop,amount\na,1\nb,2\n")
    ended = command.run()
    ended.failed(
        "RUN_FAILED",
        "[STAGE_FAILED] all failed at shop.py:10: ZeroDivisionError: division by zero.",
        "use a new state directory",
    )
    assert ended.err.count("attempt at batch 1.1 failed: [STAGE_FAILED]") == 3
    assert not command.out.exists()


REWRITES = """\
from pathlib import Path

from holdfast import Pipeline

pipe = Pipeline("shop", version="1")
pipe.input("sales", schema="shop string, amount int")
built = []


@pipe.result("all", streamed=True, order_by=["shop", "amount"])
def everything(sales):
    # Built once to be checked, then once for each batch, and now and then for the columns alone.
    built.append(sales)
    switch = Path("rewrite")
    if switch.exists() and len(built) == 3:
        switch.unlink()
        path = Path("in/sales.csv")
        path.write_text(path.read_text().replace("z,40", "z,41"))
    return sales
"""


def test_an_input_file_rewritten_in_the_middle_of_a_run(tmp_path: Path) -> None:
    """Between two batches, in the same size: what was not yet read does not fit any more."""
    command = Command(tmp_path, REWRITES)
    good = "shop,amount\n" + "".join(f"s,{n:02}\n" for n in range(40)) + "z,40\n"
    path = command.write("sales.csv", good)
    (tmp_path / "rewrite").touch()
    ended = command.run("--batch-bytes", "100", "--chunk-bytes", "100")
    ended.failed("INPUT_CHANGED", str(path), "since the run began", "Undo that, or use a new state")
    assert "batch 1.1 committed" in ended.err
    assert not command.out.exists()
    path.write_text(good)
    ended = command.run("--batch-bytes", "100", "--chunk-bytes", "100")
    ended.succeeded()
    assert "batch 1.1 " not in ended.err
    lines = (command.out / "all.csv").read_text().splitlines()
    assert lines == ["shop,amount", *(f"s,{n}" for n in range(40)), "z,40"]


def test_a_full_disk_during_a_whole_run(tmp_path: Path) -> None:
    """State, Spark's files and results on one small disk, which grows three times."""
    command = Command(tmp_path)
    draw = random.Random(4)
    shops = ["".join(draw.choices(string.ascii_letters, k=90)) for _ in range(12_000)]
    command.write("sales.csv", "shop,amount\n" + "".join(f"{shop},1\n" for shop in shops))
    sizes = ("--batch-bytes", "400000", "--chunk-bytes", "200000")
    with small_disk(tmp_path / "disk", 300) as disk:
        command.state, command.out = disk.path / "state", disk.path / "out"
        command.run(*sizes).failed(
            *("DISK_FULL", f"while writing {command.state}/store.sqlite3.", "Make room"),
            exit_code=DISK_WAS_FULL,
        )
        disk.resize(1300)
        ended = command.run(*sizes)
        place = f"while writing {command.state}/runs/"
        ended.failed("DISK_FULL", place, "spark.local.dir", exit_code=DISK_WAS_FULL)
        assert "batch 1.1 committed" in ended.err
        disk.resize(3200)
        ended = command.run(*sizes)
        place = f"while writing {command.out}."
        ended.failed("DISK_FULL", place, "Make room, then run again", exit_code=DISK_WAS_FULL)
        assert "batch 1.1 " not in ended.err
        assert not list(command.out.iterdir())
        disk.resize(16_000)
        command.run(*sizes).succeeded()
        assert verify(command.state, command.out).findings == ()
        lines = (command.out / "all.csv").read_text().splitlines()
        assert lines == ["shop,amount", *(f"{shop},1" for shop in sorted(shops))]


NULLS = [("a", 1), ("b", None), (None, 3)]


@pytest.mark.parametrize("fmt", ["csv", "json", "parquet"])
@pytest.mark.parametrize("policy", ["fail", "quarantine"])
def test_a_null_that_may_not_be(spark: SparkSession, tmp_path: Path, fmt: str, policy: str) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / f"sales.{fmt}"
    if fmt == "parquet":
        shops, amounts = zip(*NULLS, strict=True)
        pq.write_table(pa.table({"shop": shops, "amount": amounts}), path)
    elif fmt == "json":
        rows = [{"shop": shop, "amount": amount} for shop, amount in NULLS]
        del rows[1]["amount"]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text("shop,amount\na,1\nb,\n,3\n")
    pipe = Pipeline("nulls", version="1")
    pipe.input("sales", schema="shop string, amount int NOT NULL", format=fmt, on_bad_rows=policy)

    @pipe.result("all", streamed=True, order_by=["amount"])
    def everything(sales: DataFrame) -> DataFrame:
        return sales

    def run() -> None:
        pipe.run(spark, inputs=tmp_path / "in", state=tmp_path / "state", out=tmp_path / "out")

    if policy == "fail":
        line = 3 if fmt == "csv" else 2
        words = f"{path}: 1 bad row(s), the first at line {line}: column amount: null, declared"
        with pytest.raises(RunFailed, match=re.escape(words)):
            run()
        return
    run()
    assert (tmp_path / "out" / "all.csv").read_text() == "shop,amount\na,1\n,3\n"
