"""`Pipeline.run`: the engine in the caller's own process, on the caller's own session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from holdfast._base.crashpoint import crashpoint
from holdfast._base.files import fsync_tree, make_directories
from holdfast._base.ids import RunId
from holdfast.config import Config
from holdfast.engine.drive import Inputs, RunReport, drive
from holdfast.engine.events import ignore
from holdfast.engine.spec import PipelineSpec
from holdfast.engine.state import Held, hold
from holdfast.errors import ClusterNeedsSharedState, UsageInvalid
from holdfast.intake.listing import list_tables
from holdfast.intake.tables import TableSpec
from holdfast.spark.execute import SparkExecutor
from holdfast.spark.read import schema_of
from holdfast.spark.receipts import collecting, receipts_since
from holdfast.spark.trouble import working

if TYPE_CHECKING:
    from holdfast.pipeline import Pipeline

__all__ = ["RunReport", "run_pipeline"]


def run_pipeline(
    pipeline: Pipeline,
    spark: SparkSession,
    *,
    inputs: Mapping[str, Any] | str | Path,
    state: str | Path,
    out: str | Path | None,
    config: Config,
) -> RunReport:
    """Run or resume a pipeline in this process. See `Pipeline.run`."""
    pipeline = pipeline.with_stages(config.stages)
    spec = pipeline.spec()
    root = Path(state).resolve()
    refuse_cluster(spark.conf.get("spark.master", "local") or "local", root)
    with hold(root, config) as held, _in_utc(spark), collecting() as marks:
        report = drive(
            held,
            spec,
            lambda: gather(held, spec, inputs),
            lambda: SparkExecutor(spark, pipeline),
            out=None if out is None else Path(out).resolve(),
            config=config,
            watch=ignore,
        )
    report.receipts = receipts_since(marks.values())
    return report


@contextmanager
def _in_utc(spark: SparkSession) -> Iterator[None]:
    """Keep the session in UTC for the length of a run: in another zone `date_format` shifts
    timestamps that have none, and a resume under another zone would write other bytes.
    """
    before = spark.conf.get("spark.sql.session.timeZone", "UTC") or "UTC"
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        yield
    finally:
        # Nothing to put back in a session that is gone.
        with suppress(PySparkException, Py4JError, OSError):
            spark.conf.set("spark.sql.session.timeZone", before)


def refuse_cluster(master: str, root: Path) -> None:
    """Refuse a master whose executors are on other machines, which cannot see a local path."""
    if not master.startswith(("local", "sc://localhost", "sc://127.0.0.1")):
        raise ClusterNeedsSharedState(master=master, path=str(root))


def gather(held: Held, spec: PipelineSpec, inputs: Mapping[str, Any] | str | Path) -> Inputs:
    """Return the files of each table; frames are noted, to be written when nothing is bound."""
    tables = [table for table in spec.tables if not table.produced]
    if isinstance(inputs, (str, Path)):
        return Inputs(list_tables(Path(inputs).resolve(), tables))
    names = {table.name for table in tables}
    if unknown := sorted(set(inputs) - names):
        what = f"inputs names {unknown[0]}, which the pipeline does not declare"
        raise UsageInvalid(what=what, remedy=f"Declared: {', '.join(sorted(names))}.")
    missing = [t.name for t in tables if t.name not in inputs and not t.optional]
    if missing:
        what = f"inputs has nothing for table {missing[0]}"
        raise UsageInvalid(what=what, remedy="Give a path or a DataFrame, or make it optional.")
    frames = {name: value for name, value in inputs.items() if hasattr(value, "sparkSession")}
    files = {name: _paths(name, value) for name, value in inputs.items() if name not in frames}

    def write_frames(run_id: RunId) -> dict[str, list[Path]]:
        return {name: _write(held, run_id, name, frame) for name, frame in frames.items()}

    for name, frame in frames.items():
        _check_types(spec.table(name), frame)

    return Inputs(files, tuple(frames), write_frames)


def _check_types(table: TableSpec, frame: DataFrame) -> None:
    """Refuse a frame whose columns are not those declared: a cast would alter values silently."""
    schema = schema_of(table)
    if schema is None:
        return
    found = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    for field in schema.fields:
        wanted = field.dataType.simpleString()
        if found.get(field.name) != wanted:
            has = found.get(field.name, "no such column")
            what = f"the frame for {table.name}: column {field.name} is {wanted}, it has {has}"
            raise UsageInvalid(what=what, remedy="Cast it, or declare it so.")


def _paths(name: str, value: str | Path | Sequence[str | Path]) -> list[Path]:
    values = [value] if isinstance(value, (str, Path)) else value
    paths: list[Path] = []
    for one in values:
        path = Path(one).absolute()
        path = path.parent.resolve() / path.name
        if path.name.startswith(("_", ".")):
            what = f"{path}, an input of {name}, has a name that Spark's readers pass over"
            raise UsageInvalid(what=what, remedy="Rename it: no _ or . in front.")
        if path.is_dir():
            paths.extend(sorted(p for p in path.iterdir() if p.name[0] not in "._"))
        elif path.is_file():
            paths.append(path)
        else:
            remedy = "Give a file that exists."
            raise UsageInvalid(what=f"{path}, an input of {name}, is not there", remedy=remedy)
    return paths


def _write(held: Held, run_id: RunId, name: str, frame: DataFrame) -> list[Path]:
    """Evaluate a frame once, into Parquet files below this epoch's own directory, durable."""
    directory = held.directory.inputs_of(run_id) / name / str(held.fence.epoch)
    make_directories(directory.parent)
    with working(f"input {name}", str(directory)):
        frame.write.mode("overwrite").parquet(str(directory))
    crashpoint("intake.frame.written")
    files = fsync_tree(directory)
    crashpoint("intake.frame.synced")
    return [path for path in files if path.suffix == ".parquet"]
