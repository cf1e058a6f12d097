"""The facts the store keeps, as values. Words as in docs/glossary.md."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from holdfast._base.ids import START, BatchId, Epoch, Offset, Ordinal, RunId
from holdfast._base.intervals import Intervals


class RunState(StrEnum):
    """Where a run stands. Which moves are allowed is written in `holdfast.delivery`."""

    OPEN = "OPEN"
    FORWARDING = "FORWARDING"
    RECEIVING = "RECEIVING"
    COMPLETING = "COMPLETING"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    ABANDONED = "ABANDONED"
    SWEPT = "SWEPT"


VOID_STATES = frozenset((RunState.FAILED, RunState.CANCELLED, RunState.ABANDONED, RunState.SWEPT))
"""States in which a run has no results: what streamed out before is void."""
CLOSED_STATES = VOID_STATES | {RunState.DONE}
"""States in which a run takes nothing more."""


class ChunkKind(StrEnum):
    """Where the bytes of a chunk are."""

    BLOB = "blob"
    RANGE = "range"
    FILES = "files"


class WorkKind(StrEnum):
    """What a planned piece of work makes: the outputs of a batch, or one result series."""

    BATCH = "batch"
    SERIES = "series"


class RunKind(StrEnum):
    """Who computes the results of a run: Spark, or a producer outside that sends them in."""

    SPARK = "spark"
    EXTERNAL = "external"


@dataclass(frozen=True, slots=True)
class Fence:
    """Under which grant of which lease an effect is made."""

    resource: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Lease:
    """Who may act on a resource; `beat` grows while the owner lives."""

    resource: str
    epoch: Epoch
    owner: str
    beat: int


@dataclass(frozen=True, slots=True)
class SenderDecl:
    """One declared source of one table, and the segment that works on it.

    `whole`: a side table whose chunks are applied as soon as they are bound.
    `produced`: written by the segment before, which also says END.
    """

    table: str
    sender: str
    segment: int
    whole: bool = False
    produced: bool = False


@dataclass(frozen=True, slots=True)
class NewRun:
    """What is known of a run when it is created."""

    run_id: RunId
    client: str
    pipeline: str
    fingerprint: dict[str, str]
    """Component name -> hash: pipeline name, schemas, stages. A change is refused by name."""
    segments: int
    """How many segments the run has; numbered from 1."""
    senders: tuple[SenderDecl, ...]
    created_ms: int
    producer: str = ""
    """The request queue of the producer outside that computes the results; empty: Spark does."""


@dataclass(frozen=True, slots=True)
class SpreadRun:
    """A run whose chunks are spread over shards, in this order."""

    client: str
    run_id: RunId
    shards: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OwedEnd:
    """An END in intake that some shard may not have."""

    client: str
    run_id: RunId
    table: str
    sender: str
    count: int


@dataclass(frozen=True, slots=True)
class KeptPipeline:
    """The pipeline that a store belongs to."""

    name: str
    fingerprint: dict[str, str]


@dataclass(frozen=True, slots=True)
class Run:
    """A run as stored."""

    run_id: RunId
    client: str
    pipeline: str
    fingerprint: dict[str, str]
    segments: int
    state: str
    error: str | None
    created_ms: int
    updated_ms: int
    kind: RunKind = RunKind.SPARK


@dataclass(frozen=True, slots=True)
class ReadyRun:
    """A run that an engine may have work for, whose it is, and the share of its client."""

    run_id: RunId
    client: str
    weight: int = 1
    undivided_bytes: int = 0
    """What its results are made of: all that was handed in. 0 while chunks are still to be worked
    on, because those are divided into batches."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A numbered piece of a table. Its identity is (table, sender, ordinal) within its run.

    `location`: a blob's name (BLOB), an absolute path (RANGE), a batch id (FILES: the files that
    batch wrote for this table). `format` is that of the bytes: csv, json, parquet or binaryFile.
    `start` and `stop` delimit the bytes of a RANGE; `header` is the header line of the file it is
    cut from; of a BLOB whose table declares no columns, those that it has. `file_size` and
    `mtime_ns` are those of the whole file.
    """

    table: str
    sender: str
    ordinal: Ordinal
    kind: ChunkKind
    location: str
    size: int
    checksum: str
    format: str = "csv"
    start: int = 0
    stop: int = 0
    header: str = ""
    file_size: int = 0
    mtime_ns: int = 0


@dataclass(frozen=True, slots=True)
class End:
    """A sender's statement: I sent `count` chunks of this table."""

    table: str
    sender: str
    count: int


@dataclass(frozen=True, slots=True)
class SenderProgress:
    """How far one sender of one table is."""

    table: str
    sender: str
    segment: int
    whole: bool
    announced: int | None
    received: Intervals
    applied: Intervals
    produced: bool = False
    """Filled by the segment before, not by a client."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a client has of what it may have: chunks of one run, and bytes kept here in all."""

    run_chunks: int
    run_chunks_max: int
    stored_bytes: int
    stored_bytes_max: int


@dataclass(frozen=True, slots=True)
class ChunkFacts:
    """What an intake rule may look at, read in the transaction that will act on it."""

    run_id: RunId
    state: str
    declared: bool
    announced: int | None
    stored: Chunk | None
    """The chunk with the same identity, if there is one."""
    condemned: bool
    """The sweeper has condemned the blob that holds the new bytes."""
    header: str = ""
    """That of a chunk of the table that is bound, from whichever sender; empty: there is none."""
    taken: Taken | None = None
    """None: it is only looked at, or the run is of nobody who has quotas."""


@dataclass(frozen=True, slots=True)
class EndFacts:
    """What the rule for an END may look at, read in the transaction that will act on it."""

    run_id: RunId
    state: str
    declared: bool
    announced: int | None
    highest: int
    """The highest ordinal that is bound; 0: none is."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A piece of work, persisted before anything has an effect.

    A BATCH takes `chunks` off its segment's topic up to `offset`; a SERIES takes none and has
    segment 0. `work_id` is the hash of what is to be done, so planning again finds it again.
    """

    work_id: BatchId
    run_id: RunId
    kind: WorkKind
    segment: int
    name: str
    """The series' name; empty for a batch."""
    chunks: tuple[Chunk, ...] = ()
    offset: Offset = START


@dataclass(frozen=True, slots=True)
class Work:
    """A plan as stored: its number in its segment, and how its attempts went."""

    plan: Plan
    number: int
    """Plan order within (run, segment), from 1."""
    committed: bool
    attempts: int
    failures: int
    error: str | None
    pieces: int = 0
    """How many pieces of results its commit appended."""
    losses: int = 0
    """How many of the failures were the loss of whoever did the work."""


@dataclass(frozen=True, slots=True)
class File:
    """One file that a committed attempt wrote, relative to the state directory."""

    output: str
    path: str
    size: int
    checksum: str
    rows: int

    @property
    def format(self) -> str:
        """Of a piece of a result: the format of its bytes, by its name."""
        return "parquet" if self.path.endswith(".parquet") else "csv"


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a result: (run, series, ordinal) -> file. The only binding of a result."""

    series: str
    ordinal: Ordinal
    file: File
    final: bool
    """False while the run is not DONE and the series is streamed: provisional."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What one attempt achieved. It becomes visible as a whole or not at all."""

    work_id: BatchId
    attempt: int
    files: tuple[File, ...]
    durable_tables: tuple[str, ...] = ()
    """Outputs that become one chunk each of the next segment's table of the same name."""
    piece_outputs: tuple[str, ...] = ()
    """Outputs whose files are appended, in order, to the result series of the same name."""
    columns: tuple[str, ...] = ()
    """For a SERIES: the columns of its pieces, which are written without a header line."""
    rows_read: int = 0
    bad_rows: int = 0


@dataclass(frozen=True, slots=True)
class SeriesResult:
    """A committed SERIES work: the files of its ordered export and their columns."""

    series: str
    columns: tuple[str, ...]
    files: tuple[File, ...]

    @property
    def format(self) -> str:
        """That of its files. Parquet has at least one, which holds the schema."""
        return self.files[0].format if self.files else "csv"
