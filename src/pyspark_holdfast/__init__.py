"""`spark.read.format("holdfast")`. Spark finds data sources in modules whose name begins so."""

from __future__ import annotations

from holdfast.spark.table_source import DefaultSource

__all__ = ["DefaultSource"]
