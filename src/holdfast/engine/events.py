"""What the engine tells whoever watches a run. Told after the fact is durable, never before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from holdfast._base.ids import RunId


class EventKind(StrEnum):
    """What happened."""

    BOUND = "bound"
    RESUMED = "resumed"
    STARTED = "started"
    COMMITTED = "committed"
    FAILED_ATTEMPT = "failed attempt"
    BARRIER = "barrier"
    SERIES = "series"
    EXPORTED = "exported"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to a run."""

    kind: EventKind
    run_id: RunId
    name: str = ""
    """The batch ("1.3": segment and number), series or file it is about."""
    chunks: int = 0
    size: int = 0
    rows: int = 0
    detail: str = ""


Watcher = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Watch nothing."""
    del event
