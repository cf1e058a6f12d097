"""Runs and results as the API shows them. Pure, from what the store says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast._base.intervals import Intervals
from holdfast.engine.barrier import missing
from holdfast.engine.spec import PipelineSpec
from holdfast.intake.ddl import column_names
from holdfast.intake.opening import kind_of
from holdfast.store.client_rows import ClientRun
from holdfast.store.contract import Store
from holdfast.store.reasons import without_places
from holdfast.store.result_rows import ResultPiece, ResultSeries
from holdfast.store.rows import Run, RunState, SenderProgress


def pipeline_document(spec: PipelineSpec) -> dict[str, Any]:
    """Return what a client may hand in. Tables that a stage produces are none of its business."""
    return {
        "pipeline": spec.name,
        "tables": [
            {
                "table": table.name,
                "format": table.format,
                "columns": column_names(table.schema) if table.schema else [],
                "optional": table.optional,
                "whole": table.whole,
            }
            for table in spec.tables
            if not table.produced
        ],
    }


def ranges(numbers: Intervals) -> str:
    """Write a set of ordinals for programs: `1-4,6`, or nothing."""
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in numbers.ranges)


def _table(sender: SenderProgress) -> dict[str, Any]:
    return {
        "table": sender.table,
        "sender": sender.sender,
        "announced": sender.announced,
        "received": len(sender.received),
        "applied": len(sender.applied),
        "received_ordinals": ranges(sender.received),
        "missing": ranges(missing(sender)),
    }


def run_document(
    found: ClientRun,
    progress: Sequence[SenderProgress],
    barriers: list[int],
    spec: PipelineSpec,
    *,
    idle_ms: int = 0,
) -> dict[str, Any]:
    """Return a run as its client sees it. Tables that a stage produces are none of its business."""
    run = found.run
    produced = {table.name for table in spec.tables if table.produced}
    return {
        "run": run.run_id,
        "key": found.opening.key,
        "pipeline": run.pipeline,
        "kind": kind_of(found.opening),
        "state": run.state,
        "error": without_places(run.error),
        "created_ms": run.created_ms,
        "updated_ms": run.updated_ms,
        "idle_s": idle_ms // 1000,
        "segments": run.segments,
        "barriers": barriers,
        "tables": [_table(sender) for sender in progress if sender.table not in produced],
    }


def read_document(store: Store, found: ClientRun, spec: PipelineSpec) -> dict[str, Any]:
    """Return a run's document as it stands."""
    return document_with(store, found, store.read_progress(found.run.run_id), spec)


def document_with(
    store: Store, found: ClientRun, progress: Sequence[SenderProgress], spec: PipelineSpec
) -> dict[str, Any]:
    """Return a run's document, whose progress is read already."""
    run_id = found.run.run_id
    barriers, idle_ms = store.read_barriers(run_id), store.read_idle_of(run_id)
    return run_document(found, progress, barriers, spec, idle_ms=idle_ms)


def piece_path(run: Run, series: str, ordinal: int) -> str:
    """Return where a piece is fetched."""
    return f"/v1/runs/{run.run_id}/results/{series}/{ordinal}"


def file_path(run: Run, series: str, ordinal: int) -> str:
    """Return where a file of a whole series is fetched."""
    return f"/v1/runs/{run.run_id}/results/{series}/files/{ordinal}"


def _piece(
    run: Run, series: str, piece: ResultPiece, path: Callable[[Run, str, int], str] = piece_path
) -> dict[str, Any]:
    return {
        "ordinal": piece.ordinal,
        "size": piece.size,
        "checksum": piece.checksum,
        "rows": piece.rows,
        "format": piece.format,
        "url": path(run, series, piece.ordinal),
    }


def _files(run: Run, one: ResultSeries) -> list[dict[str, Any]] | None:
    """Return what the whole series is made of, so that whoever fetches it can check and resume."""
    if one.ordered is None:
        return None
    return [_piece(run, one.series, file, file_path) for file in one.ordered]


def results_document(run: Run, results: Sequence[ResultSeries]) -> dict[str, Any]:
    """Return what can be seen of a run's results."""
    return {
        "run": run.run_id,
        "state": run.state,
        "final": run.state == RunState.DONE,
        "series": [
            {
                "series": one.series,
                "columns": list(one.columns),
                "provisional": one.provisional,
                "pieces": [_piece(run, one.series, piece) for piece in one.pieces],
                "files": _files(run, one),
            }
            for one in results
        ],
    }
