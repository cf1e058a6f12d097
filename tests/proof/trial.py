"""A trial: one case, run once, as plain Spark or with pay_once. What both have in common."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession
from tests.proof.asking import Ask, plain_arrow, plain_struct, plain_udf, post
from tests.proof.books import Seen

from holdfast import Limits, OnTrouble, pay_once

ROWS = 100
PLAIN: dict[str, Any] = {"arrow": plain_arrow, "udf": plain_udf, "struct": plain_struct}
WATCH_S = 1.0
"""How long a trial looks whether somebody who must wait does so."""
PATIENCE_S = 180.0
"""How long a trial waits for what must come. Longer than any wait on a loaded machine."""


class Witness:
    """A witness process, and how to talk to one."""

    def __init__(self, port: int) -> None:
        self.port = port

    def rules(self, label: str, **rules: Any) -> None:
        """Say how the calls of a case are answered from now on."""
        post(self.port, "/case", {"case": label, **rules})

    def state(self, label: str) -> dict[str, Any]:
        """Return how many calls of a case were begun, are in flight, and who made them."""
        return post(self.port, f"/state?{label}", {})

    def wait(self, label: str, enough: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the calls of a case have come so far."""
        found: dict[str, Any] = until(lambda: self.state(label), enough)
        return found


@contextmanager
def witness(log: Path) -> Iterator[Witness]:
    """Start a witness for as long as the block lasts."""
    program = Path(__file__).with_name("witness.py")
    with subprocess.Popen(
        [sys.executable, "-I", str(program), str(log)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield Witness(int(process.stdout.readline()))
        assert process.stdin is not None
        process.stdin.close()


def until(look: Callable[[], Any], enough: Callable[[Any], bool]) -> Any:
    """Look until what is seen is enough."""
    deadline = time.monotonic() + PATIENCE_S
    while not enough(found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not enough after {PATIENCE_S} s: {found}")
        time.sleep(0.02)
    return found


class Trial:
    """One run of a case."""

    def __init__(
        self, spark: SparkSession, case: str, directory: Path, provider: Witness, *, paid: bool
    ) -> None:
        self.spark, self.case, self.paid, self._witness = spark, case, paid, provider
        self.label = label_of(case, paid=paid)
        self.directory = directory / self.label
        self.directory.mkdir(parents=True, exist_ok=True)
        self.url = url_of(directory, case)
        self.seen = Seen()
        self.style = "arrow"
        self.timeout_s = 600.0
        self.limits: Limits | None = None
        self.trouble: Callable[[Ask], OnTrouble] = lambda ask: OnTrouble()

    def ids(self, rows: int = ROWS, parts: int = 2) -> DataFrame:
        """Return the input: ids, in so many partitions."""
        return self.spark.range(0, rows, 1, parts)

    def buy(self, frame: DataFrame, step: int = 1, answer: str = "answer") -> DataFrame:
        """Append the paid column."""
        prefix = "" if step == 1 else f"{step}:"
        if not self.paid:
            ask = Ask(self._witness.port, self.label, prefix=prefix, timeout_s=self.timeout_s)
            frame = frame.transform(PLAIN[self.style](ask, answer))
            return frame
        ask = Ask(self._witness.port, self.label, prefix=prefix)
        return frame.transform(
            pay_once(
                ask,
                name="ask" if step == 1 else f"ask{step}",
                key="id",
                inputs=["id"],
                returns=f"{answer} string",
                ledger=self.url,
                version="1",
                limits=self.limits,
                trouble=self.trouble(ask),
            )
        )

    def see(self, frame: DataFrame, **columns: str) -> None:
        """Run an action, and keep its answers."""
        self.seen.add(frame.collect(), **columns)

    def rules(self, **rules: Any) -> None:
        """Say how the witness answers from now on."""
        self._witness.rules(self.label, **rules)

    def wait(self, enough: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the witness has seen so much."""
        return self._witness.wait(self.label, enough)

    def calls(self) -> int:
        """Return how many calls the witness has seen."""
        return int(self._witness.state(self.label)["begun"])

    def beside(self, work: Callable[[], Any], group: str = "beside") -> Running:
        """Run an action in a thread of its own, as a job group that can be cancelled."""
        return Running(self.spark, work, group)


class Running:
    """An action on its way."""

    def __init__(self, spark: SparkSession, work: Callable[[], Any], group: str) -> None:
        self._spark, self._work, self.group = spark, work, group
        self.error: BaseException | None = None
        self._thread = InheritableThread(self._run, session=spark)
        self._thread.start()

    def _run(self) -> None:
        self._spark.sparkContext.setJobGroup(self.group, self.group, interruptOnCancel=True)
        try:
            self._work()
        except Exception as error:  # the trial decides what it means
            self.error = error

    def tasks(self) -> int:
        """Return how many of its tasks run."""
        tracker = self._spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self.group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        return sum(stage.numActiveTasks for stage in stages if stage)

    def cancel(self) -> None:
        """Cancel it, as a user does."""
        self._spark.sparkContext.cancelJobGroup(self.group)

    def join(self, *, may_fail: bool = False) -> None:
        """Wait for its end."""
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            raise TimeoutError(f"{self.group} hangs")
        if self.error is not None and not may_fail:
            raise self.error


def label_of(case: str, *, paid: bool) -> str:
    """Return the witness's name of a run."""
    return f"{case.replace(' ', '-').replace('/', '-')}-{'paid' if paid else 'plain'}"


def url_of(directory: Path, case: str) -> str:
    """Return the ledger of a case."""
    return f"file://{directory}/{label_of(case, paid=True)}/ledger"
