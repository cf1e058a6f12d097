"""A pipeline for Spark, and runs of it handed in as whole documents of any format."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast._base.ids import Ordinal, RunId, digest
from holdfast.blobs.local import LocalBlobs
from holdfast.engine.barrier import is_complete
from holdfast.engine.state import Shared
from holdfast.intake.upload import put_chunk, put_end
from holdfast.spark.load import load_pipeline
from holdfast.store.contract import Store
from holdfast.store.rows import Chunk, ChunkKind, End, NewRun, SenderDecl

TEXT = """\
from pyspark.sql import SparkSession, functions as F

from holdfast import Pipeline

pipe = Pipeline("shop", version="1")
pipe.input("sales", schema="shop string, amount int")


@pipe.stage
def checked(sales):
    session = SparkSession.getActiveSession()
    assert session is not None
    # What runs share the cores by: the scheduler's mode, and that of the pool that all jobs are in.
    jvm = session.sparkContext._jsc.sc()
    assert jvm.getSchedulingMode().toString() == "FAIR"
    assert jvm.getPoolForName("default").get().schedulingMode().toString() == "FAIR"
    assert session.sparkContext.getLocalProperty("spark.scheduler.pool") is None

    def refuse(frames):
        for frame in frames:
            if (frame["amount"] == 666).any():
                raise ValueError("the number of the beast")
            yield frame

    return sales.mapInPandas(refuse, "shop string, amount int")


pipe.combine("totals", checked, by=["shop"], sum=["amount"], count="n")


@pipe.result("report", order_by=["shop"])
def report(totals):
    return totals.select("shop", F.col("amount").cast("long").alias("amount"), "n")
"""

Sales = list[tuple[str, int]]


def write_pipeline(root: Path) -> Path:
    """Write the pipeline's file, under a name that no other test's has: it becomes a module."""
    path = root / f"shop_{root.name}.py"
    path.write_text(TEXT)
    return path


def document(sales: Sales, fmt: str, header: str = "shop,amount") -> bytes:
    """Return rows as one whole document."""
    if fmt == "json":
        rows = [json.dumps({"shop": shop, "amount": amount}) for shop, amount in sales]
        return "".join(f"{row}\n" for row in rows).encode()
    if fmt == "parquet":
        shops, amounts = zip(*sales, strict=True)
        table = pa.table({"shop": pa.array(shops), "amount": pa.array(amounts, pa.int32())})
        sink = io.BytesIO()
        pq.write_table(table, sink)
        return sink.getvalue()
    return (f"{header}\n" + "".join(f"{shop},{amount}\n" for shop, amount in sales)).encode()


def create(store: Store, pipeline: Path, client: str) -> RunId:
    spec = load_pipeline(str(pipeline)).spec()
    run_id = RunId(digest("run", client, "key"))
    senders = (SenderDecl("sales", "", 1),)
    store.create_run(NewRun(run_id, client, spec.name, spec.fingerprint, 1, senders, 0))
    return run_id


def put(shared: Shared, run_id: RunId, ordinal: int, data: bytes, fmt: str = "csv") -> None:
    chunk = Chunk("sales", "", Ordinal(ordinal), ChunkKind.BLOB, "", 0, "", format=fmt)
    blobs = LocalBlobs(shared.directory.blobs)
    put_chunk(shared.store, blobs, run_id, chunk, [data], barrier=is_complete)


def end(shared: Shared, run_id: RunId, count: int) -> None:
    put_end(shared.store, run_id, End("sales", "", count), is_complete)


def expected(sales: Sales) -> list[list[str]]:
    total: Counter[str] = Counter()
    for shop, amount in sales:
        total[shop] += amount
    count = Counter(shop for shop, _ in sales)
    return [[shop, str(total[shop]), str(count[shop])] for shop in sorted(total)]


def report_of(root: Path, store: Store, run_id: RunId) -> list[list[str]]:
    (series,) = store.read_series(run_id)
    rows = []
    for file in series.files:
        with (root / file.path).open(newline="") as lines:
            rows += list(csv.reader(lines))
    return rows
