"""What a server answers, with types. Pure.

Fields that this version does not know are left alone, so that an older client goes on working.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast._base.intervals import Intervals
from holdfast.errors import ServerRefused

Document = Mapping[str, Any]

FINAL_STATES = frozenset({"DONE", "FAILED", "CANCELLED", "ABANDONED", "SWEPT"})
"""A run in one of these moves no more, save that it is swept at last."""


@dataclass(frozen=True, slots=True)
class InputInfo:
    """What a table takes."""

    table: str
    format: str
    columns: tuple[str, ...]
    """Empty: its files carry their own."""
    optional: bool
    """It may stay empty."""
    whole: bool = False
    """Nothing that joins it is computed before its END."""

    @property
    def is_parquet_only(self) -> bool:
        """Tell whether nothing else is taken: only Parquet carries its own columns."""
        return self.format == "parquet" and not self.columns


@dataclass(frozen=True, slots=True)
class PipelineInfo:
    """What a server runs, and what it takes."""

    pipeline: str
    tables: tuple[InputInfo, ...]


@dataclass(frozen=True, slots=True)
class TableInfo:
    """How far one sender of one table is."""

    table: str
    sender: str
    announced: int | None
    """How many chunks its END names; None before it."""
    received: int
    applied: int
    received_ordinals: Intervals
    missing: str
    """Announced and not received, as ranges."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run as its server describes it."""

    run: str
    key: str
    pipeline: str
    kind: str
    state: str
    error: str | None
    created_ms: int
    updated_ms: int
    tables: tuple[TableInfo, ...]
    idle_s: int = 0
    """For how long nothing came or was done, as the server last looked."""

    @property
    def is_final(self) -> bool:
        """Tell whether it moves no more."""
        return self.state in FINAL_STATES


@dataclass(frozen=True, slots=True)
class PieceInfo:
    """One file of a series."""

    ordinal: int
    size: int
    checksum: str
    rows: int | None
    format: str


@dataclass(frozen=True, slots=True)
class SeriesInfo:
    """A named result: its columns, and its pieces in order."""

    series: str
    columns: tuple[str, ...]
    provisional: bool
    pieces: tuple[PieceInfo, ...]
    files: tuple[PieceInfo, ...] | None
    """The whole series in its declared order; None: it is not computed, or a producer's Parquet,
    whose pieces are all there is."""


@dataclass(frozen=True, slots=True)
class Results:
    """What a run has to give. Only a final one stays as it is."""

    state: str
    final: bool
    series: tuple[SeriesInfo, ...]


def pipeline_info(document: Document) -> PipelineInfo:
    """Return a pipeline's description."""
    try:
        tables = tuple(
            InputInfo(
                table=one["table"],
                format=one["format"],
                columns=tuple(one["columns"]),
                optional=bool(one["optional"]),
                # Servers of before do not say it; of those nobody knows.
                whole=bool(one.get("whole")),
            )
            for one in document["tables"]
        )
        return PipelineInfo(document["pipeline"], tables)
    except (KeyError, TypeError, ValueError) as error:
        raise _strange(error) from error


def run_info(document: Document) -> RunInfo:
    """Return a run's description."""
    try:
        return RunInfo(
            run=document["run"],
            key=document.get("key") or "",
            pipeline=document.get("pipeline") or "",
            kind=document.get("kind") or "spark",
            state=document["state"],
            error=document.get("error"),
            created_ms=document.get("created_ms") or 0,
            updated_ms=document.get("updated_ms") or 0,
            tables=tuple(_table_info(table) for table in document["tables"]),
            idle_s=document.get("idle_s") or 0,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _strange(error) from error


def _table_info(document: Document) -> TableInfo:
    return TableInfo(
        table=document["table"],
        sender=document["sender"],
        announced=document["announced"],
        received=document["received"],
        applied=document["applied"],
        received_ordinals=ordinals(document["received_ordinals"]),
        missing=document.get("missing") or "",
    )


def ordinals(text: str) -> Intervals:
    """Return the numbers that "1-4,6" means; "none" and "" mean none."""
    pairs = []
    for part in text.replace(" ", "").split(","):
        if part not in ("", "none"):
            low, _, high = part.partition("-")
            pairs.append((int(low), int(high or low)))
    return Intervals.merged(pairs)


def rows(document: Any, name: str) -> list[Document]:
    """Return the list that an answer holds under a name."""
    try:
        return list(document[name])
    except (KeyError, TypeError) as error:
        raise _strange(error) from error


def results(document: Document) -> Results:
    """Return what a run has to give."""
    try:
        series = tuple(_series_info(one) for one in document["series"])
        return Results(document["state"], bool(document["final"]), series)
    except (KeyError, TypeError, ValueError) as error:
        raise _strange(error) from error


def _series_info(document: Document) -> SeriesInfo:
    files = document.get("files")
    return SeriesInfo(
        series=document["series"],
        columns=tuple(document.get("columns") or ()),
        provisional=bool(document.get("provisional")),
        pieces=tuple(_piece_info(piece) for piece in document["pieces"]),
        files=None if files is None else tuple(_piece_info(file) for file in files),
    )


def _piece_info(document: Document) -> PieceInfo:
    return PieceInfo(
        ordinal=document["ordinal"],
        size=document["size"],
        checksum=document["checksum"],
        rows=document.get("rows"),
        format=document.get("format") or "csv",
    )


def _strange(error: Exception) -> ServerRefused:
    """Return the error for an answer that is none: another program may listen there."""
    what = f"its answer is not one of Holdfast's ({type(error).__name__}: {error})"
    return ServerRefused(status=200, what=what)
