"""The engine: takes a run from its bound chunks to its committed results.

All it knows is in the store, so it can be killed at any line and started again. The order of
effects of one piece of work is in `_perform`; what each crash between two steps leaves is said
at its crash point (`holdfast._base.crashpoint.POINTS`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from holdfast._base.crashpoint import crashpoint
from holdfast._base.files import read_pieces, sha256_of
from holdfast._base.ids import START, BatchId, RunId, digest
from holdfast._base.invariant import invariant
from holdfast.blobs.contract import BlobStore
from holdfast.config import Config
from holdfast.delivery.states import TERMINAL, move
from holdfast.engine import plan as planning
from holdfast.engine.barrier import are_complete, is_complete
from holdfast.engine.counts import counts_of
from holdfast.engine.events import Event, EventKind, Stop, Watcher, ignore, never
from holdfast.engine.executor import (
    BAD_ROWS_PREFIX,
    BatchWork,
    Executor,
    Outcome,
    SeriesWork,
    Source,
)
from holdfast.engine.failure import Verdict, is_exhausted, judge
from holdfast.engine.manifest import seal, verify_sources
from holdfast.engine.spec import OutputKind, OutputSpec, PipelineSpec, SegmentSpec, SeriesSpec
from holdfast.engine.state import Held
from holdfast.engine.sweep import sweep
from holdfast.errors import Damaged, HoldfastError, InputChanged, RunFailed, RunStopped
from holdfast.log.contract import QueueBackend
from holdfast.store.contract import ENGINE_GROUP, ingress_topic
from holdfast.store.reasons import shortened
from holdfast.store.references import chunk_of
from holdfast.store.rows import Chunk, ChunkKind, Commit, File, Plan, RunState, Work, WorkKind


class Engine:
    """Works on one run, under one grant of the lease. Used by one thread at a time."""

    def __init__(
        self,
        held: Held,
        spec: PipelineSpec,
        executor: Executor,
        *,
        log: QueueBackend,
        logs: Mapping[int, QueueBackend] = MappingProxyType({}),
        blobs: BlobStore,
        config: Config,
        watch: Watcher = ignore,
        stop: Stop = never,
    ) -> None:
        """Begin. Nothing is read or written before `advance`.

        `log` is the store's own; `logs` are those of the segments whose references travel.
        """
        self._held = held
        self._store, self._fence, self._directory = held.store, held.fence, held.directory
        self._spec, self._executor, self._config = spec, executor, config
        self._log, self._logs = log, logs
        self._blobs, self._watch, self._stop = blobs, watch, stop
        self._fingerprint = digest(*(f"{k}={v}" for k, v in sorted(spec.fingerprint.items())))
        self._verified: set[str] = set()
        self._barriers: set[int] = set()
        self._left: deque[Work] | None = None

    def advance(self, run_id: RunId) -> RunState:
        """Work until the run needs input that has not come, or its results are committed.

        Returns the state the run is in then: OPEN while it waits for chunks or ENDs.

        Raises:
            RunFailed: the run is FAILED; the reason is kept with it.
            RunStopped: somebody asked to stop; nothing is under way.
            HoldfastError: the run stays as it is, and can be resumed.
        """
        while self.step(run_id) is not None:
            pass
        return self._state(run_id)

    def step(self, run_id: RunId, *, batch_bytes: int | None = None) -> int | None:
        """Do one turn of work: a batch, one that a former process left, or all results.

        Returns the bytes it worked on; None: there is nothing to do now. An engine does the turns
        of one run, and is not used again after an error. `batch_bytes` is given for a short turn,
        because others wait: it bounds a batch that is planned now, and one result is computed
        instead of all. Raises as `advance`.
        """
        if self._left is None:
            self._left = self._begin_run(run_id)
        work = self._next_batch(run_id, batch_bytes)
        if work is not None:
            self._perform(work)
            return sum(chunk.size for chunk in work.plan.chunks)
        if self._state(run_id) in (RunState.FORWARDING, RunState.RECEIVING):
            return self._compute_series(run_id, one_alone=batch_bytes is not None)
        return None

    def _begin_run(self, run_id: RunId) -> deque[Work]:
        """Return the batches that a former process planned and did not commit."""
        self._refuse_failed(run_id)
        sweep(self._held, run_id)
        self._barriers = set(self._store.read_barriers(run_id))
        works = self._store.list_work(run_id, committed=False)
        return deque(work for work in works if work.plan.kind is WorkKind.BATCH)

    def _next_batch(self, run_id: RunId, batch_bytes: int | None) -> Work | None:
        """Return what is to be done next: what was left, then the lowest segment that has chunks.

        A former process's batch of a later segment waits for what is left of the ones before.
        """
        if self._left:
            work = self._left.popleft()
            self._take_up(work)
            return work
        for segment in self._spec.segments:
            if segment.number in self._barriers:
                continue
            work_next = self._plan_next(run_id, segment, batch_bytes)
            if work_next is not None:
                return work_next
        return None

    def _state(self, run_id: RunId) -> RunState:
        run = self._store.read_run(run_id)
        invariant(run is not None, f"run {run_id} vanished")
        return RunState(run.state) if run else RunState.SWEPT

    def _refuse_failed(self, run_id: RunId) -> None:
        run = self._store.read_run(run_id)
        if run is not None and run.state == RunState.FAILED:
            raise RunFailed(run=run_id, reason=run.error or "")

    def _take_up(self, work: Work) -> None:
        if work.attempts:
            self._tell(EventKind.RESUMED, work)
        if is_exhausted(work, self._config):
            self._fail(work.plan.run_id, work.error or "too many failed attempts")

    def _plan_next(
        self, run_id: RunId, segment: SegmentSpec, batch_bytes: int | None
    ) -> Work | None:
        """Take the next chunks off the segment's topic. None: there are none to take now."""
        if not are_complete(self._store.read_progress(run_id), segment.pins):
            return None
        topic = ingress_topic(run_id, segment.number)
        offset = self._store.read_offset(topic, 0, ENGINE_GROUP) or START
        log = self._logs.get(segment.number, self._log)
        records = log.fetch_batch(topic, offset, count=self._config.fetch_records)
        if not records:
            return None
        pending = [(record.offset, chunk_of(record.record)) for record in records]
        taken = planning.take(pending, self._config, batch_bytes=batch_bytes)
        plan = planning.plan_batch(run_id, segment.number, self._fingerprint, taken)
        crashpoint("engine.plan.before")
        work = self._store.persist_plan(self._fence, plan)
        crashpoint("engine.plan.after")
        return work

    def _perform(self, work: Work) -> None:
        """Do one planned batch until it is committed, or its run has failed.

        1. The attempt is counted. Crash after: it was interrupted, and counts for nothing.
        2. The executor reads and writes below a directory of this attempt alone. Crash after:
           an orphan, which a sweep removes.
        3. Inputs that Spark's own readers parsed are hashed again; all files are made durable.
        4. One transaction makes the files visible, marks the chunks applied and looks at the
           barrier. Crash before: the same plan again. Crash after: the next plan.
        5. A log elsewhere is told that it was read so far: only now, because until 4 nothing of
           what lies between, in memory, is kept. Crash before: it is told with the next batch.
        """
        while True:
            self._heed_stop(work)
            attempt = self._begin(work)
            try:
                self._commit(work, attempt, self._run_batch(work, attempt))
            except HoldfastError as error:
                self._count_failure(work, attempt, error)
                continue
            break
        log = self._logs.get(work.plan.segment)
        if log is not None:
            topic = ingress_topic(work.plan.run_id, work.plan.segment)
            log.commit_offset(topic, ENGINE_GROUP, work.plan.offset)

    def _heed_stop(self, work: Work) -> None:
        if self._stop():
            raise RunStopped(what=f"stopped before {_name(work)}", resume="Run again.")

    def _begin(self, work: Work) -> int:
        attempt = self._store.start_attempt(self._fence, work.plan.work_id)
        crashpoint("engine.attempt.after")
        self._tell(EventKind.STARTED, work)
        return attempt

    def _commit(self, work: Work, attempt: int, outcome: Outcome) -> None:
        outputs: tuple[OutputSpec, ...] = ()
        if work.plan.kind is WorkKind.BATCH:
            outputs = self._spec.segments[work.plan.segment - 1].outputs
        pieces = [o.name for o in outputs if o.kind is OutputKind.STREAMED]
        if work.plan.kind is WorkKind.SERIES and not self._series(work).streamed:
            pieces.append(work.plan.name)
        files = seal(self._directory.root, self._directory.attempt(work, self._fence, attempt))
        crashpoint("engine.sync.after")
        commit = Commit(
            work_id=work.plan.work_id,
            attempt=attempt,
            files=files,
            durable_tables=tuple(o.name for o in outputs if o.kind is OutputKind.DURABLE),
            piece_outputs=tuple(pieces),
            columns=outcome.columns,
            rows_read=outcome.rows_read,
            bad_rows=sum(f.rows for f in files if f.output.startswith(BAD_ROWS_PREFIX)),
        )
        self._store.commit_work(self._fence, commit, is_complete)
        crashpoint("engine.commit.after")
        self._tell(EventKind.COMMITTED, work, rows=outcome.rows)
        self._tell_barriers(work.plan.run_id)

    def _run_batch(self, work: Work, attempt: int) -> Outcome:
        segment = self._spec.segments[work.plan.segment - 1]
        directory = self._directory.attempt(work, self._fence, attempt)
        read = {output.table for output in segment.outputs}
        sources: dict[str, tuple[Source, ...]] = {}
        for chunk in work.plan.chunks:
            if chunk.table in read:
                sources[chunk.table] = sources.get(chunk.table, ()) + self._sources_of(chunk)
        pins = self._pinned(work.plan.run_id, segment.pins)
        outcome = Outcome()
        with _verified(*sources.values(), *pins.values()):
            if sources:
                rows_max = self._config.piece_rows_max
                wanted = BatchWork(str(directory), segment.number, sources, pins, rows_max)
                outcome = self._executor.run_batch(wanted)
            crashpoint("engine.job.after")
        return outcome

    def _compute_series(self, run_id: RunId, *, one_alone: bool) -> int:
        """Compute every result that is missing, or one; returns the bytes they are made of. All are
        planned before the first is committed, so that the last commit knows that it is the last.
        """
        works = [
            self._store.persist_plan(self._fence, self._plan_series(run_id, series))
            for series in self._spec.series
        ]
        done = sum(work.committed for work in works)
        self._watch(Event(EventKind.SERIES, run_id, count=len(works), done=done))
        pending = [work for work in works if not work.committed][: 1 if one_alone else None]
        datasets = {name for work in pending for name in self._series(work).datasets}
        for work in pending:
            self._take_up(work)
        while pending:
            pending = self._perform_series(pending)
        return sum(f.size for name in datasets for f in self._store.read_manifest(run_id, name))

    def _perform_series(self, works: Sequence[Work]) -> list[Work]:
        """Compute results side by side, and return those that are to be tried again.

        The steps of each are those of `_perform`. What succeeded is committed before a failure of
        another is looked at, so that it is not done again.
        """
        self._heed_stop(works[0])
        attempts = [self._begin(work) for work in works]
        wanted = [self._series_work(*one) for one in zip(works, attempts, strict=True)]
        try:
            with _verified(*(sources for one in wanted for sources in one.pins.values())):
                outcomes = self._executor.run_series(wanted)
                crashpoint("engine.series.after")
        except InputChanged as changed:
            raise self._damage_or(changed) from changed
        failed = []
        for work, attempt, outcome in zip(works, attempts, outcomes, strict=True):
            if isinstance(outcome, HoldfastError):
                failed.append((work, attempt, outcome))
            else:
                self._commit(work, attempt, outcome)
        for work, attempt, error in failed:
            self._count_failure(work, attempt, error)
        return [work for work, _, _ in failed]

    def _series_work(self, work: Work, attempt: int) -> SeriesWork:
        series = self._series(work)
        directory = self._directory.attempt(work, self._fence, attempt)
        datasets = {name: self._dataset(work.plan.run_id, name) for name in series.datasets}
        pins = self._pinned(work.plan.run_id, series.pins)
        rows_max = self._config.piece_rows_max
        return SeriesWork(str(directory), series.name, datasets, pins, rows_max)

    def _series(self, work: Work) -> SeriesSpec:
        return next(one for one in self._spec.series if one.name == work.plan.name)

    def _plan_series(self, run_id: RunId, series: SeriesSpec) -> Plan:
        return planning.plan_series(run_id, self._fingerprint, series.name)

    def _damage_or(self, error: HoldfastError) -> HoldfastError:
        """Return the error; but a stored file that changed is damaged: no sender did that."""
        if isinstance(error, InputChanged) and self._directory.root in Path(error.path).parents:
            return Damaged(path=error.path, what=f"a stored file {error.what}")
        return error

    def _count_failure(self, work: Work, attempt: int, error: HoldfastError) -> None:
        """Record a failed attempt; return only if the work is to be tried again."""
        error = self._damage_or(error)
        verdict = judge(error, replaceable=self._executor.replaceable)
        if verdict is Verdict.RAISE:
            raise error
        crashpoint("engine.fail.before")
        work = self._store.fail_attempt(
            self._fence, work.plan.work_id, attempt, str(error), lost=verdict is Verdict.LOST
        )
        crashpoint("engine.fail.after")
        self._tell(EventKind.FAILED_ATTEMPT, work, detail=str(error))
        if verdict is Verdict.FAIL or is_exhausted(work, self._config):
            self._fail(work.plan.run_id, str(error), error)

    def fail_damaged(self, run_id: RunId, damage: Damaged) -> None:
        """Fail a run of a service whose stored files are damaged: its client cannot mend them, and
        can hand everything in again.

        Not while a whole directory is away: that is a disk that is not there, and may come back.

        Raises:
            RunFailed: the run is FAILED.
            Damaged: it stays as it is.
        """
        path = Path(damage.path)
        if not path.parent.is_dir() or self._directory.root not in path.parents:
            raise damage
        self._fail(run_id, str(damage), damage)

    def _fail(self, run_id: RunId, reason: str, cause: HoldfastError | None = None) -> None:
        # Clients read the reason: files of ours are named below the state directory only.
        reason = shortened(reason.replace(f"{self._directory.root}/", ""))
        state = self._state(run_id)
        if state not in TERMINAL:
            to = RunState.FAILED
            move(self._store, self._fence, run_id, current=state, to=to, error=reason)
            crashpoint("delivery.move.after")
        raise RunFailed(run=run_id, reason=reason) from cause

    def _sources_of(self, chunk: Chunk) -> tuple[Source, ...]:
        """Return where the bytes of a chunk are."""
        if chunk.kind is ChunkKind.RANGE:
            place = (chunk.location, chunk.start, chunk.stop)
            return (Source(*place, chunk.checksum, chunk.format, chunk.header),)
        if chunk.kind is ChunkKind.BLOB:
            path = self._blobs.location(chunk.location)
            return (Source(path, 0, chunk.size, chunk.checksum, chunk.format, chunk.header),)
        files = self._store.read_work_files(BatchId(chunk.location))
        return tuple(
            Source(str(self._intact(f)), 0, f.size, f.checksum, "parquet")
            for f in files
            if f.output == chunk.table
        )

    def _pinned(self, run_id: RunId, tables: tuple[str, ...]) -> dict[str, tuple[Source, ...]]:
        """Return all chunks of whole tables, which are complete by now."""
        return {
            table: tuple(
                source
                for chunk in self._store.list_chunks(run_id, table)
                for source in self._sources_of(chunk)
            )
            for table in tables
        }

    def _dataset(self, run_id: RunId, name: str) -> tuple[str, ...]:
        """Return the files of an output of all batches."""
        return tuple(str(self._intact(f)) for f in self._store.read_manifest(run_id, name))

    def _intact(self, file: File) -> Path:
        """Return where a committed file is, hashed once before its first use."""
        path = self._directory.root / file.path
        if file.path not in self._verified:
            if not path.is_file():
                raise Damaged(path=str(path), what="a committed file is missing")
            if sha256_of(read_pieces(path)) != file.checksum:
                raise Damaged(path=str(path), what="a committed file was altered")
            self._verified.add(file.path)
        return path

    def _tell(
        self,
        kind: EventKind,
        work: Work,
        *,
        rows: Mapping[str, int] | None = None,
        detail: str = "",
    ) -> None:
        chunks, rows = work.plan.chunks, rows or {}
        event = Event(
            kind,
            work.plan.run_id,
            work.plan.name or f"{work.plan.segment}.{work.number}",
            chunks=len(chunks),
            size=sum(chunk.size for chunk in chunks),
            rows=sum(rows.values()),
            detail=detail,
            tables=counts_of(chunks, rows),
        )
        self._watch(event)

    def _tell_barriers(self, run_id: RunId) -> None:
        """Tell of the barriers that a commit has passed."""
        passed = self._store.read_barriers(run_id)
        for segment in passed:
            if segment not in self._barriers:
                self._watch(Event(EventKind.BARRIER, run_id, str(segment)))
        self._barriers.update(passed)


def _name(work: Work) -> str:
    plan = work.plan
    return f"result {plan.name}" if plan.name else f"batch {plan.segment}.{work.number}"


@contextmanager
def _verified(*sources: tuple[Source, ...]) -> Iterator[None]:
    """Hash what Spark's own readers parsed, after it was read.

    If the work failed, a changed or vanished input is the reason to give.
    """
    try:
        yield
    finally:
        for some in sources:
            verify_sources(some)
