"""The cases that share one local session: what Spark repeats, and what providers do.

Each is written once and run twice, as plain Spark and with pay_once: `Trial.buy` is the difference.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from tests.proof.books import Plan
from tests.proof.trial import ROWS, WATCH_S, Trial, until

from holdfast import Limits, OnTrouble

NARROW = Limits(max_in_flight=8, intent_ahead=8)
WINDOW = NARROW.max_in_flight + NARROW.intent_ahead
BAD = frozenset({"10", "11", "12"})
"""The keys that the provider treats badly, where it does."""


@dataclass(frozen=True)
class Case:
    """What to run, and what is expected of it."""

    plan: Plan
    run: Callable[[Trial], None]


CASES: list[Case] = []


def case(
    name: str, *, rows: int = ROWS, slots: frozenset[str] | None = None, **plan: Any
) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    """Enter a function into the table of cases."""
    found = frozenset(map(str, range(rows))) if slots is None else slots

    def enter(run: Callable[[Trial], None]) -> Callable[[Trial], None]:
        CASES.append(Case(Plan(name, rows, found, **plan), run))
        return run

    return enter


# What ordinary code makes Spark evaluate twice


@case("UDF and filter")
def udf_and_filter(t: Trial) -> None:
    t.style = "udf"
    t.see(t.buy(t.ids()).filter("answer != 'no'"))


@case("struct UDF and filter")
def struct_and_filter(t: Trial) -> None:
    t.style = "struct"
    t.see(t.buy(t.ids()).filter("answer != 'no'"))


@case("orderBy")
def order_by(t: Trial) -> None:
    t.see(t.buy(t.ids()).orderBy("answer"))


@case("repartitionByRange")
def repartition_by_range(t: Trial) -> None:
    t.see(t.buy(t.ids()).repartitionByRange(4, "answer"))


@case("union with itself")
def union(t: Trial) -> None:
    out = t.buy(t.ids())
    t.see(out.union(out))


@case("self-join")
def self_join(t: Trial) -> None:
    t.rules(delay_s=0.01)
    out = t.buy(t.ids())
    both = out.join(out.select("id", sf.col("answer").alias("other")), "id").persist()
    t.see(both)
    t.see(both, answer="other")
    both.unpersist()


@case("two actions")
def two_actions(t: Trial) -> None:
    out = t.buy(t.ids())
    assert out.count() == ROWS
    t.see(out)


@case("two actions at the same time")
def two_actions_at_once(t: Trial) -> None:
    t.rules(delay_s=0.01)
    out = t.buy(t.ids())
    actions = [t.beside(lambda: t.see(out), f"action {number}") for number in range(2)]
    for action in actions:
        action.join()


@case(
    "two chained paid steps in one task",
    slots=frozenset(f"{step}{n}" for n in range(ROWS) for step in ("", "2:")),
)
def chained(t: Trial) -> None:
    t.limits = Limits(max_in_flight=2, intent_ahead=1)
    out = t.buy(t.buy(t.ids(parts=1)), step=2, answer="more").collect()
    t.seen.add(out)
    t.seen.add(out, "more", "2:")


@case(
    "tasks sharing keys in opposite orders", rows=2 * ROWS, slots=frozenset(map(str, range(ROWS)))
)
def opposite_orders(t: Trial) -> None:
    t.rules(delay_s=0.005)
    t.limits = NARROW
    down = t.spark.range(ROWS - 1, -1, -1, 1)
    t.see(t.buy(t.ids(parts=1).union(down)))


@case("rows with equal keys", slots=frozenset(map(str, range(10))))
def equal_keys(t: Trial) -> None:
    t.see(t.buy(t.ids().select((sf.col("id") % 10).alias("id"))))


@case("limit and show", rows=2000, partial=True)
def limit(t: Trial) -> None:
    t.rules(bytes=4096)
    t.limits = NARROW
    out = t.buy(t.ids(2000, 1))
    t.see(out.limit(5))
    t.seen.add(out.take(5))


def cancel_half_way(t: Trial) -> None:
    """Start the job, cancel it when some of its calls are answered and others are on their way."""
    t.rules(hold_after=30)
    job = t.beside(t.buy(t.ids()).collect, "to be cancelled")
    t.wait(lambda seen: seen["begun"] > 30 and seen["answered"] == 30)
    job.cancel()
    t.rules()
    job.join(may_fail=True)
    t.wait(lambda seen: seen["in_flight"] == 0)
    assert job.error is not None, "the job was not cancelled"


@case("cancelled job, run again")
def cancelled(t: Trial) -> None:
    cancel_half_way(t)
    t.see(t.buy(t.ids()))


@case("changed partitions and order on resume")
def changed_layout(t: Trial) -> None:
    cancel_half_way(t)
    t.see(t.buy(t.ids().orderBy(sf.desc("id")).repartition(5)))


# Crashes below the driver


def fail_first(at: int) -> Callable[[DataFrame], DataFrame]:
    """Return a step behind the paid one that fails its task's first attempt at a row."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        first = context is not None and context.attemptNumber() == 0
        for batch in batches:
            if first and at in batch.column("id").to_pylist():
                raise RuntimeError("the task fails half way")
            yield batch

    return lambda frame: frame.mapInArrow(run, frame.schema)


@case("task failure half way")
def task_failure(t: Trial) -> None:
    t.see(t.buy(t.ids(parts=1)).transform(fail_first(ROWS // 2)))


@case("Python worker SIGKILL", again="in doubt", most=WINDOW)
def worker_killed(t: Trial) -> None:
    t.rules(acts={"60": ["die"]}, delay_s=0.002)
    t.limits = NARROW
    t.see(t.buy(t.ids(parts=1)))


@case("SIGSTOP, a second job, SIGCONT")
def zombie(t: Trial) -> None:
    t.rules(hold_after=20)
    out = t.buy(t.ids(parts=1))
    first = t.beside(lambda: t.see(out), "stopped")
    stopped = t.wait(lambda seen: seen["begun"] > 20 and seen["answered"] == 20)["pids"]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    second = t.beside(lambda: t.see(out), "waiting")
    until(second.tasks, lambda running: running > 0)
    before = t.calls()
    time.sleep(WATCH_S)
    assert not t.paid or t.calls() == before, "somebody bought what a living owner has claimed"
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    t.rules()
    first.join()
    second.join()


# Streaming


def stream(t: Trial, sink: Callable[[DataFrame, int], None]) -> None:
    """Run a stream over the input to its end, its checkpoint beside the trial."""
    source = t.directory / "in"
    if not source.exists():
        t.ids().write.json(str(source))
    query = (
        t.buy(t.spark.readStream.schema("id long").json(str(source)))
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(t.directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def one_action(t: Trial) -> Callable[[DataFrame, int], None]:
    return lambda batch, _: t.see(batch)


@case("foreachBatch with two actions")
def for_each_batch(t: Trial) -> None:
    def sink(batch: DataFrame, _: int) -> None:
        assert batch.count() == ROWS
        t.see(batch)

    stream(t, sink)


@case("lost commit marker of a checkpoint")
def lost_marker(t: Trial) -> None:
    stream(t, one_action(t))
    commits = t.directory / "checkpoint" / "commits"
    for path in commits.iterdir():
        path.unlink()
    stream(t, one_action(t))


@case("deleted checkpoint")
def deleted_checkpoint(t: Trial) -> None:
    stream(t, one_action(t))
    shutil.rmtree(t.directory / "checkpoint")
    stream(t, one_action(t))


# Providers in trouble


def troubled(t: Trial, *acts: str) -> None:
    t.rules(acts={key: list(acts) for key in BAD})
    t.see(t.buy(t.ids()))


@case("reply swallowed after the charge: retry", again="in doubt", most=len(BAD), keys=BAD)
def swallowed_retry(t: Trial) -> None:
    troubled(t, "swallow")


@case("reply swallowed after the charge: park", again="in doubt", keys=BAD, empty=BAD)
def swallowed_park(t: Trial) -> None:
    t.trouble = lambda ask: OnTrouble(unknown="park")
    troubled(t, "swallow")


@case("reply swallowed after the charge: reconcile", again="in doubt", keys=BAD)
def swallowed_reconcile(t: Trial) -> None:
    t.trouble = lambda ask: OnTrouble(unknown=ask.find)
    troubled(t, "swallow")


@case("provider answers 429 twice", again="refused", keys=BAD)
def busy(t: Trial) -> None:
    troubled(t, "429", "429")


@case("provider answers 500 once", again="refused", keys=BAD)
def broken(t: Trial) -> None:
    troubled(t, "500")


@case("provider never answers: time-out", again="in doubt", most=len(BAD), keys=BAD)
def timed_out(t: Trial) -> None:
    t.timeout_s = 1.0
    t.limits = Limits(timeout_s=1.0)
    troubled(t, "hang")


@case("provider refuses for good: dead letter", keys=BAD, empty=BAD)
def refused(t: Trial) -> None:
    t.trouble = lambda ask: OnTrouble(error="dead_letter")
    t.rules(acts={key: ["400"] * 99 for key in BAD})
    out = t.buy(t.ids())
    t.see(out)
    t.see(out)
