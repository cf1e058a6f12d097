"""A run whose every batch waits at a gate, so that a test says what dies when.

    python -m tests.integration.gated_run ROOT LOG

is the engine, without Spark. A batch tells its number, from 0, below ROOT/gate, and goes on when it
may: when `let(root, number)` was called with a number that is not smaller.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.integration.processes import KILLS
from tests.integration.waiting import until
from tests.unit.plain_runs import Answers, Rows, answers_in, run_toy, state_of

from holdfast import Pipeline
from holdfast._base.crashpoint import arm_from_environment
from holdfast.config import Config
from holdfast.engine.executor import BatchWork, SeriesWork
from holdfast.errors import HoldfastError

ROWS = 24
ONE_BY_ONE = Config(chunk_bytes=8, batch_chunks=1, fetch_records=1)
"""Every row is a chunk, every chunk a batch, and every batch one reference from the log. So there
is a batch more than rows: that of the file's head."""
SALES = [(f"shop-{number % 3}", number) for number in range(ROWS)]
FAR = 10**6


def make_pipeline() -> Pipeline:
    """One table, a streamed result, a sum by shop."""
    pipe = Pipeline("gated", version="1")
    pipe.input("sales", schema="shop string, amount int")
    pipe.combine("totals", "sales", by=["shop"], sum=["amount"], count="n")

    @pipe.result("all", streamed=True)
    def everything(sales: Rows) -> Rows:
        return sales

    @pipe.result("report", order_by=["shop"])
    def report(totals: Rows) -> Rows:
        return totals

    return pipe


def oracle() -> dict[str, set[tuple[str, ...]]]:
    """The answers, from the rows alone. No row is there twice."""
    by_shop: dict[str, list[int]] = {}
    for shop, amount in SALES:
        by_shop.setdefault(shop, []).append(amount)
    return {
        "all": {(shop, str(amount)) for shop, amount in SALES},
        "report": {(shop, str(sum(some)), str(len(some))) for shop, some in by_shop.items()},
    }


def prepare(root: Path) -> None:
    """Write the input, and close the gate."""
    (root / "in").mkdir(parents=True)
    (root / "gate").mkdir()
    rows = "".join(f"{shop},{amount}\n" for shop, amount in SALES)
    (root / "in" / "sales.csv").write_text("shop,amount\n" + rows)


def let(root: Path, number: int = FAR) -> None:
    """Let batches up to `number` go on."""
    (root / "gate" / f"open-{number}").touch()


def has_come(root: Path, number: int) -> bool:
    """Tell whether batch `number` stands at the gate, or has passed it."""
    return any(_number(path) >= number for path in (root / "gate").glob("at-*"))


def check(root: Path) -> None:
    """The run is DONE, and every answer is the oracle's, each row once."""
    assert state_of(root) == ("DONE", None)
    found: Answers = answers_in(root / "out")
    assert {name: dict(rows) for name, rows in found.items()} == {
        name: dict.fromkeys(rows, 1) for name, rows in oracle().items()
    }


def check_broker_killed_throughout(
    root: Path,
    log: str,
    *,
    kill: Callable[[], None],
    start: Callable[[], None],
    kills: int = KILLS,
) -> None:
    """Kill the log's broker at the first `kills` batches of one run; the engine asks for the next
    reference while it is away. The engine lives through it all, and the answers are the oracle's.
    """
    prepare(root)
    command = [sys.executable, "-m", "tests.integration.gated_run", str(root), log]
    engine = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for number in range(kills):
            until(partial(has_come, root, number), f"batch {number} has come", timeout_s=90)
            kill()
            let(root, number)
            start()
        let(root)
        assert engine.communicate(timeout=120)[1] == ""
        assert engine.returncode == 0
    finally:
        if engine.poll() is None:
            engine.kill()
            engine.communicate()
    check(root)


def _number(path: Path) -> int:
    return int(path.name.partition("-")[2])


def main() -> None:
    root, log = Path(sys.argv[1]), sys.argv[2]
    gate = root / "gate"

    def before(work: BatchWork | SeriesWork) -> None:
        if isinstance(work, SeriesWork):
            return
        number = len(list((root / "state").rglob("all/part-0.jsonl")))
        (gate / f"at-{number}").touch()
        until(
            lambda: any(_number(path) >= number for path in gate.glob("open-*")),
            f"batch {number} may go on",
            timeout_s=120,
        )

    arm_from_environment()
    config = replace(ONE_BY_ONE, log=log)
    try:
        run_toy(root, pipeline=make_pipeline(), before=before, config=config)
    except HoldfastError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
