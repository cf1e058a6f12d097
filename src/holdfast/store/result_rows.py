"""What leaves: results as they are listed, notices, external results. Words: docs/glossary.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from holdfast._base.ids import Ordinal, RunId
from holdfast._base.intervals import Intervals
from holdfast.store.rows import File, Run, RunState


class PlaceKind(StrEnum):
    """Where the bytes of a piece are: a file below the state directory, or a blob."""

    FILE = "file"
    BLOB = "blob"


@dataclass(frozen=True, slots=True)
class ResultPiece:
    """One piece of a result, of whatever kind of run. `location` is a path or a blob's name."""

    ordinal: Ordinal
    size: int
    checksum: str
    rows: int | None
    format: str
    place: PlaceKind
    location: str


@dataclass(frozen=True, slots=True)
class ResultSeries:
    """A result as it can be seen now: its pieces in order, and whether they may still be void.

    `columns`: of CSV pieces, which have no header line; empty while they are not known.
    `ordered`: the files of the whole series in its declared order, once it is computed; for a
    streamed series these are other bytes than the pieces. None of a producer's Parquet, whose
    pieces are all there is.
    """

    series: str
    columns: tuple[str, ...]
    provisional: bool
    pieces: tuple[ResultPiece, ...]
    ordered: tuple[ResultPiece, ...] | None


class NoticeKind(StrEnum):
    """What a notice tells: the type in its body."""

    DONE = "run.done"
    FAILED = "run.failed"
    CANCELLED = "run.cancelled"
    ABANDONED = "run.abandoned"


NOTICE_OF: dict[RunState, NoticeKind] = {
    RunState.DONE: NoticeKind.DONE,
    RunState.FAILED: NoticeKind.FAILED,
    RunState.CANCELLED: NoticeKind.CANCELLED,
    RunState.ABANDONED: NoticeKind.ABANDONED,
}
"""Which notice a move into a state makes."""


class NoticeState(StrEnum):
    """Waiting to be sent, taken by the receiver, or given up after too many failures."""

    WAITING = "waiting"
    SENT = "sent"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Notice:
    """One message to a client's webhook. Its id is a hash of run and kind: sent again, the same.

    `attempts` are counted before they begin; `failures` are those that were answered badly.
    `due_ms` is a moment of the accumulated time of `read_elapsed`, never of a wall clock.
    """

    notice_id: str
    run_id: RunId
    client: str
    kind: NoticeKind
    url: str
    body: str
    state: NoticeState
    attempts: int
    failures: int
    due_ms: int
    error: str | None
    created_ms: int


@dataclass(frozen=True, slots=True)
class Watched:
    """A run that still holds something, and how long nothing has happened to it.

    `idle_ms` is accumulated by whoever watches, in its own monotonic time, and kept in the store:
    time in which nobody watched does not count. `mark` says what was seen.
    """

    run: Run
    mark: str
    idle_ms: int
    has_queues: bool


@dataclass(frozen=True, slots=True)
class SeriesDecl:
    """One series that a producer announces: its name, and of CSV its columns."""

    series: str
    columns: tuple[str, ...] = ()
    format: str = "csv"


@dataclass(frozen=True, slots=True)
class ExternalPiece:
    """One piece that a producer sent, of `total` in its series; `blob` holds its bytes.

    An empty series is told by ordinal 0 and total 0, without a blob.
    """

    series: str
    ordinal: Ordinal
    total: int
    blob: str
    size: int
    checksum: str
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class SeriesProgress:
    """How far one series of an external run is. `total` is unknown before its first piece."""

    series: str
    total: int | None
    received: Intervals


@dataclass(frozen=True, slots=True)
class ExternalFacts:
    """What the rules for external results may look at, read in the transaction that acts."""

    run_id: RunId
    state: str
    header: tuple[SeriesDecl, ...] | None
    """The announced series; None until the header has come."""
    progress: tuple[SeriesProgress, ...]
    stored: ExternalPiece | None = None
    """The piece with the same series and ordinal, if there is one."""


HeaderRule = Callable[[tuple[SeriesDecl, ...], ExternalFacts], bool]
"""True: record it. False: it is there already, ack again. Raises a CallerError: the run fails."""
PieceRule = Callable[[ExternalPiece, ExternalFacts], bool]
"""True: bind it. False: it is there already, ack again. Raises a CallerError: the run fails."""
CompleteRule = Callable[[ExternalFacts], bool]
"""True: the header is there, and 1..total without a gap in every series. A store need not ask
before their numbers are equal."""


@dataclass(frozen=True, slots=True)
class ExternalRun:
    """An external run: whom to ask, and what has come."""

    run_id: RunId
    producer: str
    facts: ExternalFacts


def file_piece(ordinal: int, file: File) -> ResultPiece:
    """Return a file of a manifest as a piece."""
    place = PlaceKind.FILE
    return ResultPiece(
        Ordinal(ordinal), file.size, file.checksum, file.rows, file.format, place, file.path
    )
