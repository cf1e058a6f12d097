"""`holdfast run`: the engine in this process, Spark in a child of it."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from holdfast._base.clock import SystemClock
from holdfast._base.files import os_errors
from holdfast._base.tell import tell
from holdfast.cli.exits import exit_code
from holdfast.cli.settings import load_settings
from holdfast.cli.stop import Stop
from holdfast.cli.tell import JsonTeller, Teller, TextTeller
from holdfast.cli.words import batches, counted
from holdfast.config import Config
from holdfast.engine.drive import Inputs, RunReport, drive
from holdfast.engine.spec import PipelineSpec
from holdfast.engine.state import hold
from holdfast.errors import (
    ClusterNeedsSharedState,
    HoldfastError,
    RunStopped,
    SparkLost,
    StageFailed,
    StageInvalid,
    UsageInvalid,
)
from holdfast.intake.listing import list_tables
from holdfast.spark.load import load_pipeline
from holdfast.spark.receipts import receipts_since
from holdfast.spark.supervise import ChildExecutor
from holdfast.spark.wire import Start, durable_of

_FORMATS = ("csv", "json", "parquet")
_SHORT_BYTES = 256 << 20
"""Up to here a run takes about a minute, and a JVM that starts quickly serves better than one
that reaches its full speed."""


_SPARKS = (SparkLost, StageFailed, StageInvalid)
"""Errors about which Spark's own log may say more. SparkNotStarted names it itself."""


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
    log: str | None = None
    log_format: str | None = None
    as_json: bool = False


def run_command(request: Request) -> None:
    """Run or resume, telling what happens on standard error and what came of it on output."""
    teller = _teller(request.log_format)
    stop = Stop(teller, shlex.join(["holdfast", *sys.argv[1:]]))
    job = _Job(request, teller, stop)
    try:
        with stop.on_signals(), os_errors(request.state):
            try:
                report = job.run()
            finally:
                teller.close()
    except HoldfastError as error:
        told = stop.resumable(error) if isinstance(error, RunStopped) else error
        tell(teller.ending(told, job.log_of(error)))
        sys.exit(exit_code(told))
    _conclude(request, report)


def _teller(log_format: str | None) -> Teller:
    match log_format:
        case "json":
            return JsonTeller(SystemClock())
        case "text":
            return TextTeller(SystemClock())
        case None if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            from holdfast.cli.live import LiveTeller

            return LiveTeller(SystemClock())
        case None:
            return TextTeller(SystemClock())
        case _:
            what = f"there is no log format {log_format!r}"
            raise UsageInvalid(what=what, remedy="Use text or json.")


class _Job:
    """One run, asked for on the command line."""

    def __init__(self, request: Request, teller: Teller, stop: Stop) -> None:
        self._request, self._teller, self._stop = request, teller, stop
        self._log: Path | None = None
        self._size = 0
        self._executor_made: ChildExecutor | None = None

    def run(self) -> RunReport:
        """Run or resume."""
        request = self._request
        config = _config(request)
        pipeline = load_pipeline(request.pipeline).with_stages(config.stages)
        spec = with_format(pipeline.spec(), request.format)
        refuse_cluster(config.master, request.state, shared_state=request.shared_state)
        with hold(request.state.resolve(), config) as held:
            report = drive(
                held,
                spec,
                lambda: self._inputs(spec),
                lambda: self._executor(held.directory.spark_log, config),
                out=request.out.resolve(),
                config=config,
                watch=self._teller,
                stop=self._stop,
            )
        if self._executor_made is not None:
            report.receipts = receipts_since(self._executor_made.marks.values())
        return report

    def _inputs(self, spec: PipelineSpec) -> Inputs:
        folder = self._request.input.resolve()
        files = list_tables(folder, spec.tables, ignore_unknown=self._request.ignore_unknown)
        with os_errors(folder):
            self._size = sum(path.stat().st_size for paths in files.values() for path in paths)
        return Inputs(files)

    def _executor(self, log: Path, config: Config) -> ChildExecutor:
        self._log = log
        self._teller.say("starting", f"starting Spark; its log is {log}", spark_log=str(log))
        short = self._size <= _SHORT_BYTES
        spark = dict(config.spark)
        durable = durable_of(config.stages)
        start = Start(self._request.pipeline, str(log), config.master, spark, durable, short)
        executor = ChildExecutor(start, self._teller.output())
        self._stop.watch(executor)
        self._executor_made = executor
        return executor

    def log_of(self, error: HoldfastError) -> str | None:
        """Return Spark's own log, if Spark was started and may have said more about `error`."""
        of_spark = isinstance(error, _SPARKS) or isinstance(error.__cause__, _SPARKS)
        return str(self._log) if self._log is not None and of_spark else None


def with_format(spec: PipelineSpec, fmt: str | None) -> PipelineSpec:
    """Return the pipeline with its inputs in another format, or refuse it by name."""
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
    names = ("batch_bytes", "chunk_bytes", "log", "master")
    flags = {name: getattr(request, name) for name in names}
    return load_settings(request.config_file, flags, request.spark_conf).config


def refuse_cluster(master: str, state: Path, *, shared_state: bool) -> None:
    """Refuse machines that cannot see the state, unless the user says that they can."""
    if not master.startswith("local") and not shared_state:
        raise ClusterNeedsSharedState(master=master, path=str(state))


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
            "kept_aside": {
                t: [str(path) for path in some] for t, some in report.kept_aside.items()
            },
            "redone_batches": report.redone_batches,
            "redone_chunks": report.redone_chunks,
            "failed_attempts": report.failed_attempts,
            "paid": [asdict(receipt) for receipt in report.receipts],
            "results": {name: str(path) for name, path in report.results.items()},
        }
        sys.stdout.write(json.dumps(facts) + "\n")
        return
    for text in _summary(request, report):
        sys.stdout.write(text + "\n")


def _summary(request: Request, report: RunReport) -> list[str]:
    if report.already_done:
        restored = f"restored {', '.join(report.exported)}" if report.exported else "nothing to do"
        lines = [f"this run was finished before: {restored}"]
    else:
        done = f"{batches(report.batches)} of {counted(report.chunks, 'chunk')} by this process"
        lines = [f"done: {done}; {counted(report.rows, 'row')} read in all"]
    for table, paths in report.kept_aside.items():
        places = sorted({str(path.parent) for path in paths})
        more = f" and {len(places) - 1} more beside it" if len(places) > 1 else ""
        lines.append(f"rows of {table} that did not fit are kept aside in {places[0]}{more}")
    if report.bad_rows:
        lines[0] += f", {report.bad_rows:,} kept aside"
    lines += [f"paid step {receipt}" for receipt in report.receipts]
    quoted = shlex.join(["--state", str(request.state), "--out", str(request.out)])
    return [*lines, f"next: holdfast verify {quoted}"]
