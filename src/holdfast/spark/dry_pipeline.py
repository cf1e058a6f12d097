"""A dry run of a whole pipeline: its frames are built, its paid steps count instead of buying."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from holdfast.config import DEFAULT
from holdfast.engine.executor import Source
from holdfast.engine.spec import PipelineSpec
from holdfast.intake.bind import list_chunks
from holdfast.spark.dry_run import DryRuns, dry
from holdfast.spark.evaluate import Evaluation
from holdfast.spark.read import read_table
from holdfast.spark.trouble import working

if TYPE_CHECKING:
    from holdfast.pipeline import Pipeline


def dry_run_pipeline(
    pipeline: Pipeline,
    spec: PipelineSpec,
    files: Mapping[str, Sequence[Path]],
    spark: SparkSession,
) -> DryRuns:
    """Build every result from the whole input at once; return what its paid steps would buy.

    A step that follows one with something to buy is not known: its rows may depend on answers
    that nobody has yet.
    """
    tables = [table for table in spec.tables if not table.produced]
    sources: dict[str, list[Source]] = {table.name: [] for table in tables}
    for chunk in list_chunks(files, tables, DEFAULT):
        place = (chunk.location, chunk.start, chunk.stop)
        sources[chunk.table].append(Source(*place, chunk.checksum, chunk.format, chunk.header))
    bases = {t.name: read_table(spark, t, tuple(sources[t.name])).good for t in tables}
    evaluation = Evaluation(pipeline, spark, bases)
    with dry() as runs, working("the dry run"):
        for series in spec.series:
            evaluation.frame(series.name)
    return runs
