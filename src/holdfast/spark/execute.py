"""The executor that is Spark: chunks in, Parquet and CSV files out, through users' functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql import Column, DataFrame, SparkSession

from holdfast.engine.executor import BAD_ROWS_PREFIX, BatchWork, Outcome, SeriesWork, Source
from holdfast.engine.spec import OutputKind, OutputSpec, PipelineSpec, SeriesSpec
from holdfast.errors import HoldfastError, StageInvalid
from holdfast.intake.tables import BadRowPolicy
from holdfast.spark.evaluate import Evaluation
from holdfast.spark.read import (
    TableFrame,
    quoted,
    read_table,
    read_written,
    refuse_bad_rows,
)
from holdfast.spark.trouble import building, working

if TYPE_CHECKING:
    from holdfast.pipeline import Pipeline

_CSV = {
    "header": "false",
    "quote": '"',
    "escape": '"',  # a quote inside quotes is doubled, as everybody else writes it
    "emptyValue": '""',  # an empty text is not a null, and our reader tells them apart
    "ignoreLeadingWhiteSpace": "false",  # Spark's writer trims by default: that alters answers
    "ignoreTrailingWhiteSpace": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd HH:mm:ss[.SSSSSS]",
    "timestampNTZFormat": "yyyy-MM-dd HH:mm:ss[.SSSSSS]",
}
"""How results are written as CSV: what our own reader, and other tools, read back unchanged."""


_ROWS_MAX = "maxRecordsPerFile"
"""Each task begins its next file after so many rows, so the order of rows is that of the files."""


_WRITES_AT_ONCE = 8
"""Most results and partial rows are small: while the driver plans one, or waits for its last task,
the others' tasks have the cores. More would only share the same memory among more sorts."""


_ONE_TASK_BYTES = 64 << 20
"""A result made of less is sorted in one task, as one file. Sorting in many tasks needs a job that
samples the rows first: for most results, which are small, that takes longer than to sort them."""


def _bytes_of(work: SeriesWork) -> int:
    """Return the size of what a result is made of."""
    files = (Path(path).stat().st_size for paths in work.datasets.values() for path in paths)
    sources = (source for some in work.pins.values() for source in some)
    return sum(files) + sum(source.stop - source.start for source in sources)


def _order_of(series: SeriesSpec, frame: DataFrame) -> list[Column]:
    """Return what the rows of a result are sorted by: all columns, so that ties have an order."""
    rest = [column for column in frame.columns if column not in series.order_by]
    return [quoted(name) for name in (*series.order_by, *rest)]


def _refuse_unknown_order(series: SeriesSpec, frame: DataFrame) -> None:
    known = {column.casefold() for column in frame.columns}  # as Spark finds them
    for name in series.order_by:
        if name.casefold() not in known:
            error = f"there is no column {name}, it has {', '.join(frame.columns)}"
            raise StageInvalid(stage=f"result {series.name}", where="its order_by", error=error)


@dataclass(frozen=True, slots=True)
class _Made:
    """A result, made and not yet computed."""

    ordered: DataFrame
    format: str
    columns: tuple[str, ...]
    pins: Mapping[str, TableFrame]


_Part = TypeVar("_Part")


def _tried(work: SeriesWork, step: Callable[[], _Part]) -> _Part | HoldfastError:
    """Return what a step of one result gives, or the error it ends with."""
    try:
        with working(f"result {work.name}", work.directory):
            return step()
    except HoldfastError as error:
        return error


class SparkExecutor:
    """Does works in one Spark session."""

    replaceable = False

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        """Use a session that somebody else built and will stop."""
        self._spark, self._pipeline = spark, pipeline
        self._spec: PipelineSpec = pipeline.spec()

    def check(self) -> None:
        """Build every result on empty frames, its order too; a table whose columns only its files
        know is left to the first batch.
        """
        known = [t for t in self._spec.tables if t.schema or t.format == "binaryFile"]
        if len(known) < sum(not table.produced for table in self._spec.tables):
            return
        nothing = Evaluation(self._pipeline, self._spark, {})
        with working("the pipeline"):
            for series in self._spec.series:
                frame = nothing.frame(series.name)
                _refuse_unknown_order(series, frame)
                with building(f"result {series.name}"):
                    frame.sortWithinPartitions(*_order_of(series, frame))

    def run_batch(self, work: BatchWork) -> Outcome:
        """Write every output of the segment whose table has chunks in this work."""
        # Around everything: a JVM may die between two jobs too.
        with working(f"a batch of segment {work.segment}", work.directory):
            return self._run_batch(work)

    def _run_batch(self, work: BatchWork) -> Outcome:
        tables = {
            name: read_table(self._spark, self._spec.table(name), sources)
            for name, sources in work.chunks.items()
        }
        pins = self._pinned(work)
        bases = {name: frame.good for name, frame in (tables | pins).items()}
        outputs = [
            output
            for output in self._spec.segments[work.segment - 1].outputs
            if output.table in work.chunks
        ]
        evaluation = Evaluation(self._pipeline, self._spark, bases)
        with evaluation.sharing([output.name for output in outputs]), _persisted(tables | pins):
            self._refuse_bad_rows(tables, work.chunks)
            self._refuse_bad_rows(pins, work.pins)
            self._write_outputs(work, evaluation, outputs)
            for name, frame in tables.items():
                self._write_bad(work, name, frame)
        return Outcome(rows={name: frame.rows() for name, frame in tables.items()})

    def _refuse_bad_rows(
        self, tables: Mapping[str, TableFrame], sources: Mapping[str, tuple[Source, ...]]
    ) -> None:
        for name, frame in tables.items():
            refuse_bad_rows(self._spec.table(name), frame, sources[name])

    def _write_outputs(
        self, work: BatchWork, evaluation: Evaluation, outputs: Sequence[OutputSpec]
    ) -> None:
        """Write a batch's outputs, as many side by side as can be.

        The first of each table reads it and fills what is persisted, the others take it from
        there: were they begun together, one could end, and with it the count of the rows, while
        another is still reading.
        """
        frames = {output.name: self._output_frame(evaluation, output) for output in outputs}
        first = {output.table: output.name for output in reversed(outputs)}.values()
        rest = [output.name for output in outputs if output.name not in first]

        streamed = {output.name for output in outputs if output.kind is OutputKind.STREAMED}

        def write(name: str) -> None:
            with working(name, work.directory):
                writer = frames[name].write
                if name in streamed:
                    writer = writer.option(_ROWS_MAX, work.piece_rows_max)
                writer.parquet(f"{work.directory}/{name}")

        with ThreadPoolExecutor(_WRITES_AT_ONCE, thread_name_prefix="output") as pool:
            for wave in (first, rest):
                list(pool.map(write, wave))

    def _output_frame(self, evaluation: Evaluation, output: OutputSpec) -> DataFrame:
        if output.kind is OutputKind.PARTIAL:
            return evaluation.partial(output.name)
        return evaluation.frame(output.name)

    def _write_bad(self, work: BatchWork, name: str, frame: TableFrame) -> None:
        policy = self._spec.table(name).on_bad_rows
        if frame.bad is not None and policy is BadRowPolicy.QUARANTINE:
            with working(name, work.directory):
                frame.bad.write.parquet(f"{work.directory}/{BAD_ROWS_PREFIX}{name}")

    def run_series(self, works: Sequence[SeriesWork]) -> list[Outcome | HoldfastError]:
        """Compute results side by side; write each in its order and format."""
        # Users' functions run in the caller's thread, where their session is the active one.
        made = [(work, _tried(work, partial(self._make_series, work))) for work in works]
        with ThreadPoolExecutor(_WRITES_AT_ONCE, thread_name_prefix="series") as pool:
            return list(pool.map(self._write_made, made))

    def _write_made(self, one: tuple[SeriesWork, _Made | HoldfastError]) -> Outcome | HoldfastError:
        work, made = one
        if isinstance(made, HoldfastError):
            return made
        return _tried(work, partial(self._write_series, work, made))

    def _make_series(self, work: SeriesWork) -> _Made:
        series = next(one for one in self._spec.series if one.name == work.name)
        pins = self._pinned(work)
        frame = self._result_frame(work, pins)
        columns = tuple(frame.columns)
        with building(f"result {work.name}"):
            order = _order_of(series, frame)
            if _bytes_of(work) <= _ONE_TASK_BYTES:
                ordered = frame.repartition(1).sortWithinPartitions(*order)
            else:
                ordered = frame.orderBy(*order)
        return _Made(ordered, series.format, columns, pins)

    def _write_series(self, work: SeriesWork, made: _Made) -> Outcome:
        # Spark writes no line at all for a row whose only field is null.
        null = '""' if len(made.columns) == 1 else ""
        options = {**_CSV, "nullValue": null} if made.format == "csv" else {}
        with _persisted(made.pins):
            self._refuse_bad_rows(made.pins, work.pins)
            writer = made.ordered.write.options(**options).option(_ROWS_MAX, work.piece_rows_max)
            writer.save(f"{work.directory}/{work.name}", made.format)
        return Outcome(columns=made.columns)

    def _result_frame(self, work: SeriesWork, pins: Mapping[str, TableFrame]) -> DataFrame:
        placed = self._pipeline.placed()
        nothing = Evaluation(self._pipeline, self._spark, {})
        bases: dict[str, DataFrame] = {name: frame.good for name, frame in pins.items()}
        for name, paths in work.datasets.items():
            if not paths:
                bases[name] = nothing.frame(name)
                continue
            with working(name):
                rows = read_written(self._spark, paths)
            is_combine = placed[name].node.kind == "combine"
            bases[name] = nothing.merged(name, rows) if is_combine else rows
        return Evaluation(self._pipeline, self._spark, bases).frame(work.name)

    def _pinned(self, work: BatchWork | SeriesWork) -> dict[str, TableFrame]:
        return {
            name: read_table(self._spark, self._spec.table(name), sources)
            for name, sources in work.pins.items()
        }

    def stop(self) -> None:
        """Do nothing: whoever has the session stops it."""

    def abort(self) -> None:
        """Do nothing: the session is not ours to stop."""

    def close(self) -> None:
        """Do nothing: the session is not ours to stop."""


@contextmanager
def _persisted(tables: Mapping[str, TableFrame]) -> Iterator[None]:
    """Keep tables that are parted into good and bad rows, so that each is read once."""
    kept = [frame.raw.persist() for frame in tables.values() if frame.bad is not None]
    try:
        yield
    finally:
        for raw in kept:
            raw.unpersist()
