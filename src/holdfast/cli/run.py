"""`holdfast run`: the engine in this process, Spark in a child of it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast._base.files import os_errors
from holdfast.cli.settings import load_settings
from holdfast.config import Config
from holdfast.engine.drive import Inputs, RunReport, drive
from holdfast.engine.events import Event, EventKind
from holdfast.engine.spec import PipelineSpec
from holdfast.engine.state import hold
from holdfast.errors import ClusterNeedsSharedState, UsageInvalid
from holdfast.intake.listing import list_tables
from holdfast.spark.load import load_pipeline
from holdfast.spark.supervise import ChildExecutor
from holdfast.spark.wire import Start

_FORMATS = ("csv", "json", "parquet")
_SHORT_BYTES = 256 << 20
"""Up to here a run takes about a minute, and a JVM that starts quickly serves better than one
that reaches its full speed."""


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for on the command line."""

    pipeline: str
    input: Path
    out: Path
    state: Path
    format: str | None = None
    config_file: Path | None = None
    master: str | None = None
    spark_conf: tuple[str, ...] = ()
    shared_state: bool = False
    ignore_unknown: bool = False
    batch_bytes: str | None = None
    chunk_bytes: str | None = None
    as_json: bool = False


def run_command(request: Request) -> None:
    """Run or resume, telling what happens on standard error and what came of it on output."""
    spec = _with_format(load_pipeline(request.pipeline).spec(), request.format)
    config = _config(request)
    _refuse_cluster(request, config.master)
    state, out = request.state.resolve(), request.out.resolve()
    say = _Teller(sys.stderr.isatty())
    with hold(state, config) as held:
        log = held.directory.spark_log

        def inputs() -> Inputs:
            folder = request.input.resolve()
            files = list_tables(folder, spec.tables, ignore_unknown=request.ignore_unknown)
            with os_errors(folder):
                say.size = sum(path.stat().st_size for paths in files.values() for path in paths)
            return Inputs(files)

        def executor() -> ChildExecutor:
            short = say.size <= _SHORT_BYTES
            sys.stderr.write(f"starting Spark; its log is {log}\n")
            start = Start(request.pipeline, str(log), config.master, dict(config.spark), short)
            return ChildExecutor(start)

        report = drive(held, spec, inputs, executor, out=out, config=config, watch=say)
    _conclude(request, report)


def _with_format(spec: PipelineSpec, fmt: str | None) -> PipelineSpec:
    if fmt is None:
        return spec
    if fmt not in _FORMATS:
        remedy = f"Use one of {', '.join(_FORMATS)}."
        raise UsageInvalid(what=f"there is no input format {fmt!r}", remedy=remedy)
    tables = tuple(
        replace(table, format=fmt) if table.format in _FORMATS and not table.produced else table
        for table in spec.tables
    )
    return replace(spec, tables=tables)


def _config(request: Request) -> Config:
    flags = {name: getattr(request, name) for name in ("batch_bytes", "chunk_bytes", "master")}
    return load_settings(request.config_file, flags, request.spark_conf).config


def _refuse_cluster(request: Request, master: str) -> None:
    if not master.startswith("local") and not request.shared_state:
        raise ClusterNeedsSharedState(master=master, path=str(request.state))


class _Teller:
    """Says on standard error what happened, a line each."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal
        self.size = 0

    def __call__(self, event: Event) -> None:
        if text := _words(event):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def _words(event: Event) -> str:
    size = f"{event.size / 1e6:,.1f} MB"
    match event.kind:
        case EventKind.BOUND:
            return f"bound {event.chunks} chunks, {size}"
        case EventKind.RESUMED if event.chunks:
            return f"batch {event.name} was interrupted: {event.chunks} chunks are done again"
        case EventKind.STARTED if event.chunks:
            return f"batch {event.name} started: {event.chunks} chunks, {size}"
        case EventKind.COMMITTED if event.chunks:
            return (
                f"batch {event.name} committed: {event.chunks} chunks, {size}, {event.rows:,} rows"
            )
        case EventKind.COMMITTED:
            return f"result {event.name} committed"
        case EventKind.FAILED_ATTEMPT:
            return f"attempt at {event.name} failed: {event.detail}"
        case EventKind.EXPORTED:
            return f"result {event.name} -> {event.detail}"
        case _:
            return ""


def _conclude(request: Request, report: RunReport) -> None:
    if request.as_json:
        facts = {
            "run": report.run_id,
            "state": report.state,
            "already_done": report.already_done,
            "batches": report.batches,
            "chunks": report.chunks,
            "rows": report.rows,
            "bad_rows": report.bad_rows,
            "redone_batches": report.redone_batches,
            "redone_chunks": report.redone_chunks,
            "failed_attempts": report.failed_attempts,
            "results": {name: str(path) for name, path in report.results.items()},
        }
        sys.stdout.write(json.dumps(facts) + "\n")
        return
    if report.already_done:
        restored = f"restored {', '.join(report.exported)}" if report.exported else "nothing to do"
        sys.stdout.write(f"this run was finished before: {restored}\n")
    else:
        sys.stdout.write(
            f"done: {report.batches} batch(es) of {report.chunks} chunk(s) by this process;"
            f" {report.rows:,} rows read in all, {report.bad_rows:,} bad ones kept aside\n"
        )
    sys.stdout.write(f"next: holdfast verify --state {request.state} --out {request.out}\n")
