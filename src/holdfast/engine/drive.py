"""One run from its inputs to its results, in one process: what `holdfast run` and `Pipeline.run`
have in common.

The executor is made only when there is work for it, so a finished run starts no Spark.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast._base.clock import SystemClock
from holdfast._base.crashpoint import crashpoint
from holdfast._base.ids import RunId, digest
from holdfast.blobs.local import LocalBlobs
from holdfast.config import Config
from holdfast.delivery.export import export_path
from holdfast.delivery.states import TERMINAL
from holdfast.engine.barrier import is_complete
from holdfast.engine.belonging import changes
from holdfast.engine.counts import standing
from holdfast.engine.events import Event, EventKind, Stop, Watcher, never
from holdfast.engine.executor import BAD_ROWS_PREFIX, Executor
from holdfast.engine.finish import finish
from holdfast.engine.loop import Engine
from holdfast.engine.routes import routes_of
from holdfast.engine.spec import PipelineSpec
from holdfast.engine.state import Held
from holdfast.errors import HoldfastError, RunFailed, StateMismatch, UsageInvalid
from holdfast.intake.bind import bind_files, check_heads, check_unchanged
from holdfast.intake.tables import TableSpec
from holdfast.ledger.receipt import Receipt
from holdfast.log.contract import QueueBackend
from holdfast.log.embedded import EmbeddedBackend
from holdfast.log.relayed import open_logs
from holdfast.store.contract import Store
from holdfast.store.rows import NewRun, Run, RunState, SenderDecl


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files of a run, by table.

    `frames` are tables that come as Spark frames instead; `write_frames` puts those into files,
    the first time, and never again.
    """

    files: Mapping[str, Sequence[Path]]
    frames: tuple[str, ...] = ()
    write_frames: Callable[[RunId], Mapping[str, Sequence[Path]]] | None = None


@dataclass(slots=True)
class RunReport:
    """What a call of run did, and where the results are."""

    run_id: RunId
    state: RunState
    already_done: bool = False
    batches: int = 0
    chunks: int = 0
    rows: int = 0
    bad_rows: int = 0
    redone_batches: int = 0
    redone_chunks: int = 0
    failed_attempts: int = 0
    results: dict[str, Path] = field(default_factory=dict)
    kept_aside: dict[str, list[Path]] = field(default_factory=dict)
    """Table -> the Parquet files of its rows that did not fit."""
    exported: list[str] = field(default_factory=list)
    receipts: tuple[Receipt, ...] = ()
    """What paid steps bought and reused in this call of run."""


def _refuse_overwriting(given: Inputs, spec: PipelineSpec, out: Path | None) -> None:
    """Refuse to export into a directory of inputs: a result would replace, or become, one."""
    if out is None:
        return
    taken = {out, *(export_path(out, one.name, one.format) for one in spec.series)}
    for paths in given.files.values():
        for path in paths:
            if path.parent in taken:
                what = f"{path.parent} is where results go, and holds the input {path.name}"
                raise UsageInvalid(what=what, remedy="Give another directory for the results.")


def _refuse_no_directory(out: Path | None) -> None:
    """Refuse a place where no results could be written, before hours of work rather than after."""
    if out is None:
        return
    there = next(path for path in (out, *out.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        what = f"no results can be written to {out}: {there} is"
        what += " not ours to write to" if there.is_dir() else " no directory"
        raise UsageInvalid(what=what, remedy="Give another directory for the results.")


@dataclass(frozen=True, slots=True)
class _Watched:
    """What every step of a run needs."""

    held: Held
    spec: PipelineSpec
    config: Config
    watch: Watcher
    stop: Stop


def run_id_of(spec: PipelineSpec) -> RunId:
    """Return the id of the one run that a state directory of `run` holds."""
    return RunId(digest("run", spec.name))


def drive(
    held: Held,
    spec: PipelineSpec,
    inputs: Callable[[], Inputs],
    executor: Callable[[], Executor],
    *,
    out: Path | None,
    config: Config,
    watch: Watcher,
    stop: Stop = never,
) -> RunReport:
    """Run to the end, or resume. A finished run is only given back a missing export.

    `executor` is asked only if there is work. A finished run does not need its inputs any more,
    but it refuses other ones: its answers would be taken for theirs.

    Raises:
        RunStopped: `stop` said so between two works.
    """
    _refuse_no_directory(out)
    run = open_run(held.store, spec, held.directory.root) if held.store.list_runs() else None
    if run is not None and run.state == RunState.FAILED:
        raise RunFailed(run=run.run_id, reason=run.error or "")
    report = RunReport(run_id_of(spec), RunState(run.state) if run else RunState.OPEN)
    report.already_done = report.state is RunState.DONE
    watched = _Watched(held, spec, config, _Counting(report, watch), stop)
    if report.already_done:
        _refuse_other_inputs(watched, report.run_id, inputs)
    elif report.state not in TERMINAL | {RunState.COMPLETING}:
        _work(watched, inputs(), executor, out=out, is_new=run is None)
    finish(held, report.run_id, out, watched.watch)
    _complete_report(held, spec, report, out)
    return report


def _work(
    watched: _Watched,
    given: Inputs,
    executor: Callable[[], Executor],
    *,
    out: Path | None,
    is_new: bool,
) -> None:
    """Take a run from its inputs to its committed results.

    The files of a new run are looked at, and every stage is built on no rows, before there is a
    run: a mistake that is found then leaves nothing behind, and the same state serves the
    corrected file or pipeline.
    """
    _refuse_overwriting(given, watched.spec, out)
    if is_new:
        check_heads(given.files, [table for table in watched.spec.tables if not table.produced])
    run_id = run_id_of(watched.spec)
    routes = routes_of(watched.spec, watched.config)
    with open_logs(watched.held.store, routes) as logs:
        doing = executor()
        try:
            if is_new:
                doing.check()
                open_run(watched.held.store, watched.spec, watched.held.directory.root)
            _bind(watched, run_id, given)
            _advance(watched, run_id, doing, logs)
        finally:
            doing.close()


def open_run(store: Store, spec: PipelineSpec, root: Path) -> Run:
    """Return the run of this state, creating it if there is none.

    Raises:
        StateMismatch: the state belongs to another pipeline, or the pipeline has changed.
    """
    run_id = run_id_of(spec)
    for run in store.list_runs():
        if run.pipeline != spec.name:
            what = f"it holds a run of pipeline {run.pipeline}, not of {spec.name}"
            raise StateMismatch(state=str(root), what=what)
    senders = tuple(
        SenderDecl(table.name, sender, table.segment, table.whole, table.produced)
        for table in spec.tables
        for sender in table.senders
    )
    created = SystemClock().wall_ms()
    store.create_run(
        NewRun(run_id, "", spec.name, spec.fingerprint, len(spec.segments), senders, created)
    )
    crashpoint("intake.create.after")
    run = next(run for run in store.list_runs() if run.run_id == run_id)
    if changed := changes(run.fingerprint, spec.fingerprint):
        raise StateMismatch(state=str(root), what=f"{changed} since this run began")
    return run


def _bind(watched: _Watched, run_id: RunId, inputs: Inputs) -> None:
    """Bind the inputs the first time; afterwards only compare them with what was bound.

    1. Frames are written to files, which nobody sees yet. Crash after: written again elsewhere.
    2. All of it is bound in one transaction. Crash after: a resume never evaluates a frame again.
    """
    store, spec, config = watched.held.store, watched.spec, watched.config
    tables = [_as_bound(table, inputs) for table in spec.tables if not table.produced]
    progress = store.read_progress(run_id)
    if all(sender.announced is not None for sender in progress if _is_input(spec, sender.table)):
        check_unchanged(store.list_chunks(run_id), inputs.files, tables, config)
        _tell_standing(watched, run_id, EventKind.FOUND)
        return
    files = dict(inputs.files)
    if inputs.write_frames is not None:
        files |= inputs.write_frames(run_id)
    bind_files(
        store,
        watched.held.fence,
        run_id,
        files=files,
        tables=tables,
        config=config,
        barrier=is_complete,
    )
    _tell_standing(watched, run_id, EventKind.BOUND)


def _tell_standing(watched: _Watched, run_id: RunId, kind: EventKind) -> None:
    store = watched.held.store
    tables = standing(store.read_progress(run_id), store.list_chunks(run_id))
    chunks, size = sum(one.chunks for one in tables), sum(one.size for one in tables)
    rows, _ = store.read_counts(run_id)
    watched.watch(Event(kind, run_id, chunks=chunks, size=size, rows=rows, tables=tables))


def _refuse_other_inputs(watched: _Watched, run_id: RunId, inputs: Callable[[], Inputs]) -> None:
    try:
        given = inputs()
    except HoldfastError:
        return  # gone, or no longer what the pipeline declares: no other inputs
    tables = [_as_bound(table, given) for table in watched.spec.tables if not table.produced]
    chunks = watched.held.store.list_chunks(run_id)
    check_unchanged(chunks, given.files, tables, watched.config, finished=True)


def _as_bound(table: TableSpec, inputs: Inputs) -> TableSpec:
    return replace(table, format="parquet") if table.name in inputs.frames else table


def _is_input(spec: PipelineSpec, table: str) -> bool:
    return not spec.table(table).produced


def _advance(
    watched: _Watched, run_id: RunId, executor: Executor, logs: Mapping[int, QueueBackend]
) -> None:
    held = watched.held
    engine = Engine(
        held,
        watched.spec,
        executor,
        log=EmbeddedBackend(held.store),
        logs=logs,
        blobs=LocalBlobs(held.directory.blobs),
        config=watched.config,
        watch=watched.watch,
        stop=watched.stop,
    )
    engine.advance(run_id)


class _Counting:
    """Counts what happened into a report, and passes every event on."""

    def __init__(self, report: RunReport, watch: Watcher) -> None:
        self._report, self._watch = report, watch

    def __call__(self, event: Event) -> None:
        match event.kind:
            case EventKind.COMMITTED if event.chunks:
                self._report.batches += 1
                self._report.chunks += event.chunks
            case EventKind.RESUMED if event.chunks:
                self._report.redone_batches += 1
                self._report.redone_chunks += event.chunks
            case EventKind.FAILED_ATTEMPT:
                self._report.failed_attempts += 1
            case EventKind.EXPORTED:
                self._report.exported.append(event.name)
            case _:
                pass
        self._watch(event)


def _complete_report(held: Held, spec: PipelineSpec, report: RunReport, out: Path | None) -> None:
    store = held.store
    run = store.read_run(report.run_id)
    report.state = RunState(run.state) if run else report.state
    report.rows, report.bad_rows = store.read_counts(report.run_id)
    for table in spec.tables:
        files = store.read_manifest(report.run_id, f"{BAD_ROWS_PREFIX}{table.name}")
        if any(file.rows for file in files):
            paths = [held.directory.root / file.path for file in files if file.rows]
            report.kept_aside[table.name] = paths
    if out is not None:
        report.results = {one.name: export_path(out, one.name, one.format) for one in spec.series}
