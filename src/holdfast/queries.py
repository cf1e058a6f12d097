"""Read-only questions about a state directory, answerable with everything dead.

The only door through which the command line (and, later, the dashboard) looks at state.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from holdfast._base.files import read_pieces, sha256_of
from holdfast._base.ids import RunId
from holdfast.blobs.local import LocalBlobs
from holdfast.delivery.export import export_checksum, export_path, is_exported
from holdfast.delivery.figures import WaitingRun, waiting_runs
from holdfast.engine.barrier import is_complete, missing
from holdfast.engine.lag import TopicLag, lags_of_others, lags_of_run
from holdfast.engine.parts import Part, parts_in
from holdfast.engine.state import StateDirectory, look, owner_of
from holdfast.engine.sweep import orphans
from holdfast.errors import UsageInvalid
from holdfast.store.contract import Store
from holdfast.store.leases import owner_pid
from holdfast.store.result_rows import Notice, NoticeState
from holdfast.store.rows import (
    CLOSED_STATES,
    VOID_STATES,
    ChunkKind,
    File,
    Run,
    RunState,
    SenderProgress,
    Work,
    WorkKind,
)


@dataclass(frozen=True, slots=True)
class TableView:
    """How far one sender of one table is."""

    table: str
    sender: str
    announced: int | None
    received: int
    applied: int
    missing: str
    """Announced and not received, as ranges."""


@dataclass(frozen=True, slots=True)
class WorkView:
    """A batch or result that is planned and not committed."""

    name: str
    chunks: int
    attempts: int
    failures: int


@dataclass(frozen=True, slots=True)
class RunView:
    """A run, as people ask about it."""

    run_id: str
    client: str
    """Whose run it is; empty for `holdfast run`."""
    pipeline: str
    state: str
    error: str | None
    """Why the run failed."""
    last_failure: str | None
    """What the last failed attempt met, whatever became of the run."""
    created_ms: int
    updated_ms: int
    """When its state last changed."""
    barriers: tuple[int, ...]
    """Segments whose inputs are complete."""
    segments: int
    current: tuple[WorkView, ...]
    tables: tuple[TableView, ...]
    topics: tuple[TopicLag, ...]
    """How far the engine, and any other group, is behind each of its topics."""
    batches_planned: int
    batches_committed: int
    series_committed: int
    series_planned: int
    failures: int
    rows_read: int
    bad_rows: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that verify found wrong."""

    run_id: str
    what: str


@dataclass(frozen=True, slots=True)
class WaitView:
    """What the barrier waits for from one sender of one table."""

    table: str
    sender: str
    segment: int
    said_end: bool
    announced: int | None
    received: int
    missing: str
    """Announced and not received, as ranges."""
    unapplied: str
    """Received and not applied, as ranges."""


@dataclass(frozen=True, slots=True)
class BarrierView:
    """Whether a run's inputs are complete, and if not, who is missing what."""

    run_id: str
    pipeline: str
    state: str
    created_ms: int
    updated_ms: int
    passed: tuple[int, ...]
    """Segments whose barrier was passed."""
    segments: int
    waits: tuple[WaitView, ...]


@dataclass(frozen=True, slots=True)
class PartView:
    """A living part of a service: an engine or delivery is active or stands by, others just are."""

    name: str
    pid: int
    role: str
    epoch: int | None


@dataclass(frozen=True, slots=True)
class DeadLetterView:
    """A notice that was given up."""

    notice_id: str
    run_id: str
    client: str
    type: str
    failures: int
    error: str | None


@dataclass(frozen=True, slots=True)
class StateView:
    """A state directory: who works in it now, and its runs."""

    owner_pid: int | None
    """The one `holdfast run` that has it alone."""
    parts: tuple[PartView, ...]
    runs: tuple[RunView, ...]
    waiting: tuple[WaitingRun, ...] = ()
    """Runs that wait for their client or producer: for what, and for how long nothing came."""
    dead_letters: tuple[DeadLetterView, ...] = ()
    topics: tuple[TopicLag, ...] = ()
    """Groups on topics that belong to no run's segments."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What verify looked at, and what it found."""

    runs: int
    unfinished: int
    """Runs that are neither DONE nor over: what they still lack is no problem."""
    chunks: int
    files: int
    orphans: int
    findings: tuple[Finding, ...]


def describe(root: Path, run_id: str | None = None) -> list[RunView]:
    """Return every run of a state directory, or one of them."""
    with look(root) as (_, store):
        return [_describe(store, run) for run in _chosen(store, root, run_id)]


def survey(root: Path, run_id: str | None = None) -> StateView:
    """Return the runs of a state directory, and which process works in it now."""
    with look(root) as (directory, store):
        parts = tuple(_part(store, part) for part in parts_in(directory.parts))
        chosen = _chosen(store, root, run_id)
        runs = tuple(_describe(store, run) for run in chosen)
        names = {run.run_id for run in chosen if run.client}
        waiting = tuple(one for one in waiting_runs(store) if one.run_id in names)
        dead = store.list_notices(state=NoticeState.DEAD)
        letters = tuple(_dead_letter(one) for one in dead if one.run_id in names)
        topics = lags_of_others(store, store.list_runs()) if run_id is None else ()
    return StateView(owner_of(directory), parts, runs, waiting, letters, topics)


def _dead_letter(notice: Notice) -> DeadLetterView:
    return DeadLetterView(
        notice.notice_id, notice.run_id, notice.client, notice.kind, notice.failures, notice.error
    )


def _part(store: Store, part: Part) -> PartView:
    lease = store.read_lease(part.name)
    if lease is None:
        return PartView(part.name, part.pid, "running", None)
    if owner_pid(lease) == part.pid:
        return PartView(part.name, part.pid, "active", lease.epoch)
    return PartView(part.name, part.pid, "standby", None)


def _chosen(store: Store, root: Path, run_id: str | None) -> list[Run]:
    runs = store.list_runs()
    if run_id is None:
        return runs
    known = [run for run in runs if run.run_id == run_id]
    if not known:
        ids = ", ".join(run.run_id for run in runs) or "none yet"
        raise UsageInvalid(what=f"{root} has no run {run_id}", remedy=f"Its runs: {ids}.")
    return known


def barrier(root: Path, run_id: str | None = None) -> BarrierView:
    """Return what the barrier of a run waits for; of the only run, if none is named.

    Raises:
        UsageInvalid: there is no such run, or there are several and none is named.
    """
    with look(root) as (_, store):
        runs = _chosen(store, root, run_id)
        if len(runs) != 1:
            ids = ", ".join(run.run_id for run in runs)
            remedy = f"Name one: {ids}." if runs else "Run a pipeline first."
            raise UsageInvalid(what=f"{root} has {len(runs)} runs", remedy=remedy)
        (run,) = runs
        passed = tuple(store.read_barriers(run.run_id))
        progress = store.read_progress(run.run_id)
    waiting = [one for one in progress if one.segment not in passed and not is_complete([one])]
    return BarrierView(
        run_id=run.run_id,
        pipeline=run.pipeline,
        state=run.state,
        created_ms=run.created_ms,
        updated_ms=run.updated_ms,
        passed=passed,
        segments=run.segments,
        waits=tuple(_wait(one) for one in waiting) if run.state not in CLOSED_STATES else (),
    )


def _wait(sender: SenderProgress) -> WaitView:
    return WaitView(
        table=sender.table,
        sender=sender.sender,
        segment=sender.segment,
        said_end=sender.announced is not None,
        announced=sender.announced,
        received=len(sender.received),
        missing=str(missing(sender)),
        unapplied=str(sender.received.minus(sender.applied)),
    )


def _describe(store: Store, run: Run) -> RunView:
    works = store.list_work(run.run_id)
    batches = [work for work in works if work.plan.kind is WorkKind.BATCH]
    series = [work for work in works if work.plan.kind is WorkKind.SERIES]
    rows, bad = store.read_counts(run.run_id)
    return RunView(
        run_id=run.run_id,
        client=run.client,
        pipeline=run.pipeline,
        state=run.state,
        error=run.error,
        last_failure=_last_failure(works),
        created_ms=run.created_ms,
        updated_ms=run.updated_ms,
        barriers=tuple(store.read_barriers(run.run_id)),
        segments=run.segments,
        current=tuple(
            WorkView(_name(work), len(work.plan.chunks), work.attempts, work.failures)
            for work in works
            if not work.committed
        ),
        tables=tuple(_table(sender) for sender in store.read_progress(run.run_id)),
        topics=lags_of_run(store, run, works),
        batches_planned=len(batches),
        batches_committed=sum(work.committed for work in batches),
        series_planned=len(series),
        series_committed=sum(work.committed for work in series),
        failures=sum(work.failures for work in works),
        rows_read=rows,
        bad_rows=bad,
    )


def _name(work: Work) -> str:
    plan = work.plan
    return f"result {plan.name}" if plan.name else f"batch {plan.segment}.{work.number}"


def _last_failure(works: list[Work]) -> str | None:
    """Return what a failed attempt met: of a work that is still to be done, else of the last."""
    failed = [work for work in works if work.error]
    failed.sort(key=lambda work: not work.committed)
    return f"{_name(failed[-1])}: {failed[-1].error}" if failed else None


def _table(sender: SenderProgress) -> TableView:
    return TableView(
        table=sender.table,
        sender=sender.sender,
        announced=sender.announced,
        received=len(sender.received),
        applied=len(sender.applied),
        missing=str(missing(sender)),
    )


def verify(root: Path, out: Path | None = None) -> Verification:
    """Check that every chunk has exactly one committed effect and every committed file stands.

    `out`: also compare exported files with what the finished run wrote there.
    """
    with look(root) as (directory, store):
        store.check()
        runs = store.list_runs()
        findings: list[Finding] = []
        chunks = files = left = 0
        for run in runs:
            told = [*_check_chunks(store, run), *_check_files(directory, store, run.run_id)]
            told += _check_pieces(store, run) + _check_exports(directory.root, store, run, out)
            findings += [Finding(run.run_id, what) for what in told]
            chunks += len(store.list_chunks(run.run_id))
            files += len(_files(store, run.run_id))
            left += len(orphans(directory, store, run.run_id))
        unfinished = sum(run.state not in CLOSED_STATES for run in runs)
        return Verification(len(runs), unfinished, chunks, files, left, tuple(findings))


def _files(store: Store, run_id: RunId) -> list[File]:
    works = store.list_work(run_id, committed=True)
    return [file for work in works for file in store.read_work_files(work.plan.work_id)]


def _check_chunks(store: Store, run: Run) -> list[str]:
    """Count committed effects from the plans, apart from the rows that the engine itself uses."""
    progress = store.read_progress(run.run_id)
    effects: Counter[tuple[str, str, int]] = Counter()
    for work in store.list_work(run.run_id, committed=True):
        effects.update((c.table, c.sender, c.ordinal) for c in work.plan.chunks)
    found = []
    finished = run.state in (RunState.COMPLETING, RunState.DONE)
    if finished and not is_complete(progress):
        found.append("the run is finished, but not all announced chunks are applied")
    for sender in progress:
        for ordinal in sender.received:
            count = effects[sender.table, sender.sender, ordinal] + sender.whole
            applied = ordinal in sender.applied
            name = f"chunk {ordinal} of {sender.table}"
            if count > 1 or (finished and count != 1):
                found.append(f"{name} has {count} committed effects")
            if applied != (count > 0):
                found.append(f"{name} is {'' if applied else 'not '}applied, against its plan")
    return found


def _check_files(directory: StateDirectory, store: Store, run_id: RunId) -> list[str]:
    found = []
    for file in _files(store, run_id):
        if problem := _problem(directory.root / file.path, file.size, file.checksum):
            found.append(f"{file.path} {problem}")
    chunks = [c for c in store.list_chunks(run_id) if c.kind is ChunkKind.BLOB]
    bound = [(chunk.location, chunk.size, chunk.checksum) for chunk in chunks]
    pieces = [piece for piece in store.list_external_pieces(run_id) if piece.blob]
    bound += [(piece.blob, piece.size, piece.checksum) for piece in pieces]
    blobs = LocalBlobs(directory.blobs) if bound else None
    for name, size, checksum in bound:
        path = Path(blobs.location(name) if blobs else "")
        if problem := _problem(path, size, checksum):
            found.append(f"blob {name} {problem}")
    return found


def _problem(path: Path, size: int, checksum: str) -> str | None:
    if not path.is_file():
        return "is missing"
    if path.stat().st_size != size:
        return f"has {path.stat().st_size} bytes, not {size}"
    if sha256_of(read_pieces(path)) != checksum:
        return "was altered"
    return None


def _check_pieces(store: Store, run: Run) -> list[str]:
    """Compare the pieces of results with what each committed work said it appended."""
    if run.state in VOID_STATES:
        return []
    works = store.list_work(run.run_id, committed=True)
    names = {output for file in _files(store, run.run_id) if (output := file.output)}
    found: list[str] = []
    of_path: dict[str, str] = {}
    for series in sorted(names):
        pieces = store.list_pieces(run.run_id, series)
        ordinals = [piece.ordinal for piece in pieces]
        if ordinals != list(range(1, len(ordinals) + 1)):
            found.append(f"the pieces of {series} have gaps")
        of_path |= {piece.file.path: series for piece in pieces}
    for work in works:
        files = store.read_work_files(work.plan.work_id)
        bound = sum(file.path in of_path for file in files)
        if bound != work.pieces:
            found.append(f"{_name(work)} appended {work.pieces} pieces, {bound} are there")
    return found


def _check_exports(root: Path, store: Store, run: Run, out: Path | None) -> list[str]:
    if out is None or run.state != RunState.DONE:
        return []
    known = store.read_exports(run.run_id)
    return [
        f"{export_path(out, result.series, result.format)} is missing or was altered;"
        " run again to restore it"
        for result in store.read_series(run.run_id)
        if not is_exported(out, result, known.get(result.series) or export_checksum(root, result))
    ]
