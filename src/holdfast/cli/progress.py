"""How far a run is, computed from what the engine told. Pure: events and times in, numbers out.

Rates and remaining times count only what this process did, from the moment it began on a table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from holdfast.engine.events import Event, EventKind, TableCount


@dataclass(frozen=True, slots=True)
class TableProgress:
    """How far one table is."""

    table: str
    chunks: int = 0
    size: int = 0
    applied: int = 0
    applied_size: int = 0
    is_open: bool = False
    """More chunks may come: how much is left is unknown."""
    rows: int = 0
    """Read by this process, in committed batches."""
    done_size: int = 0
    """Bytes applied by this process."""
    begun_s: float | None = None
    """When this process began its first batch of the table."""
    done_s: float = 0.0
    """When it committed its last one."""


@dataclass(frozen=True, slots=True)
class Doing:
    """The work that is under way."""

    name: str
    chunks: int
    size: int
    since_s: float


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is, as this process saw it."""

    tables: tuple[TableProgress, ...] = ()
    doing: Doing | None = None
    rows_before: int = 0
    """Read by former processes."""
    batches: int = 0
    redone_batches: int = 0
    redone_chunks: int = 0
    failures: int = 0
    barriers: tuple[str, ...] = ()
    """Segments whose inputs are complete."""
    results: int | None = None
    """How many results there are; None while input is missing."""
    results_done: int = 0
    exported: int = 0


def advance(progress: Progress, event: Event, now_s: float) -> Progress:
    """Return the progress after one more event."""
    is_batch = event.chunks > 0
    match event.kind:
        case EventKind.BOUND | EventKind.FOUND:
            tables = tuple(_standing(count) for count in event.tables)
            return replace(progress, tables=tables, rows_before=event.rows)
        case EventKind.RESUMED if is_batch:
            batches, chunks = progress.redone_batches + 1, progress.redone_chunks + event.chunks
            return replace(progress, redone_batches=batches, redone_chunks=chunks)
        case EventKind.STARTED:
            name = f"{'batch' if is_batch else 'result'} {event.name}"
            doing = Doing(name, event.chunks, event.size, now_s)
            return replace(_changed(progress, event, now_s, _begin), doing=doing)
        case EventKind.COMMITTED if is_batch:
            changed = _changed(progress, event, now_s, _apply)
            return replace(changed, doing=None, batches=progress.batches + 1)
        case EventKind.COMMITTED:
            return replace(progress, doing=None, results_done=progress.results_done + 1)
        case EventKind.FAILED_ATTEMPT:
            return replace(progress, doing=None, failures=progress.failures + 1)
        case EventKind.BARRIER:
            return replace(progress, barriers=(*progress.barriers, event.name))
        case EventKind.SERIES:
            return replace(progress, results=event.count, results_done=event.done)
        case EventKind.EXPORTED:
            return replace(progress, exported=progress.exported + 1)
        case _:
            return progress


def _standing(count: TableCount) -> TableProgress:
    return TableProgress(
        count.table,
        chunks=count.chunks,
        size=count.size,
        applied=count.applied,
        applied_size=count.applied_size,
        is_open=count.is_open,
    )


_Change = Callable[[TableProgress, TableCount, float], TableProgress]


def _changed(progress: Progress, event: Event, now_s: float, change: _Change) -> Progress:
    known = {one.table: one for one in progress.tables}
    for count in event.tables:
        known[count.table] = change(known.get(count.table, _fresh(count)), count, now_s)
    return replace(progress, tables=tuple(known.values()))


def _fresh(count: TableCount) -> TableProgress:
    """Return a table that nobody spoke of before: a stage of this run makes it, bit by bit."""
    return TableProgress(count.table, is_open=True)


def _begin(table: TableProgress, count: TableCount, now_s: float) -> TableProgress:
    del count
    return table if table.begun_s is not None else replace(table, begun_s=now_s, done_s=now_s)


def _apply(table: TableProgress, count: TableCount, now_s: float) -> TableProgress:
    applied, applied_size = table.applied + count.chunks, table.applied_size + count.size
    return replace(
        table,
        chunks=max(table.chunks, applied),
        size=max(table.size, applied_size),
        applied=applied,
        applied_size=applied_size,
        rows=table.rows + count.rows,
        done_size=table.done_size + count.size,
        done_s=now_s,
    )


def total(progress: Progress) -> TableProgress:
    """Return all tables together."""
    tables = progress.tables
    begun = [table.begun_s for table in tables if table.begun_s is not None]
    return TableProgress(
        "all",
        chunks=sum(table.chunks for table in tables),
        size=sum(table.size for table in tables),
        applied=sum(table.applied for table in tables),
        applied_size=sum(table.applied_size for table in tables),
        is_open=any(table.is_open for table in tables),
        rows=sum(table.rows for table in tables),
        done_size=sum(table.done_size for table in tables),
        begun_s=min(begun, default=None),
        done_s=max((table.done_s for table in tables), default=0.0),
    )


def rate(table: TableProgress) -> float | None:
    """Return bytes per second up to the last commit; None before the first one."""
    if table.begun_s is None or not table.done_size or table.done_s <= table.begun_s:
        return None
    return table.done_size / (table.done_s - table.begun_s)


def left_s(table: TableProgress, now_s: float) -> float | None:
    """Return about how many seconds are left; None if nobody can know."""
    speed = rate(table)
    if table.is_open or speed is None:
        return None
    return max(0.0, (table.size - table.applied_size) / speed - (now_s - table.done_s))
