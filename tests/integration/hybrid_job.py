"""Durable, memory, durable: a pipeline that a test kills in each part of the way.

    python -m tests.integration.hybrid_job ROOT URL [POINT]

is the engine, without Spark. References to the two durable outputs travel over URL, if it is not
empty; the stage between them is light. It dies by SIGKILL at the first POINT behind the barrier of
the first segment, or, where POINT is `hop`, inside the light stage.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from tests.unit.plain_runs import Rows, run_toy

from holdfast import Pipeline
from holdfast._base import crashpoint
from holdfast.config import Config, StageOptions
from holdfast.engine.events import Event, EventKind
from holdfast.engine.state import StateDirectory, look

HOP = "hop"
ROWS = 24
SMALL = Config(chunk_bytes=16, batch_chunks=3, fetch_records=4)
"""Several batches in each segment, and more references in a fetch than in a batch."""


def make_pipeline(inside: list[str]) -> Pipeline:
    """Two expensive stages with a light one between them. A word in `inside` kills there."""
    pipe = Pipeline("hybrid", version="1")
    pipe.input("sales", schema="shop string, amount int")

    @pipe.stage(durable=True)
    def priced(sales: Rows) -> Rows:
        return [{**row, "price": 3 * int(row["amount"])} for row in sales]

    @pipe.stage
    def large(priced: Rows) -> Rows:
        if inside:
            os.kill(os.getpid(), signal.SIGKILL)
        return [row for row in priced if int(row["price"]) % 4]

    @pipe.stage(durable=True)
    def graded(large: Rows) -> Rows:
        return [{**row, "grade": int(row["price"]) % 5} for row in large]

    pipe.combine("totals", graded, by=["shop", "grade"], sum=["price"], count="n")

    @pipe.result("all", streamed=True, order_by=["amount"])
    def everything(graded: Rows) -> Rows:
        return graded

    @pipe.result("report", order_by=["shop", "grade"])
    def report(totals: Rows) -> Rows:
        return totals

    return pipe


def prepare(root: Path) -> None:
    """Write the input."""
    (root / "in").mkdir(parents=True)
    rows = "".join(f"shop-{number % 3},{number}\n" for number in range(ROWS))
    (root / "in" / "sales.csv").write_text("shop,amount\n" + rows)


def stages(url: str) -> dict[str, StageOptions]:
    """The hybrid mode: durable outputs over `url`, the light stage in memory."""
    log = url or None
    return {
        "priced": StageOptions(log=log, batch_size=2),
        "large": StageOptions(log="memory://hop"),
        "graded": StageOptions(log=log, batch_size=2),
    }


def _is_behind_the_first_barrier(state: Path) -> bool:
    if not StateDirectory(state).store.is_file():
        return False
    with look(state) as (_, store):
        return any(1 in store.read_barriers(run.run_id) for run in store.list_runs())


def main() -> None:
    root, url, *points = Path(sys.argv[1]), *sys.argv[2:]

    def arm() -> None:
        for point in points:
            if point != HOP:
                crashpoint.arm(point, 1)

    def watch(event: Event) -> None:
        if event.kind is EventKind.BARRIER and event.name == "1":
            arm()

    if _is_behind_the_first_barrier(root / "state"):
        arm()
    inside = [point for point in points if point == HOP]
    run_toy(
        root,
        pipeline=make_pipeline(inside),
        config=replace(SMALL, stages=stages(url)),
        watch=watch,
    )


if __name__ == "__main__":
    main()
