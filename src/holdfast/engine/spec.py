"""A pipeline as the engine sees it: tables, segments, outputs, series. No functions, no Spark.

`holdfast.pipeline` compiles what users write into a `PipelineSpec`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.config import StageOptions
from holdfast.intake.tables import TableSpec


class OutputKind(StrEnum):
    """Why a batch writes an output."""

    PARTIAL = "partial"
    """A combine's partial result, merged after the barrier."""
    KEPT = "kept"
    """Rows that something after the barrier needs."""
    STREAMED = "streamed"
    """Pieces of a streamed result."""
    DURABLE = "durable"
    """A durable stage's output: a table of the next segment."""


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """One thing that every batch of a segment writes, from one of its tables."""

    name: str
    kind: OutputKind
    table: str


@dataclass(frozen=True, slots=True)
class SegmentSpec:
    """What lies between two durable boundaries."""

    number: int
    tables: tuple[str, ...]
    """The tables whose chunks are planned here; whole side tables are not among them."""
    outputs: tuple[OutputSpec, ...]
    pins: tuple[str, ...]
    """The whole tables that must be complete before a batch of this segment is planned."""
    options: StageOptions = field(default_factory=StageOptions)
    """Those of the durable stages whose output is read here. No part of what is fingerprinted."""


@dataclass(frozen=True, slots=True)
class SeriesSpec:
    """A named result. `datasets` and `pins` are what its computation reads after the barrier."""

    name: str
    streamed: bool
    order_by: tuple[str, ...]
    datasets: tuple[str, ...]
    pins: tuple[str, ...]
    format: str = "csv"
    """Of its files when it is whole: csv or parquet. Streamed pieces are Parquet always."""


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """A whole pipeline. `fingerprint` maps component names to hashes of their definition."""

    name: str
    tables: tuple[TableSpec, ...]
    segments: tuple[SegmentSpec, ...]
    series: tuple[SeriesSpec, ...]
    fingerprint: dict[str, str]

    def table(self, name: str) -> TableSpec:
        """Return a table by its name."""
        return next(table for table in self.tables if table.name == name)
