"""What the engine tells whoever watches a run, after the fact is durable, never before; and the
one thing it asks them: whether to stop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from holdfast._base.ids import RunId


class EventKind(StrEnum):
    """What happened."""

    BOUND = "bound"
    """The inputs are bound, just now. `tables` has all of them."""
    FOUND = "found"
    """The inputs were bound before; the run is taken up where `tables` says it stands."""
    RESUMED = "resumed"
    """A work that a former process began is done again."""
    STARTED = "started"
    COMMITTED = "committed"
    FAILED_ATTEMPT = "failed_attempt"
    BARRIER = "barrier"
    """The inputs of segment `name` are complete."""
    SERIES = "series"
    """All input is in; `count` results are planned, `done` of them are committed."""
    EXPORTED = "exported"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class TableCount:
    """What an event says of one table.

    Of BOUND and FOUND: all chunks there are, and how many of them are applied. Of an event about
    a batch: its own chunks, and the rows it read of them.
    """

    table: str
    chunks: int
    size: int
    rows: int = 0
    applied: int = 0
    applied_size: int = 0
    is_open: bool = False
    """More chunks may come: nobody has said END yet."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to a run."""

    kind: EventKind
    run_id: RunId
    name: str = ""
    """The batch ("1.3": segment and number), series or segment it is about."""
    chunks: int = 0
    """0 for a series: a batch has at least one."""
    size: int = 0
    rows: int = 0
    detail: str = ""
    tables: tuple[TableCount, ...] = ()
    count: int = 0
    done: int = 0


Watcher = Callable[[Event], None]
Stop = Callable[[], bool]
"""Asked between two works. True: begin no other one."""


def ignore(event: Event) -> None:
    """Watch nothing."""
    del event


def never() -> bool:
    """Do not stop."""
    return False
