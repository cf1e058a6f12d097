"""Works and outcomes as lines of JSON between the engine's process and Spark's. No pyspark here.

-> {"start": {...}}                 <- {"ready": true}
-> {"batch": {...}}                 <- {"outcome": {...}, "paid": [...]}
-> {"series": [{...}, ...]}         <- {"outcomes": [{"outcome": {...}}, {"error": "..."}, ...],
                                        "paid": [...]}
-> {"check": true}                  <- {"outcome": {...}, "paid": [...]}
-> any of them                      <- {"error": "HOLDFAST_ERROR {...}"}

Every request has an `id`, which its answer has too: several may be under way, and answers come in
any order.

`paid` are the marks of all paid steps used so far (`receipts`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.config import StageOptions
from holdfast.engine.executor import BatchWork, Outcome, SeriesWork, Source
from holdfast.errors import HoldfastError, InvariantViolated, from_text


@dataclass(frozen=True, slots=True)
class Start:
    """What the Spark process needs to begin."""

    pipeline: str
    log: str
    master: str | None = None
    conf: dict[str, str] = field(default_factory=dict)
    durable: dict[str, bool] = field(default_factory=dict)
    """Stages that are durable, or light, against what the pipeline's code says."""
    short: bool = False
    at_once: int = 1
    """How many works may be under way. More than one: their jobs share the cores evenly."""


def durable_of(stages: Mapping[str, StageOptions]) -> dict[str, bool]:
    """Return what the Spark process must know of the options of stages."""
    return {name: one.durable for name, one in stages.items() if one.durable is not None}


def line(**message: Any) -> bytes:
    """Return a message as one line."""
    return json.dumps(message).encode() + b"\n"


def pack(work: BatchWork | SeriesWork) -> dict[str, Any]:
    """Return a work as plain values."""
    return asdict(work)


def unpack_batch(values: dict[str, Any]) -> BatchWork:
    """Return the batch that `pack` packed."""
    return BatchWork(
        values["directory"],
        values["segment"],
        _sources(values["chunks"]),
        _sources(values["pins"]),
        values["piece_rows_max"],
    )


def unpack_series(values: dict[str, Any]) -> SeriesWork:
    """Return the series that `pack` packed."""
    datasets = {name: tuple(paths) for name, paths in values["datasets"].items()}
    pins = _sources(values["pins"])
    rows_max = values["piece_rows_max"]
    return SeriesWork(values["directory"], values["name"], datasets, pins, rows_max)


def pack_result(result: Outcome | HoldfastError) -> dict[str, Any]:
    """Return what became of one series as plain values."""
    if isinstance(result, HoldfastError):
        return {"error": result.wire_text()}
    return {"outcome": asdict(result)}


def unpack_result(values: dict[str, Any]) -> Outcome | HoldfastError:
    """Return what became of one series."""
    return unpack_error(values) if "error" in values else unpack_outcome(values["outcome"])


def unpack_error(values: dict[str, Any]) -> HoldfastError:
    """Return the error that was sent."""
    return from_text(values["error"]) or InvariantViolated(what=values["error"])


def unpack_outcome(values: dict[str, Any]) -> Outcome:
    """Return the outcome that was sent."""
    return Outcome(values["rows"], tuple(values["columns"]))


def _sources(values: dict[str, list[dict[str, Any]]]) -> dict[str, tuple[Source, ...]]:
    return {name: tuple(Source(**one) for one in some) for name, some in values.items()}
