"""`Pipeline.test`: results from small frames, in two batches, with no state and no promise."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.engine.spec import OutputKind, PipelineSpec
from holdfast.errors import UsageInvalid
from holdfast.spark.evaluate import Evaluation
from holdfast.spark.read import parse_ddl
from holdfast.spark.session import build_session

if TYPE_CHECKING:
    from holdfast.pipeline import Pipeline

_HALF = "_hf_half"


def try_pipeline(
    pipeline: Pipeline, inputs: Mapping[str, Any], spark: SparkSession | None
) -> dict[str, DataFrame]:
    """Return every result as a frame. Streaming tables are cut into two batches."""
    spark = spark or SparkSession.getActiveSession() or _local_session()
    spec = pipeline.spec()
    missing = [t.name for t in spec.tables if not (t.produced or t.optional or t.name in inputs)]
    if missing:
        what = f"the test has no rows for table {missing[0]}"
        raise UsageInvalid(what=what, remedy="Give some, an empty list, or make it optional.")
    frames = {name: _frame(spec, name, value, spark) for name, value in inputs.items()}
    whole = {name: frame for name, frame in frames.items() if spec.table(name).whole}
    made: dict[str, list[DataFrame]] = {}
    halves = {name: _halves(frame) for name, frame in frames.items() if name not in whole}
    for segment in spec.segments:
        for output in segment.outputs:
            for half in halves.get(output.table, []):
                bases = {**whole, output.table: half}
                evaluation = Evaluation(pipeline, spark, bases)
                is_partial = output.kind is OutputKind.PARTIAL
                build = evaluation.partial if is_partial else evaluation.frame
                made.setdefault(output.name, []).append(build(output.name))
            if output.kind is OutputKind.DURABLE:
                halves[output.name] = made.get(output.name, [])
    return {
        series.name: _result(pipeline, spark, series.name, made, whole) for series in spec.series
    }


def _result(
    pipeline: Pipeline,
    spark: SparkSession,
    name: str,
    made: Mapping[str, list[DataFrame]],
    whole: Mapping[str, DataFrame],
) -> DataFrame:
    nothing = Evaluation(pipeline, spark, {})
    bases: dict[str, DataFrame] = dict(whole)
    for dataset, parts in made.items():
        rows = parts[0]
        for part in parts[1:]:
            rows = rows.unionByName(part)
        is_combine = pipeline.placed()[dataset].node.kind == "combine"
        bases[dataset] = nothing.merged(dataset, rows) if is_combine else rows
    return Evaluation(pipeline, spark, bases).frame(name)


def _halves(frame: DataFrame) -> list[DataFrame]:
    """Cut a frame in two by a hash of its rows: the same cut at every evaluation."""
    half = F.pmod(F.hash(*frame.columns), F.lit(2))
    cut = frame.withColumn(_HALF, half)
    return [cut.where(F.col(_HALF) == n).drop(_HALF) for n in (0, 1)]


def _local_session() -> SparkSession:
    log = Path(tempfile.mkdtemp(prefix="holdfast-test-")) / "spark.log"
    return build_session(
        master="local[2]", app_name="holdfast test", conf={}, log_file=log, short=True
    )


def _frame(spec: PipelineSpec, name: str, value: Any, spark: SparkSession) -> DataFrame:
    if not any(table.name == name and not table.produced for table in spec.tables):
        remedy = f"Declared: {', '.join(t.name for t in spec.tables if not t.produced)}."
        raise UsageInvalid(what=f"the pipeline declares no input {name}", remedy=remedy)
    if hasattr(value, "sparkSession"):
        return value  # type: ignore[no-any-return] # a DataFrame, classic or Connect
    return spark.createDataFrame(value, parse_ddl(spec.table(name).schema))
