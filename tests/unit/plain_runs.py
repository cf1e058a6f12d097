"""Small pipelines driven on the Spark-free executor, and looks behind the engine's back."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
from tests.crash.workloads import SMALL, make_pipeline, write_inputs

from holdfast import Pipeline
from holdfast._base.ids import RunId
from holdfast.config import Config
from holdfast.engine.drive import Inputs, RunReport, drive
from holdfast.engine.events import Watcher, ignore
from holdfast.engine.executor import BatchWork, SeriesWork
from holdfast.engine.state import StateDirectory, hold
from holdfast.intake.listing import list_tables
from holdfast.store.contract import Store
from holdfast.store.rows import Run
from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite.pages import load_checksums
from holdfast.testing.plain import PlainExecutor

Before = Callable[[BatchWork | SeriesWork], None]
Rows = list[dict[str, Any]]
Answers = dict[str, Counter[tuple[str, ...]]]


def run_toy(
    root: Path,
    *,
    pipeline: Pipeline | None = None,
    before: Before | None = None,
    files: Mapping[str, Sequence[Path]] | None = None,
    out: Path | None = None,
    config: Config = SMALL,
    watch: Watcher = ignore,
) -> RunReport:
    """Run the toy pipeline (or another) below `root`: in/, state/, out/. Called again, resume."""
    if pipeline is None:
        write_inputs(root / "in")
    pipeline = (pipeline or make_pipeline()).with_stages(config.stages)
    spec = pipeline.spec()

    def inputs() -> Inputs:
        if files is not None:
            return Inputs(files)
        return Inputs(list_tables(root / "in", spec.tables, ignore_unknown=True))

    with hold(root / "state", config) as held:
        return drive(
            held,
            spec,
            inputs,
            lambda: PlainExecutor(pipeline, before),
            out=out or root / "out",
            config=config,
            watch=watch,
        )


def tiny_pipeline(name: str = "tiny") -> Pipeline:
    """One table, one streamed result, one combine with its report: one segment."""
    pipe = Pipeline(name, version="1")
    pipe.input("sales", schema="shop string, amount int")
    pipe.combine("totals", "sales", by=["shop"], sum=["amount"])

    @pipe.result("all_sales", streamed=True)
    def all_sales(sales: Rows) -> Rows:
        return sales

    @pipe.result("report", order_by=["shop"])
    def report(totals: Rows) -> Rows:
        return totals

    return pipe


def write_sales(root: Path, *, rows: int = 4, name: str = "sales.csv") -> Path:
    """Write one input file of the tiny pipeline."""
    path = root / "in" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("shop,amount\n" + "".join(f"s{n % 2},{n}\n" for n in range(rows)))
    return path


def answers_in(out: Path) -> Answers:
    """Return the exported rows by result, with multiplicity."""
    found: Answers = {}
    for path in sorted(out.glob("*.csv")):
        with path.open() as file:
            found[path.stem] = Counter(tuple(row) for row in list(csv.reader(file))[1:])
    return found


@contextmanager
def stored(root: Path) -> Iterator[tuple[Store, Run]]:
    """Open the store of a state below `root`, with the one run that is in it."""
    store = SqliteStore.open(StateDirectory(root / "state").store)
    try:
        (run,) = store.list_runs()
        yield store, run
    finally:
        store.close()


def state_of(root: Path) -> tuple[str, str | None]:
    """Return the state of the one run, and its error."""
    with stored(root) as (_, run):
        return run.state, run.error


def run_id_in(root: Path) -> RunId:
    """Return the id of the one run."""
    with stored(root) as (_, run):
        return run.run_id


def rows_of(root: Path, *, apart: tuple[str, ...] = ("lease",)) -> dict[str, list[Any]]:
    """Return every row of every table of the store, but those of the tables `apart`."""
    connection = apsw.Connection(str(root / "state" / "store.sqlite3"))
    try:
        names = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            if name not in apart and not name.startswith("sqlite_")
        ]
        return {
            name: sorted(connection.execute(f"SELECT * FROM {name}"), key=repr) for name in names
        }
    finally:
        connection.close()


def alter_store(root: Path, *statements: str) -> None:
    """Change the store behind everyone's back, with pages that fit their checksums."""
    connection = apsw.Connection(str(root / "state" / "store.sqlite3"), vfs=load_checksums())
    try:
        for statement in statements:
            connection.execute(statement)
            assert connection.changes() > 0, f"nothing was altered by {statement}"
    finally:
        connection.close()


def files_below(root: Path) -> dict[str, tuple[bytes, int]]:
    """Return every file's bytes and modification time, but those of the store and the lock."""
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.name.startswith(("store.sqlite3", "holdfast.lock"))
    }


def flip_byte(path: Path) -> None:
    """Alter one byte of a file; its size stays."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x01
    path.write_bytes(data)
