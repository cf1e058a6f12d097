"""`check_combine`: does a combine give the same however its input is cut into batches?

An average passes every check of types and is wrong: the mean of means is not the mean.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from holdfast.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def check_combine(pipeline: Pipeline, name: str, first: DataFrame, second: DataFrame) -> None:
    """Compare c(a + b) with c(c(a) + c(b)) for two samples of the combine's source rows.

    Raises:
        AssertionError: they differ; the rows that are only on one side are shown.
    """
    from holdfast.spark.combine import merge_of, partial_of

    definition = pipeline.definition(name)
    whole = merge_of(definition, partial_of(definition, first.unionByName(second)))
    parts = partial_of(definition, first).unionByName(partial_of(definition, second))
    cut = merge_of(definition, parts)
    at_once = Counter(tuple(row) for row in whole.collect())
    in_parts = Counter(tuple(row) for row in cut.collect())
    assert at_once == in_parts, (
        f"combine {name} depends on how its input is cut: at once {list(at_once - in_parts)},"
        f" in parts {list(in_parts - at_once)}"
    )
