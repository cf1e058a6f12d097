"""An executor without Spark: frames are lists of rows, files are CSV, JSON lines and Parquet.

It runs the same pipelines through the same engine, so the crash loop can try thousands of crashes
in the time one Spark session takes to start. Stages get and return lists of dicts of strings.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast._base.files import os_errors
from holdfast.engine.executor import BatchWork, Outcome, SeriesWork, Source
from holdfast.engine.graph import NodeKind
from holdfast.engine.spec import OutputKind
from holdfast.errors import BadRows, HoldfastError, InputChanged
from holdfast.intake.ddl import column_names
from holdfast.pipeline import Aggregates, Pipeline

Rows = list[dict[str, Any]]


class PlainExecutor:
    """Does works in plain Python. `before` is called with each work first, to fail on purpose."""

    replaceable = False

    def __init__(
        self, pipeline: Pipeline, before: Callable[[BatchWork | SeriesWork], None] | None = None
    ) -> None:
        """Run `pipeline`, whose functions take and return lists of rows."""
        self._pipeline, self._spec, self._before = pipeline, pipeline.spec(), before

    def check(self) -> None:
        """Do nothing: plain functions show what is wrong when they are called."""

    def run_batch(self, work: BatchWork) -> Outcome:
        """Write every output of the segment whose table has chunks in this work."""
        if self._before:
            self._before(work)
        bases = {table: self._read(table, some) for table, some in work.chunks.items()}
        rows = {table: len(some) for table, some in bases.items()}
        bases |= {table: self._read(table, some) for table, some in work.pins.items()}
        for output in self._spec.segments[work.segment - 1].outputs:
            if output.table not in work.chunks:
                continue
            if output.kind is OutputKind.PARTIAL:
                made = self._partial(output.name, bases)
            else:
                made = self._frame(output.name, bases)
            is_result = output.kind is OutputKind.STREAMED
            rows_max = work.piece_rows_max if is_result else max(len(made), 1)
            lines = list(map(json.dumps, made))
            _write_lines(Path(work.directory, output.name), "jsonl", lines, rows_max)
        return Outcome(rows=rows)

    def run_series(self, works: Sequence[SeriesWork]) -> list[Outcome | HoldfastError]:
        """Compute each result and write it in its order and format."""
        outcomes: list[Outcome | HoldfastError] = []
        for work in works:
            try:
                outcomes.append(self._run_series(work))
            except HoldfastError as error:
                outcomes.append(error)
        return outcomes

    def _run_series(self, work: SeriesWork) -> Outcome:
        if self._before:
            self._before(work)
        series = next(one for one in self._spec.series if one.name == work.name)
        bases: dict[str, Rows] = {}
        for name, paths in work.datasets.items():
            rows = [row for path in paths for row in _read_lines(Path(path))]
            is_combine = self._pipeline.placed()[name].node.kind is NodeKind.COMBINE
            bases[name] = self._merge(name, rows) if is_combine else rows
        bases |= {table: self._read(table, some) for table, some in work.pins.items()}
        result = self._frame(work.name, bases)
        columns = tuple(result[0]) if result else ("empty",)
        order = [*series.order_by, *(c for c in columns if c not in series.order_by)]
        result.sort(key=lambda row: [str(row[column]) for column in order])
        directory = Path(work.directory, work.name)
        if series.format == "parquet":
            _write_parquet(directory, columns, result, work.piece_rows_max)
        else:
            lines = [_csv_line([row[column] for column in columns]) for row in result]
            _write_lines(directory, "csv", lines, work.piece_rows_max)
        return Outcome(columns=columns)

    def stop(self) -> None:
        """Do nothing: a work takes no time."""

    def abort(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def _read(self, table: str, sources: tuple[Source, ...]) -> Rows:
        columns = column_names(self._spec.table(table).schema or "line string")
        return [row for source in sources for row in _read_source(source, columns)]

    def _frame(self, name: str, bases: dict[str, Rows]) -> Rows:
        if name in bases:
            return bases[name]
        node = self._pipeline.placed()[name].node
        if node.table is not None:
            return []
        function = self._pipeline.definition(name).function
        parents = [self._frame(parent, bases) for parent in node.parents]
        made: Rows = function(*parents) if function else []
        return made

    def _partial(self, name: str, bases: dict[str, Rows]) -> Rows:
        source = self._frame(self._pipeline.placed()[name].node.parents[0], bases)
        definition = self._pipeline.definition(name)
        if definition.aggregates is None:
            made: Rows = definition.function(source) if definition.function else []
            return made
        count = definition.aggregates.count
        counted = [{**row, count: 1} for row in source] if count else source
        return _group(definition.aggregates, counted)

    def _merge(self, name: str, rows: Rows) -> Rows:
        definition = self._pipeline.definition(name)
        if definition.aggregates is None:
            made: Rows = definition.merge(rows) if definition.merge else []
            return made
        return _group(definition.aggregates, rows)


def _group(aggregates: Aggregates, rows: Rows) -> Rows:
    """Sum by key. Only sums and counts: the crash loop needs no more."""
    columns = [*aggregates.sum, *([aggregates.count] if aggregates.count else [])]
    groups: dict[tuple[str, ...], list[int]] = {}
    for row in rows:
        totals = groups.setdefault(tuple(row[c] for c in aggregates.by), [0] * len(columns))
        for place, column in enumerate(columns):
            totals[place] += int(row[column])
    return [
        dict(zip([*aggregates.by, *columns], [*key, *totals], strict=True))
        for key, totals in sorted(groups.items())
    ]


def _read_source(source: Source, columns: list[str]) -> Rows:
    path = Path(source.path)
    if source.format == "parquet":  # a durable stage's output, which here is JSON lines
        return _read_lines(path)
    if not path.is_file():
        raise InputChanged(path=source.path, what="has vanished")
    data = path.read_bytes()[source.start : source.stop]
    if sha256(data).hexdigest() != source.checksum:
        raise InputChanged(path=source.path, what="was rewritten")
    lines = list(csv.reader(io.StringIO(data.decode())))
    rows = lines[1:] if source.start == 0 else lines
    for number, row in enumerate(rows, 2):
        if len(row) != len(columns):
            reason = f"{len(row)} fields, {len(columns)} wanted"
            raise BadRows(path=source.path, line=number, reason=reason, count=1)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _read_lines(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _write_lines(directory: Path, suffix: str, lines: Sequence[str], rows_max: int) -> None:
    """Write files of at most so many rows: one of none where there are none, as Spark does."""
    with os_errors(directory):
        directory.mkdir(parents=True)
        for number, first in enumerate(range(0, max(len(lines), 1), rows_max)):
            some = lines[first : first + rows_max]
            text = "".join(f"{line}\n" for line in some)
            (directory / f"part-{number}.{suffix}").write_text(text)


def _write_parquet(directory: Path, columns: Sequence[str], rows: Rows, rows_max: int) -> None:
    with os_errors(directory):
        directory.mkdir(parents=True)
        for number, first in enumerate(range(0, max(len(rows), 1), rows_max)):
            some = rows[first : first + rows_max]
            table = pa.table({column: [row[column] for row in some] for column in columns})
            pq.write_table(table, directory / f"part-{number}.parquet")


def _csv_line(values: list[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(values)
    return text.getvalue()
