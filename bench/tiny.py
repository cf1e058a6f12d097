"""A pipeline that computes next to nothing, so that what is left is the cost of running one.

Its stages return what they are given: they run on Spark and on the executor without Spark alike.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import Pipeline
from holdfast.config import DEFAULT, Config
from holdfast.engine.drive import Inputs, RunReport, drive
from holdfast.engine.events import Watcher, ignore
from holdfast.engine.executor import Executor
from holdfast.engine.state import hold
from holdfast.intake.listing import list_tables
from holdfast.store.rows import RunState
from holdfast.testing.plain import PlainExecutor

ROWS = 10
"""Rows of one chunk."""


def pipeline(durable_stages: int = 0) -> Pipeline:
    """One table, a chain of durable stages, one combine, one result."""
    pipe = Pipeline("tiny", version="1")
    pipe.input("sales", schema="shop string, amount int")
    last = "sales"

    def first(sales: Any) -> Any:
        return sales

    def second(first: Any) -> Any:
        return first

    def third(second: Any) -> Any:
        return second

    def fourth(third: Any) -> Any:
        return third

    for stage in (first, second, third, fourth)[:durable_stages]:
        pipe.stage(durable=True)(stage)
        last = stage.__name__
    pipe.combine("totals", last, by=["shop"], sum=["amount"])

    @pipe.result("report", order_by=["shop"])
    def report(totals: Any) -> Any:
        return totals

    return pipe


def write_chunks(directory: Path, count: int, rows: int = ROWS) -> Path:
    """Write one small file per chunk."""
    directory.mkdir(parents=True)
    text = "shop,amount\n" + "".join(f"s{n % 2},{n}\n" for n in range(rows))
    for number in range(count):
        (directory / f"sales_{number:04d}.csv").write_text(text, encoding="ascii")
    return directory


def run(
    root: Path,
    data: Path,
    *,
    pipe: Pipeline,
    executor: Callable[[Pipeline], Executor] = PlainExecutor,
    config: Config = DEFAULT,
    watch: Watcher = ignore,
) -> RunReport:
    """Run to DONE below `root`, which has no state yet."""
    spec = pipe.spec()
    with hold(root / "state", config) as held:
        report = drive(
            held,
            spec,
            lambda: Inputs(list_tables(data, spec.tables)),
            lambda: executor(pipe),
            out=root / "out",
            config=config,
            watch=watch,
        )
    assert report.state is RunState.DONE
    return report
