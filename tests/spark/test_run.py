"""`Pipeline.run` on a real session: formats, segments, frames, bad rows, resumption."""

from __future__ import annotations

import csv
import datetime
import json
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast import Pipeline
from holdfast.config import Config
from holdfast.engine.drive import RunReport, run_id_of
from holdfast.engine.state import look
from holdfast.errors import (
    BadRows,
    HeaderWrong,
    InputChanged,
    RunFailed,
    StageInvalid,
    StateMismatch,
    UsageInvalid,
)
from holdfast.queries import describe, verify
from holdfast.testing.combines import check_combine

pytestmark = pytest.mark.spark
SMALL = Config(chunk_bytes=64, batch_bytes=150)


def rows_of(path: Path) -> Counter[tuple[str, ...]]:
    with path.open(newline="") as file:
        return Counter(tuple(row) for row in list(csv.reader(file))[1:])


def write_csv(path: Path, rows: list[tuple[str, int]]) -> None:
    path.write_text("shop,amount\n" + "".join(f"{a},{b}\n" for a, b in rows))


SALES = [("a", 1), ("a", 7), ("b", 5), ("b", 5), ("a", 9), ("c", 2), ("b", 3)] * 6


def sums_pipeline(**options: str) -> Pipeline:
    pipe = Pipeline("sums", version="1")
    pipe.input("sales", schema="shop string, amount int", **options)  # type: ignore[arg-type]
    pipe.combine("totals", "sales", by=["shop"], sum=["amount"], count="n")

    @pipe.result("report", order_by=["shop"])
    def report(totals: DataFrame) -> DataFrame:
        return totals.select("shop", "amount", "n")

    return pipe


def expected_sums() -> Counter[tuple[str, ...]]:
    total: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for shop, amount in SALES:
        total[shop] += amount
        count[shop] += 1
    return Counter((shop, str(total[shop]), str(count[shop])) for shop in total)


def test_a_combine_over_many_batches_equals_the_sum_by_hand(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_csv(tmp_path / "sales.csv", SALES)
    report = sums_pipeline().run(
        spark,
        inputs={"sales": tmp_path / "sales.csv"},
        state=tmp_path / "state",
        out=tmp_path / "out",
        config=SMALL,
    )
    assert report.batches >= 2
    assert report.rows == len(SALES)
    assert rows_of(tmp_path / "out" / "report.csv") == expected_sums()
    assert verify(tmp_path / "state", tmp_path / "out").findings == ()


@pytest.mark.parametrize(("one_task_bytes", "rows", "rows_max"), [(0, 100, 7), (64 << 20, 1003, 1)])
def test_pieces_are_bounded_and_the_export_keeps_its_order(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    one_task_bytes: int,
    rows: int,
    rows_max: int,
) -> None:
    """From several tasks; and from one, with more files than its numbers have digits for."""
    monkeypatch.setattr("holdfast.spark.execute._ONE_TASK_BYTES", one_task_bytes)
    amounts = [(f"s{n % 3}", (n * 7919) % 5000) for n in range(rows)]
    write_csv(tmp_path / "sales.csv", amounts)
    pipe = Pipeline("sorted", version="1")
    pipe.input("sales", schema="shop string, amount int")

    @pipe.result("sorted", order_by=["amount"])
    def by_amount(sales: DataFrame) -> DataFrame:
        return sales.select("amount", "shop")

    @pipe.result("streamed", streamed=True, order_by=["amount"])
    def streamed(sales: DataFrame) -> DataFrame:
        return sales.select("amount", "shop").where(F.col("amount") < 500)

    pipe.run(
        spark,
        inputs={"sales": tmp_path / "sales.csv"},
        state=tmp_path / "state",
        out=tmp_path / "out",
        config=Config(piece_rows_max=rows_max),
    )
    lines = [f"{amount},{shop}" for amount, shop in sorted((b, a) for a, b in amounts)]
    some = [line for line in lines if int(line.partition(",")[0]) < 500]
    with look(tmp_path / "state") as (_, store):
        (run,) = store.list_runs()
        results = {series.series: series for series in store.read_results(run.run_id)}
    for name, wanted in (("sorted", lines), ("streamed", some)):
        text = (tmp_path / "out" / f"{name}.csv").read_text()
        assert text.splitlines() == ["amount,shop", *wanted]
        for pieces in (results[name].pieces, results[name].ordered or ()):
            assert sum(piece.rows or 0 for piece in pieces) == len(wanted)
            assert max(piece.rows or 0 for piece in pieces) == rows_max
            assert [piece.ordinal for piece in pieces] == [*range(1, len(pieces) + 1)]
    assert verify(tmp_path / "state", tmp_path / "out").findings == ()


TYPED = """
id int, big bigint, price decimal(12,4), half double, is_new boolean, day date, at timestamp_ntz,
seen timestamp, name string, raw binary, tags array<string>, place struct<x:int,y:string>
"""


def typed_rows() -> list[tuple[object, ...]]:
    at = datetime.datetime(2025, 3, 30, 2, 30, 0, 123456)
    return [
        (
            n,
            n << 40,
            Decimal(n) / 8,
            n / 3,
            n % 2 == 0,
            datetime.date(1899 + n, 2, 28),
            at.replace(minute=n),
            at.replace(minute=n, tzinfo=datetime.UTC),
            ["", " a ", 'say "x",\n'][n % 3],
            bytes([0, n, 255]),
            ["x"] * (n % 3),
            (n, None),
        )
        for n in range(20)
    ] + [(99, *[None] * 11)]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_result_in_parquet_keeps_types_and_values(
    spark: SparkSession, tmp_path: Path, streamed: bool
) -> None:
    """The same as `pipe.test` gives; in order over bounded parts, and restored when it is lost."""
    pipe = Pipeline("typed", version="1")
    pipe.input("things", schema=" ".join(TYPED.split()))

    @pipe.result("kept", streamed=streamed, order_by=["id"], format="parquet")
    def kept(things: DataFrame) -> DataFrame:
        return things

    things = spark.createDataFrame(typed_rows(), TYPED).repartition(3)
    wanted = pipe.test({"things": things}, spark)["kept"]

    def run() -> RunReport:
        inputs, config = {"things": things}, Config(piece_rows_max=4, batch_bytes=1)
        state, out = tmp_path / "state", tmp_path / "out"
        return pipe.run(spark, inputs=inputs, state=state, out=out, config=config)

    directory = run().results["kept"]
    found = spark.read.parquet(str(directory))
    assert [(f.name, f.dataType) for f in found.schema] == [
        (f.name, f.dataType) for f in wanted.schema
    ]
    assert found.orderBy("id").collect() == wanted.orderBy("id").collect()
    tables = [pq.read_table(part) for part in sorted(directory.iterdir())]
    assert [table.num_rows for table in tables] == [4, 4, 4, 4, 4, 1]
    assert [n for table in tables for n in table["id"].to_pylist()] == [*range(20), 99]
    assert str(tables[0].schema.field("seen").type) == "timestamp[us, tz=UTC]"
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    (directory / "part-00002.parquet").unlink()
    assert run().exported == ["kept"]
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    assert verify(tmp_path / "state", tmp_path / "out").findings == ()


@pytest.mark.parametrize("one_task_bytes", [0, 64 << 20])
def test_a_result_in_parquet_without_rows_has_columns(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_task_bytes: int
) -> None:
    monkeypatch.setattr("holdfast.spark.execute._ONE_TASK_BYTES", one_task_bytes)
    write_csv(tmp_path / "sales.csv", SALES)
    pipe = Pipeline("none", version="1")
    pipe.input("sales", schema="shop string, amount int")
    pipe.input("gone", schema="day date", optional=True)

    @pipe.result("filtered", format="parquet")
    def filtered(sales: DataFrame) -> DataFrame:
        return sales.where("amount < 0")

    @pipe.result("streamed", streamed=True, format="parquet")
    def streamed(sales: DataFrame) -> DataFrame:
        return sales.where("amount < 0")

    @pipe.result("absent", format="parquet")
    def absent(gone: DataFrame) -> DataFrame:
        return gone

    inputs = {"sales": tmp_path / "sales.csv"}
    report = pipe.run(spark, inputs=inputs, state=tmp_path / "state", out=tmp_path / "out")
    for name, directory in report.results.items():
        assert [path.name for path in directory.iterdir()] == ["part-00001.parquet"], name
        found = spark.read.parquet(str(directory))
        wanted = [("day", "date")] if name == "absent" else [("shop", "string"), ("amount", "int")]
        assert (found.dtypes, found.count()) == (wanted, 0)


@pytest.mark.parametrize("fmt", ["json", "parquet"])
def test_other_formats_give_the_same_answer(spark: SparkSession, tmp_path: Path, fmt: str) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / f"sales.{fmt}"
    if fmt == "json":
        path.write_text("".join(json.dumps({"shop": a, "amount": b}) + "\n" for a, b in SALES))
    else:
        shops, amounts = zip(*SALES, strict=True)
        pq.write_table(pa.table({"shop": shops, "amount": amounts}), path)
    pipe = sums_pipeline(format=fmt)
    pipe.run(spark, inputs=tmp_path / "in", state=tmp_path / "state", out=tmp_path / "out")
    assert rows_of(tmp_path / "out" / "report.csv") == expected_sums()


def test_binary_files_are_bound_by_reference(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in" / "images").mkdir(parents=True)
    for number in range(3):
        (tmp_path / "in" / "images" / f"{number}.bin").write_bytes(bytes([number]) * 1000)
    pipe = Pipeline("sizes", version="1")
    pipe.input("images", format="binaryFile")

    @pipe.result("sizes", streamed=True)
    def sizes(images: DataFrame) -> DataFrame:
        return images.select(F.element_at(F.split("path", "/"), -1).alias("name"), "length")

    pipe.run(spark, inputs=tmp_path / "in", state=tmp_path / "state", out=tmp_path / "out")
    wanted = Counter((f"{n}.bin", "1000") for n in range(3))
    assert rows_of(tmp_path / "out" / "sizes.csv") == wanted


def test_a_frame_is_evaluated_once_and_a_shuffling_stage_doubles_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A source that gives another order and partitioning each time must not be asked again."""
    evaluations = tmp_path / "evaluations"
    evaluations.mkdir()
    marks = str(evaluations)

    def restless(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import uuid

        with open(os.path.join(marks, uuid.uuid4().hex), "w"):
            pass
        yield from batches

    def frame(partitions: int) -> DataFrame:
        base = spark.range(200).orderBy(F.rand()).repartition(partitions)
        return base.mapInArrow(restless, "id long")

    pipe = Pipeline("frames", version="1")
    pipe.input("numbers", schema="id long")

    @pipe.stage(durable=True)
    def shuffled(numbers: DataFrame) -> DataFrame:
        return numbers.repartition(3)

    @pipe.result("all", order_by=["id"])
    def all_numbers(shuffled: DataFrame) -> DataFrame:
        return shuffled

    state, out = tmp_path / "state", tmp_path / "out"
    small = Config(batch_bytes=1)
    pipe.run(spark, inputs={"numbers": frame(4)}, state=state, out=out, config=small)
    once = len(list(evaluations.iterdir()))
    assert 1 <= once <= 4
    assert rows_of(out / "all.csv") == Counter((str(n),) for n in range(200))
    again = pipe.run(spark, inputs={"numbers": frame(7)}, state=state, out=out, config=small)
    assert again.already_done
    assert len(list(evaluations.iterdir())) == once


def test_two_durable_stages_and_a_join_after_the_barrier(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_csv(tmp_path / "sales.csv", SALES)
    (tmp_path / "shops.csv").write_text('shop,title\na,"Anchor, North"\nb,Bay\nc,Cove\n')
    (tmp_path / "bonus.csv").write_text("shop,extra\na,100\n")
    pipe = Pipeline("segments", version="1")
    pipe.input("sales", schema="shop string, amount int")
    pipe.input("bonus", schema="shop string, extra int")
    pipe.input("shops", schema="shop string, title string", whole=True)

    @pipe.stage(durable=True)
    def named(sales: DataFrame, shops: DataFrame) -> DataFrame:
        return sales.join(shops, "shop")

    @pipe.stage(durable=True)
    def doubled(named: DataFrame) -> DataFrame:
        return named.withColumn("amount", F.col("amount") * 2)

    pipe.combine("totals", "doubled", by=["shop", "title"], sum=["amount"])

    @pipe.result("report", order_by=["title"])
    def report(totals: DataFrame, bonus: DataFrame) -> DataFrame:
        joined = totals.join(bonus, "shop", "left").na.fill(0)
        return joined.selectExpr("title", "amount + extra as total")

    assert [len(s.outputs) for s in pipe.spec().segments] == [2, 1, 1]
    pipe.run(
        spark,
        inputs={name: tmp_path / f"{name}.csv" for name in ("sales", "bonus", "shops")},
        state=tmp_path / "state",
        out=tmp_path / "out",
        config=SMALL,
    )
    total: Counter[str] = Counter()
    for shop, amount in SALES:
        total[shop] += 2 * amount
    wanted = Counter(
        {
            ("Anchor, North", str(total["a"] + 100)): 1,
            ("Bay", str(total["b"])): 1,
            ("Cove", str(total["c"])): 1,
        }
    )
    assert rows_of(tmp_path / "out" / "report.csv") == wanted
    assert verify(tmp_path / "state").findings == ()


def test_a_table_without_rows_gives_an_empty_result(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text("shop,amount\n")
    sums_pipeline().run(
        spark, inputs={"sales": tmp_path / "sales.csv"}, state=tmp_path / "s", out=tmp_path / "o"
    )
    assert (tmp_path / "o" / "report.csv").read_text() == "shop,amount,n\n"


def test_each_batch_reads_its_input_once(spark: SparkSession, tmp_path: Path) -> None:
    """Three outputs from one table; the rows that passed the source are the rows of the file."""
    reads = tmp_path / "reads"
    reads.mkdir()
    marks = str(reads)
    write_csv(tmp_path / "sales.csv", SALES)
    pipe = Pipeline("once", version="1")
    pipe.input("sales", schema="shop string, amount int")

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import uuid

        for batch in batches:
            with open(os.path.join(marks, uuid.uuid4().hex), "w") as file:
                file.write(str(batch.num_rows))
            yield batch

    @pipe.stage
    def seen(sales: DataFrame) -> DataFrame:
        return sales.mapInArrow(counted, "shop string, amount int")

    @pipe.result("large", streamed=True)
    def large(seen: DataFrame) -> DataFrame:
        return seen.where("amount > 4")

    @pipe.result("small", streamed=True)
    def small(seen: DataFrame) -> DataFrame:
        return seen.where("amount <= 4")

    pipe.combine("totals", seen, by=["shop"], sum=["amount"])

    @pipe.result("report")
    def report(totals: DataFrame) -> DataFrame:
        return totals

    ran = pipe.run(
        spark, inputs={"sales": tmp_path / "sales.csv"}, state=tmp_path / "s", out=tmp_path / "o"
    )
    assert sum(int(path.read_text()) for path in reads.iterdir()) == len(SALES) == ran.rows
    both = rows_of(tmp_path / "o" / "large.csv") + rows_of(tmp_path / "o" / "small.csv")
    assert both == Counter((shop, str(amount)) for shop, amount in SALES)


def test_bad_rows_fail_the_run_with_file_and_line(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text("shop,amount\na,1\nb,none\nc,3\n")
    inputs = {"sales": tmp_path / "sales.csv"}
    with pytest.raises(RunFailed) as caught:
        sums_pipeline().run(spark, inputs=inputs, state=tmp_path / "s")
    cause = caught.value.__cause__
    assert isinstance(cause, BadRows)
    assert (cause.path, cause.line) == (str(tmp_path / "sales.csv"), 3)
    (run,) = describe(tmp_path / "s")
    assert run.state == "FAILED"


@pytest.mark.parametrize("fmt", ["csv", "json"])
def test_quarantine_keeps_bad_rows_aside_and_counts_them(
    spark: SparkSession, tmp_path: Path, fmt: str
) -> None:
    path = tmp_path / f"sales.{fmt}"
    if fmt == "csv":
        path.write_text("shop,amount\na,1\nb,none\nc,3\nd\n")
    else:
        path.write_text('{"shop":"a","amount":1}\n{"shop":\n{"shop":"c","amount":3}\nnope\n')
    pipe = sums_pipeline(format=fmt, on_bad_rows="quarantine")
    report = pipe.run(spark, inputs={"sales": path}, state=tmp_path / "s", out=tmp_path / "o")
    assert report.bad_rows == 2
    assert list(report.kept_aside) == ["sales"]
    assert sum(pq.read_table(path).num_rows for path in report.kept_aside["sales"]) == 2
    assert rows_of(tmp_path / "o" / "report.csv") == Counter(
        {("a", "1", "1"): 1, ("c", "3", "1"): 1}
    )
    with look(tmp_path / "s") as (directory, store):
        files = store.read_manifest(run_id_of(pipe.spec()), "_bad_rows.sales")
        kept = [row for f in files for row in pq.read_table(directory.root / f.path).to_pylist()]
    if fmt == "csv":
        assert sorted((row["_hf_line"], row["_hf_raw"]) for row in kept) == [
            (3, "b,none"),
            (5, "d"),
        ]
    assert {Path(row["_hf_file"]).name for row in kept} == {path.name}


def test_bad_json_fails_with_its_line(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "sales.json"
    path.write_text('{"shop":"a","amount":1}\n{"shop":"b","amount":"none"}\n')
    with pytest.raises(RunFailed) as caught:
        sums_pipeline(format="json").run(spark, inputs={"sales": path}, state=tmp_path / "s")
    cause = caught.value.__cause__
    assert isinstance(cause, BadRows)
    assert cause.line == 2


def test_a_wrong_header_is_refused_before_anything_is_bound(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "sales.csv").write_text("amount,shop\n1,a\n")
    with pytest.raises(HeaderWrong):
        sums_pipeline().run(spark, inputs={"sales": tmp_path / "sales.csv"}, state=tmp_path / "s")


def test_a_rewritten_input_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """The checksum of the bytes that are parsed is compared, whatever size and time say."""
    path = tmp_path / "sales.csv"
    write_csv(path, SALES)
    pipe = Pipeline("changing", version="1")
    pipe.input("sales", schema="shop string, amount int")

    calls = []

    @pipe.result("all", streamed=True)
    def everything(sales: DataFrame) -> DataFrame:
        # The first call checks the pipeline; the second is between the binding and the job.
        calls.append(1)
        if len(calls) == 2:
            path.write_text(path.read_text().replace("a,9", "a,8"))
        return sales

    with pytest.raises(InputChanged):
        pipe.run(spark, inputs={"sales": path}, state=tmp_path / "s")


def test_a_stage_with_an_unknown_column_names_the_users_line(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_csv(tmp_path / "sales.csv", SALES)
    pipe = Pipeline("broken", version="1")
    pipe.input("sales", schema="shop string, amount int")

    @pipe.result("all", streamed=True)
    def everything(sales: DataFrame) -> DataFrame:
        return sales.select("shoop")

    with pytest.raises(StageInvalid) as caught:
        pipe.run(spark, inputs={"sales": tmp_path / "sales.csv"}, state=tmp_path / "s")
    assert Path(__file__).name in caught.value.where
    assert "shoop" in caught.value.error


def test_a_stage_that_raises_in_a_worker_names_the_users_line(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_csv(tmp_path / "sales.csv", SALES)
    pipe = Pipeline("raising", version="1")
    pipe.input("sales", schema="shop string, amount int")

    @pipe.result("all", streamed=True)
    def everything(sales: DataFrame) -> DataFrame:
        def explode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            raise ValueError("no such luck")
            yield from batches

        return sales.mapInArrow(explode, "shop string")

    with pytest.raises(RunFailed) as caught:
        pipe.run(spark, inputs={"sales": tmp_path / "sales.csv"}, state=tmp_path / "s")
    assert "STAGE_FAILED" in caught.value.reason
    assert "ValueError: no such luck" in caught.value.reason
    assert Path(__file__).name in caught.value.reason
    (run,) = describe(tmp_path / "s")
    assert run.failures == 3


def test_a_changed_schema_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    write_csv(tmp_path / "sales.csv", SALES)
    inputs = {"sales": tmp_path / "sales.csv"}
    sums_pipeline().run(spark, inputs=inputs, state=tmp_path / "s")
    other = Pipeline("sums", version="1")
    other.input("sales", schema="shop string, amount bigint")
    other.combine("totals", "sales", by=["shop"], sum=["amount"], count="n")

    @other.result("report", order_by=["shop"])
    def report(totals: DataFrame) -> DataFrame:
        return totals

    with pytest.raises(StateMismatch) as caught:
        other.run(spark, inputs=inputs, state=tmp_path / "s")
    assert caught.value.what == "input sales changed since this run began"


def test_inputs_must_name_declared_tables(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UsageInvalid):
        sums_pipeline().run(spark, inputs={"sale": tmp_path}, state=tmp_path / "s")
    with pytest.raises(UsageInvalid):
        sums_pipeline().run(spark, inputs={}, state=tmp_path / "t")


def test_pipe_test_computes_results_from_rows(spark: SparkSession) -> None:
    found = sums_pipeline().test({"sales": SALES}, spark)
    rows = Counter((r["shop"], str(r["amount"]), str(r["n"])) for r in found["report"].collect())
    assert rows == expected_sums()


def test_check_combine_catches_an_average(spark: SparkSession) -> None:
    pipe = sums_pipeline()
    pipe.combine(
        "mean",
        "sales",
        partial=lambda rows: rows.groupBy("shop").agg(F.avg("amount").alias("amount")),
        merge=lambda rows: rows.groupBy("shop").agg(F.avg("amount").alias("amount")),
    )
    first = spark.createDataFrame(SALES[:2], "shop string, amount int")
    second = spark.createDataFrame(SALES[2:5], "shop string, amount int")
    check_combine(pipe, "totals", first, second)
    with pytest.raises(AssertionError, match="depends on how its input is cut"):
        check_combine(pipe, "mean", first, second)


@pytest.mark.parametrize(
    ("made", "order_by"),
    [("shoop", []), ("shop", ["amuont"]), ("map(shop, amount) AS sizes", [])],
    ids=["no such column", "an order by no column", "a column without an order"],
)
def test_a_typo_in_the_last_result_is_found_before_there_is_a_run(
    spark: SparkSession, tmp_path: Path, made: str, order_by: list[str]
) -> None:
    """Corrected, the same state serves: nothing was created, bound or committed."""
    write_csv(tmp_path / "sales.csv", SALES)
    inputs = {"sales": tmp_path / "sales.csv"}
    broken = Pipeline("typo")
    broken.input("sales", schema="shop string, amount int")

    @broken.result("last", order_by=order_by)
    def last(sales: DataFrame) -> DataFrame:
        return sales.selectExpr(made)

    with pytest.raises(StageInvalid) as caught:
        broken.run(spark, inputs=inputs, state=tmp_path / "s")
    assert (caught.value.where == "its order_by") == ("amuont" in order_by)
    assert describe(tmp_path / "s") == []
    sums_pipeline().run(spark, inputs=inputs, state=tmp_path / "s", out=tmp_path / "o")
    assert rows_of(tmp_path / "o" / "report.csv") == expected_sums()


@pytest.mark.parametrize("where", ["input", "state"])
def test_names_that_spark_would_take_for_patterns_are_refused(
    spark: SparkSession, tmp_path: Path, where: str
) -> None:
    """Spark would read `sales_1.json` for `sales_[1].json`, and nobody would be told."""
    path = tmp_path / ("sales_[1].json" if where == "input" else "sales.json")
    path.write_text('{"shop":"other","amount":2}\n')
    state = tmp_path / ("s[1]" if where == "state" else "s")
    with pytest.raises(UsageInvalid):
        sums_pipeline(format="json").run(spark, inputs={"sales": path}, state=state)


def test_bad_rows_of_a_whole_table_fail_the_run(spark: SparkSession, tmp_path: Path) -> None:
    write_csv(tmp_path / "sales.csv", SALES)
    (tmp_path / "shops.json").write_text('{"shop":"a","city":"X"}\n{"shop":"b","city":\n')
    pipe = Pipeline("pins", version="1")
    pipe.input("sales", schema="shop string, amount int")
    pipe.input("shops", schema="shop string, city string", format="json", whole=True)

    @pipe.result("joined", streamed=True)
    def joined(sales: DataFrame, shops: DataFrame) -> DataFrame:
        return sales.join(shops, "shop").select("shop", "city")

    inputs = {"sales": tmp_path / "sales.csv", "shops": tmp_path / "shops.json"}
    with pytest.raises(RunFailed) as caught:
        pipe.run(spark, inputs=inputs, state=tmp_path / "s")
    assert isinstance(caught.value.__cause__, BadRows)


def test_nulls_and_empty_texts_stay_rows_of_an_export(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('n,s\n1,\n2,""\n3,x\n')
    pipe = Pipeline("texts", version="1")
    pipe.input("t", schema="n int, s string")

    @pipe.result("one")
    def one(t: DataFrame) -> DataFrame:
        return t.select("s")

    @pipe.result("two", order_by=["n"])
    def two(t: DataFrame) -> DataFrame:
        return t.withColumnRenamed("s", "a.b")

    pipe.run(spark, inputs={"t": tmp_path / "t.csv"}, state=tmp_path / "s", out=tmp_path / "o")
    assert (tmp_path / "o" / "one.csv").read_text() == 's\n""\n""\nx\n'
    assert (tmp_path / "o" / "two.csv").read_text() == 'n,a.b\n1,\n2,""\n3,x\n'


def test_parquet_files_of_one_table_must_have_the_same_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"id": [1], "amount": [2]}), tmp_path / "t_1.parquet")
    pq.write_table(pa.table({"id": [1], "amt": [2]}), tmp_path / "t_2.parquet")
    for schema in ("", "id bigint, amount bigint"):
        pipe = Pipeline("evolving", version="1")
        pipe.input("t", format="parquet", schema=schema)

        @pipe.result("all", streamed=True)
        def everything(t: DataFrame) -> DataFrame:
            return t

        with pytest.raises(HeaderWrong):
            pipe.run(spark, inputs=tmp_path, state=tmp_path.parent / f"state-{bool(schema)}")


def test_a_session_in_another_zone_gives_the_same_bytes_and_keeps_its_zone(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text("at\n2024-03-10 02:30:00\n")
    pipe = Pipeline("zones", version="1")
    pipe.input("t", schema="at timestamp_ntz")

    @pipe.result("all", streamed=True)
    def everything(t: DataFrame) -> DataFrame:
        return t.selectExpr("date_format(at, 'HH:mm') as at")

    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        pipe.run(spark, inputs={"t": tmp_path / "t.csv"}, state=tmp_path / "s", out=tmp_path / "o")
        assert spark.conf.get("spark.sql.session.timeZone") == "America/New_York"
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert (tmp_path / "o" / "all.csv").read_text() == "at\n02:30\n"


def test_a_frame_of_other_types_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([("a", 1.5)], "shop string, amount double")
    with pytest.raises(UsageInvalid):
        sums_pipeline().run(spark, inputs={"sales": frame}, state=tmp_path / "s")
