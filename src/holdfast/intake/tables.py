"""What is declared of a table: its format, its columns, its senders."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BadRowPolicy(StrEnum):
    """What happens to rows that do not fit the schema."""

    FAIL = "fail"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table of a run: an input, or the output of a durable stage."""

    name: str
    format: str
    """csv, json, parquet or binaryFile."""
    schema: str
    """Spark DDL; empty where the files carry their own (parquet, binaryFile)."""
    segment: int
    whole: bool = False
    optional: bool = False
    produced: bool = False
    on_bad_rows: BadRowPolicy = BadRowPolicy.FAIL
    senders: tuple[str, ...] = ("",)
