"""The cases that need executors of their own: `local-cluster`, whose executors are processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from tests.proof.asking import kill_executor
from tests.proof.books import Plan
from tests.proof.cases import NARROW, WINDOW, Case
from tests.proof.trial import ROWS, Trial

ALL = frozenset(map(str, range(ROWS)))


def executor_killed(t: Trial) -> None:
    """The executor's JVM dies at a call; both of its Python workers lose their parent."""
    t.rules(acts={"60": ["die-executor"]}, delay_s=0.002)
    t.limits = NARROW
    t.see(t.buy(t.ids()))


def indeterminate(t: Trial) -> None:
    """An executor dies after answers were shuffled and one result task has finished.

    Spark computes the lost answers again. A provider's text differs from call to call, which Spark
    finds by its checksums: it must stop, because a finished task has read the first answers.
    """
    t.limits = NARROW
    marker = t.directory / "killed"

    def die(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        third = context is not None and context.partitionId() == 3
        if third and not os.path.exists(marker):
            Path(marker).touch()
            kill_executor()
        yield from batches

    out = t.buy(t.ids(parts=4)).repartition(4, "answer")
    t.see(out.mapInArrow(die, out.schema))


CLUSTER = [
    Case(Plan("executor SIGKILL", ROWS, ALL, again="in doubt", most=2 * WINDOW), executor_killed),
    Case(Plan("executor SIGKILL after a shuffle", ROWS, ALL), indeterminate),
]
