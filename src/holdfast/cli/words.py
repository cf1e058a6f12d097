"""Events, numbers and times in words. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from holdfast.engine.events import Event, EventKind


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return "1 batch" or "2 batches"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def batches(number: int) -> str:
    """Return a number of batches."""
    return counted(number, "batch", "batches")


def size_of(size: float) -> str:
    """Return a number of bytes."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}"
    return counted(int(size), "byte")


def moment(wall_ms: int) -> str:
    """Return a time as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def words(event: Event) -> str:
    """Return what happened, as one line."""
    match event.kind:
        case EventKind.BOUND:
            return f"bound {counted(event.chunks, 'chunk')}, {size_of(event.size)}"
        case EventKind.FOUND:
            applied = sum(table.applied for table in event.tables)
            chunks = counted(event.chunks, "chunk")
            return f"resuming: {applied:,} of {chunks} applied before, {event.rows:,} rows read"
        case EventKind.BARRIER:
            return f"barrier of segment {event.name} passed: all its input is applied"
        case EventKind.SERIES:
            done = f", {event.done} committed before" if event.done else ""
            return f"computing {counted(event.count, 'result')}{done}"
        case EventKind.EXPORTED:
            return f"result {event.name} -> {event.detail}"
        case EventKind.DONE:
            return "the run is DONE"
        case _:
            return _batch(event) if event.chunks else _result(event)


def _batch(event: Event) -> str:
    chunks = counted(event.chunks, "chunk")
    match event.kind:
        case EventKind.RESUMED:
            verb = "is" if event.chunks == 1 else "are"
            return f"batch {event.name} was interrupted: {chunks} {verb} done again"
        case EventKind.COMMITTED:
            done = f"{chunks}, {size_of(event.size)}, {counted(event.rows, 'row')}"
            return f"batch {event.name} committed: {done}"
        case EventKind.FAILED_ATTEMPT:
            return f"an attempt at batch {event.name} failed: {' '.join(event.detail.split())}"
        case _:
            return f"batch {event.name} started: {chunks}, {size_of(event.size)}"


def _result(event: Event) -> str:
    match event.kind:
        case EventKind.RESUMED:
            return f"result {event.name} was interrupted: it is computed again"
        case EventKind.FAILED_ATTEMPT:
            return f"an attempt at result {event.name} failed: {' '.join(event.detail.split())}"
        case _:
            return f"result {event.name} {event.kind}"
