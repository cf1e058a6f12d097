"""Combines: partial rows per batch, merged after the barrier."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from holdfast.pipeline import Aggregates, Definition


def partial_of(definition: Definition, rows: DataFrame) -> DataFrame:
    """Return the partial rows that `rows` contribute."""
    if definition.aggregates is None:
        return cast(DataFrame, definition.function and definition.function(rows))
    columns = _aggregates(definition.aggregates)
    if definition.aggregates.count:
        columns.append(F.count(F.lit(1)).alias(definition.aggregates.count))
    return rows.groupBy(*definition.aggregates.by).agg(*columns)


def merge_of(definition: Definition, partials: DataFrame) -> DataFrame:
    """Return what all partial rows come to."""
    if definition.aggregates is None:
        return cast(DataFrame, definition.merge and definition.merge(partials))
    columns = _aggregates(definition.aggregates)
    if definition.aggregates.count:
        count = definition.aggregates.count
        columns.append(F.sum(count).alias(count))
    return partials.groupBy(*definition.aggregates.by).agg(*columns)


def _aggregates(aggregates: Aggregates) -> list[Column]:
    """Sums, minima and maxima: the same expressions make a partial row and merge several."""
    return [
        *(F.sum(name).alias(name) for name in aggregates.sum),
        *(F.min(name).alias(name) for name in aggregates.min),
        *(F.max(name).alias(name) for name in aggregates.max),
    ]
