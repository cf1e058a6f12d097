"""What a store must do, as transactions named by what they are for.

Every method is one transaction: it happens as a whole, and is durable when it returns. Rules:

* Locks are taken in the order lease, run, topic.
* A method that takes a `Fence` first does `UPDATE lease ... WHERE epoch = ?`, and raises `Fenced`
  if nothing changed. So a former owner that wakes up changes nothing.
* A method that concerns a run locks the run's row, then checks its state.
* Offsets come from the topic's own counter, never from a sequence, so that a reader never skips
  an offset that a slower transaction is still to fill.
* Decisions are pure functions handed in (`ChunkRule`, `EndRule`, `BarrierRule`). They run inside
  the transaction, on facts read in it: nothing can change between the look and the act.
* A method may be called from any thread, and by several processes on one store.
* A number of 2^63 or more, or text that is no Unicode, raises UsageInvalid and changes nothing.

A PostgreSQL store fills the same contract: nothing here speaks of SQLite.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from holdfast._base.ids import BatchId, Offset, Ordinal, RunId
from holdfast.log.contract import Record, StoredRecord
from holdfast.store.client_contract import ClientStore
from holdfast.store.forward_contract import ForwardStore
from holdfast.store.result_rows import (
    CompleteRule,
    ExternalPiece,
    ExternalRun,
    HeaderRule,
    Notice,
    NoticeState,
    PieceRule,
    ResultPiece,
    ResultSeries,
    SeriesDecl,
)
from holdfast.store.rows import (
    Chunk,
    ChunkFacts,
    Commit,
    End,
    EndFacts,
    Fence,
    File,
    KeptPipeline,
    Lease,
    NewRun,
    Piece,
    Plan,
    ReadyRun,
    Run,
    SenderProgress,
    SeriesResult,
    Work,
)
from holdfast.store.watch_contract import WatchStore

ChunkRule = Callable[[Chunk, ChunkFacts], bool]
"""True: bind it. False: it is there already, ack again. Raises a CallerError: refused."""
EndRule = Callable[[End, EndFacts], bool]
"""True: record it. False: it is there already, ack again. Raises a CallerError: refused."""
BarrierRule = Callable[[Sequence[SenderProgress]], bool]
"""True: the applied chunks of every sender given are exactly those announced. A store need not ask
before their numbers are equal."""


def ingress_topic(run_id: RunId, segment: int) -> str:
    """Return the topic on which references to the chunks of one segment of a run travel."""
    return f"run/{run_id}/segment-{segment}"


PipelineRule = Callable[[KeptPipeline | None, Sequence[Run]], None]
"""Looks at the pipeline that is kept and at all runs. Raises StateMismatch: refused."""


def notice_topic(client: str) -> str:
    """Return the topic on which a client's notices stand, one record each."""
    return f"notices/{client}"


ENGINE_GROUP = "engine"
"""The group whose offset says how far an ingress topic has been planned."""


class LeaseStore(Protocol):
    """Who may act."""

    def take_lease(self, resource: str, owner: str) -> Fence:
        """Grant the lease to `owner` with the next epoch, at once, whoever had it before."""

    def succeed_lease(self, seen: Lease, owner: str) -> Fence | None:
        """Grant the next epoch to `owner` if epoch and beat are still as they were `seen`.

        None, and nothing is changed: the owner acted since, or somebody else took over.
        """

    def beat_lease(self, fence: Fence) -> None:
        """Show that the owner lives. Raises Fenced if it is the owner no more."""

    def read_lease(self, resource: str) -> Lease | None:
        """Return the lease as it stands, or None if it was never granted."""


class IntakeStore(Protocol):
    """Runs, chunks and ENDs coming in."""

    def create_run(self, run: NewRun) -> bool:
        """Create a run in state OPEN, its senders, and its ingress topics.

        With a `producer` it is external: all its tables are whole, and one that declares none is
        FORWARDING at once.

        Returns False, and changes nothing, if the run exists.
        """

    def bind_inputs(
        self,
        fence: Fence,
        run_id: RunId,
        chunks: Sequence[Chunk],
        ends: Sequence[End],
        barrier: BarrierRule,
    ) -> bool:
        """Bind a complete listing: all chunks, their references in the log in the order given,
        all ENDs.

        Chunks of whole tables are applied at once. Looks at the barrier (a run may be empty).
        Returns False, and changes nothing, if inputs of this run are bound already.
        """

    def bind_chunk(
        self, run_id: RunId, chunk: Chunk, rule: ChunkRule, barrier: BarrierRule | None = None
    ) -> bool:
        """Bind one chunk and append its reference to its segment's topic, if `rule` says so.

        A chunk of a whole table is applied at once (and gets no reference). It may be the last
        one missing, behind its END: then the barrier is looked at, so give `barrier` wherever a
        chunk may come after its END. Returns what the rule returned. An unknown run raises
        RunGone. Tables that a segment produces count as not declared here.
        """

    def record_end(
        self, run_id: RunId, end: End, rule: EndRule, barrier: BarrierRule, *, owed: bool = False
    ) -> bool:
        """Record a sender's END, if `rule` says so, and look at the barrier.

        With `owed` it is owed to the run's shards (`ForwardStore`) from this transaction on, also
        if the rule returned False: it may have been recorded by somebody who has no shards.
        """

    def condemn_blob(self, blob: str) -> bool:
        """Condemn a blob that no chunk row binds. False: a row binds it, it must stay."""

    def list_unbound(self, blobs: Sequence[str]) -> list[str]:
        """Return those of these blobs that no chunk row binds, in their order."""

    def forget_condemned(self, blob: str) -> None:
        """Drop the mark of a condemned blob whose bytes are gone."""


class WorkStore(Protocol):
    """Plans, attempts, commits and the barrier."""

    def persist_plan(self, fence: Fence, plan: Plan) -> Work:
        """Persist a plan, and move the topic's offset to `plan.offset`, as one.

        A chunk is in one plan: a second plan with one of its chunks breaks a primary key and
        raises InvariantViolated. A plan with the same id returns the stored work, unchanged.
        A BATCH has at least one chunk, a SERIES none. All SERIES of a run are planned before
        the first is committed. The run's state is checked as in `commit_work`.
        """

    def start_attempt(self, fence: Fence, work_id: BatchId) -> int:
        """Count an attempt before it begins; returns its number, from 1.

        The run's state is checked as in `commit_work`.
        """

    def fail_attempt(
        self, fence: Fence, work_id: BatchId, attempt: int, error: str, *, lost: bool = False
    ) -> Work:
        """Record that an attempt failed; returns the work, with how many of its attempts failed.

        `lost`: whoever did it was lost, which is counted apart as well. An attempt that neither
        failed nor committed was interrupted, and counts for nothing.
        """

    def commit_work(self, fence: Fence, commit: Commit, barrier: BarrierRule) -> None:
        """Make an attempt's outcome visible. As one transaction:

        1. `applied` gets a row per chunk of a batch: a primary key, so each chunk has one effect.
        2. The files are recorded as the manifest of the work.
        3. Each of `durable_tables` gets one chunk (kind FILES, location = the work id, ordinal =
           the work's number, sender "", size and checksum over its files), and its reference goes
           to the next segment's topic.
        4. The files of `piece_outputs` are appended to their series with the next ordinals.
        5. The barrier of the segment is looked at (see `look_at_barrier` below). For a SERIES: the
           first committed one moves the run FORWARDING -> RECEIVING, and the one after which no
           planned SERIES is uncommitted moves it RECEIVING -> COMPLETING.

        The barrier of segment k: when `barrier` holds for the progress of all senders of that
        segment, the barrier row is inserted; END is recorded for the produced tables of segment
        k + 1 (count = committed works of segment k), whose barrier is looked at next; the last
        segment's barrier moves the run OPEN -> FORWARDING. Barriers are passed in the order of
        segments, never k + 1 before k.

        Raises InvariantViolated if the work is committed already or the run is not OPEN
        (for a SERIES: not FORWARDING or RECEIVING), RunGone if somebody else closed the run
        (cancelled, failed, swept), Fenced if the epoch is old.
        """

    def list_ready(self) -> list[ReadyRun]:
        """Return the runs on Spark of all clients that have something to be done, oldest first:
        chunks that no plan holds, works that are not committed, or results to compute. A run
        whose chunks wait for a whole table is among them. Runs without a client are not.
        """

    def list_work(self, run_id: RunId, *, committed: bool | None = None) -> list[Work]:
        """Return a run's works in the order (segment, number), series last, with their chunks."""

    def read_manifest(self, run_id: RunId, output: str) -> list[File]:
        """Return the files of one output of all committed batches, in (segment, number) order."""

    def read_work_files(self, work_id: BatchId) -> list[File]:
        """Return the manifest of one committed work, in the order of the commit."""


class RunStore(Protocol):
    """States, progress and results of runs."""

    def read_run(self, run_id: RunId) -> Run | None:
        """Return a run, or None."""

    def list_runs(self) -> list[Run]:
        """Return all runs, oldest first."""

    def list_runs_in(self, *states: str) -> list[Run]:
        """Return the runs in one of these states, oldest first; cheap with many tombstones."""

    def read_progress(self, run_id: RunId) -> list[SenderProgress]:
        """Return how far each declared sender is, in the order of declaration."""

    def read_barriers(self, run_id: RunId) -> list[int]:
        """Return the segments whose barrier has been passed."""

    def list_chunks(self, run_id: RunId, table: str | None = None) -> list[Chunk]:
        """Return the bound chunks in the order (declaration of the sender, ordinal)."""

    def read_counts(self, run_id: RunId) -> tuple[int, int]:
        """Return rows read and bad rows over all committed batches."""

    def keep_pipeline(self, pipeline: KeptPipeline, rule: PipelineRule) -> None:
        """Keep which pipeline this store belongs to, if `rule` lets it; it may be kept already."""

    def read_pipeline(self) -> KeptPipeline | None:
        """Return the pipeline this store belongs to; None: nobody said so."""

    def read_backlog(self, client: str | None = None) -> int:
        """Return the bytes of chunks received and not applied, of one client or of all.

        Only of OPEN runs: nobody works on what others hold.
        """

    def move_run(
        self, fence: Fence, run_id: RunId, *, expected: str, to: str, error: str | None = None
    ) -> bool:
        """Move a run from state `expected` to `to`. False: it was not in `expected`.

        A move that is not in `holdfast.store.states` raises InvariantViolated. A move to DONE,
        FAILED, CANCELLED or ABANDONED, here or in any other transaction, makes the notice of it in
        the same transaction, if the run has a client: a record on `notices/<client>`, and a row
        for the client's webhook, if it has one. Both list the pieces of a DONE run, in order.
        """

    def finish_run(self, fence: Fence, run_id: RunId, exports: dict[str, str]) -> None:
        """Move COMPLETING -> DONE, make its pieces final, and keep the exports' checksums."""

    def read_exports(self, run_id: RunId) -> dict[str, str]:
        """Return series -> SHA-256 of the exported file, as kept by `finish_run`."""

    def list_pieces(self, run_id: RunId, series: str) -> list[Piece]:
        """Return the pieces of a result in order. Of a FAILED or CANCELLED run: none, all void."""

    def read_series(self, run_id: RunId) -> list[SeriesResult]:
        """Return the committed series, by name."""

    def read_results(self, run_id: RunId) -> list[ResultSeries]:
        """Return what can be seen of a run's results now, by name; of a void run nothing.

        The same for runs on Spark and for external ones: what the gateway lists, and what the
        notice of a DONE run refers to. An unknown run raises RunGone.
        """

    def read_result_piece(
        self, run_id: RunId, series: str, ordinal: Ordinal, *, ordered: bool = False
    ) -> ResultPiece | None:
        """Return one of the pieces of `read_results`, or of its `ordered` files, without reading
        the others; None: there is none. An unknown run raises RunGone.
        """


class TopicStore(Protocol):
    """The embedded log's topics. `holdfast.log.embedded` is the backend made of them."""

    def create_topic(self, topic: str, partitions: int, *, fence: Fence | None = None) -> int:
        """Create a topic if it is missing; returns how many partitions it has.

        With a `fence` that is not the newest grant: Fenced, and nothing is changed.
        """

    def list_topics(self) -> dict[str, int]:
        """Return topic -> number of partitions."""

    def append_records(
        self,
        topic: str,
        partition: int,
        records: Sequence[Record],
        advance: Sequence[tuple[str, int, str, Offset]] = (),
        *,
        fence: Fence | None = None,
    ) -> list[Offset]:
        """Append records, and advance (topic, partition, group, offset) positions, as one.

        With a fence: only while it is the newest grant; else Fenced, and nothing is changed.

        A record whose id the partition still holds is not appended again: its old offset is
        returned. Offsets of groups only grow: a lower one changes nothing.
        """

    def read_records(
        self, topic: str, partition: int, offset: Offset, count: int
    ) -> list[StoredRecord]:
        """Return up to `count` records from `offset` on, in order."""

    def topic_bounds(self, topic: str, partition: int) -> tuple[Offset, Offset]:
        """Return the first offset still held and the next one to be given."""

    def advance_offset(
        self,
        topic: str,
        partition: int,
        group: str,
        offset: Offset,
        *,
        fence: Fence | None = None,
    ) -> None:
        """Set a group's position if it grows. Beyond the end it raises UsageInvalid: records
        still to come would be skipped. With a fence: see `append_records`.
        """

    def read_offset(self, topic: str, partition: int, group: str) -> Offset | None:
        """Return a group's position, or None if it never committed one."""

    def register_group(self, topic: str, group: str, *, fence: Fence | None = None) -> None:
        """Make a group known; until it commits, it counts as standing at 0. `fence`: as above."""

    def list_offsets(self, topic: str, partition: int) -> dict[str, Offset]:
        """Return the position of every known group; 0 where none was committed."""

    def truncate_records(
        self,
        topic: str,
        partition: int,
        offset: Offset,
        *,
        unread: bool = False,
        fence: Fence | None = None,
    ) -> Offset:
        """Drop records below `offset`, but never beyond the minimum position of the known groups
        (no known group: nothing is dropped, unless `unread` says that nobody is waited for).
        Returns the first offset still held. With a fence: see `append_records`.
        """

    def drop_topic(self, topic: str) -> None:
        """Remove a topic with its records, groups and positions. A missing one is no error."""


class NoticeStore(Protocol):
    """Where clients are told of the ends of their runs, and the outbox of it."""

    def set_webhook(self, client: str, url: str | None) -> None:
        """Say where a client's notices go from now on; None: nowhere."""

    def read_webhook(self, client: str) -> str | None:
        """Return where a client's notices go, or None."""

    def list_notices(
        self, *, run_id: RunId | None = None, state: NoticeState | None = None
    ) -> list[Notice]:
        """Return notices, oldest first: all, of a run, in a state."""

    def count_notices(self) -> dict[str, int]:
        """Return how many notices are in each state, without reading them."""

    def due_notices(self, count: int, *, without: Collection[str] = ()) -> list[Notice]:
        """Return up to `count` waiting notices whose time has come, those due first first: of each
        client at most one, and none of the clients `without`.
        """

    def begin_notice(self, fence: Fence, notice_id: str) -> int | None:
        """Count an attempt before it begins; returns its number. None: it is not due, or waits
        no more.
        """

    def record_sent(self, fence: Fence, notice_id: str) -> None:
        """Record that the receiver took a notice."""

    def record_unsent(
        self, fence: Fence, notice_id: str, error: str, *, wait_ms: int | None
    ) -> None:
        """Record a failed attempt; due again after `wait_ms`. None: it is given up."""

    def revive_notice(self, notice_id: str) -> bool:
        """Make a notice that was given up wait again, with no failure. False: it was not."""


class ExternalStore(Protocol):
    """Runs whose results a producer outside sends in."""

    def read_external(
        self, run_id: RunId, piece: ExternalPiece | None = None
    ) -> ExternalRun | None:
        """Return an external run, and in its facts the stored twin of `piece`; None: there is no
        such run, or it is of another kind.
        """

    def list_external_pieces(self, run_id: RunId) -> list[ExternalPiece]:
        """Return the pieces that were bound, by series and ordinal."""

    def record_header(
        self,
        fence: Fence,
        run_id: RunId,
        header: tuple[SeriesDecl, ...],
        rule: HeaderRule,
        complete: CompleteRule,
    ) -> bool:
        """Record which series a run will have, if `rule` says so, and look whether all is there.

        Returns what the rule returned. What makes the run complete moves it RECEIVING ->
        COMPLETING, here and in `bind_piece`. Raises RunGone if the run is over.
        """

    def bind_piece(
        self,
        fence: Fence,
        run_id: RunId,
        piece: ExternalPiece,
        rule: PieceRule,
        complete: CompleteRule,
    ) -> bool:
        """Bind one piece to its blob, if `rule` says so, and look whether all is there.

        The identity (run, series, ordinal) is a primary key. Ordinal 0 binds nothing: it says
        that the series is empty.
        """


class Store(
    LeaseStore,
    IntakeStore,
    WorkStore,
    RunStore,
    TopicStore,
    NoticeStore,
    WatchStore,
    ExternalStore,
    ClientStore,
    ForwardStore,
    Protocol,
):
    """All of it, in one place, so that one transaction can span any of it."""

    def store_id(self) -> str:
        """Return the random name this store was given when it was created."""

    def check(self) -> None:
        """Read everything once. Raises Damaged if the store's own checks fail."""

    def close(self) -> None:
        """Let go of connections. What was committed stays."""
