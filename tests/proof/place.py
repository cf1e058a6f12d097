"""A process with a session: runs cases and writes down what it saw, for the judge.

python -m tests.proof.place local|cluster|driver DIRECTORY PORT [CASE]
"""

from __future__ import annotations

import dataclasses
import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from tests.proof import asking, cases, cluster, driver
from tests.proof.cases import CASES, Case
from tests.proof.cluster import CLUSTER
from tests.proof.trial import Trial, Witness, label_of

from holdfast.spark.session import build_session

MASTERS = {"local": "local[4,4]", "cluster": "local-cluster[2,1,1024]", "driver": "local[8]"}
CONF = {
    # Local checkpoints need no fsync for what is shown here, and the executors little memory.
    "spark.driver.memory": "1g",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    # So that two plain asks of a self-join are not one by accident of a small table.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}


def main(place: str, directory: Path, port: int, only: str | None) -> None:
    for module in (asking, cases, cluster):  # the workers cannot import the tests
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    with session(place, directory) as spark:
        provider = Witness(port)
        if place == "driver":
            driver.run(spark, directory, provider, write)
            return
        for case in CASES if place == "local" else CLUSTER:
            if only is None or only in case.plan.case:
                for paid in (False, True):
                    run(spark, case, directory, provider, paid=paid)


@contextmanager
def session(place: str, directory: Path) -> Iterator[SparkSession]:
    spark = build_session(
        master=MASTERS[place],
        app_name=f"proof-{place}",
        conf=CONF,
        log_file=directory / f"spark-{place}.log",
        short=True,
    )
    yield spark
    spark.stop()


def run(spark: SparkSession, case: Case, directory: Path, provider: Witness, *, paid: bool) -> None:
    """Run a case once, and write down what it gave."""
    trial = Trial(spark, case.plan.case, directory, provider, paid=paid)
    try:
        case.run(trial)
    except Exception as error:  # plain Spark may fail, and the judge hears of it
        trial.seen.outcome = reason_of(error)
        (trial.directory / "error.txt").write_text(traceback.format_exc())
    write(directory, trial)


def write(directory: Path, trial: Trial) -> None:
    text = json.dumps(dataclasses.asdict(trial.seen))
    (directory / f"{label_of(trial.case, paid=trial.paid)}.json").write_text(text)


def reason_of(error: Exception) -> str:
    """Return in a few words why a job failed."""
    text = str(error)
    known = {
        "indeterminate": "aborted: indeterminate output",
        "HTTP 4": "failed: refused by the provider",
        "HTTP 5": "failed: refused by the provider",
        "RemoteDisconnected": "failed: reply lost",
        "TimeoutError": "failed: time-out",
    }
    return next((why for mark, why in known.items() if mark in text), text.splitlines()[0][:80])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), next(iter(sys.argv[4:]), None))
