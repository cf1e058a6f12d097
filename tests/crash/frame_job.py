"""A notebook's job, as a script: a DataFrame input, a durable stage, the caller's own session.

Usage: frame_job.py DIRECTORY [kill-jvm]. Prints the report's state, or the code of the error.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from holdfast import HoldfastError, Pipeline
from holdfast._base.crashpoint import arm_from_environment
from holdfast.config import Config
from holdfast.spark.session import build_session

ROWS = 300
root = Path(sys.argv[1])
kill_jvm = "kill-jvm" in sys.argv

pipe = Pipeline("frames", version="1")
pipe.input("numbers", schema="id long, text string")


@pipe.stage(durable=True)
def halved(numbers: DataFrame) -> DataFrame:
    if kill_jvm:
        for child in psutil.Process().children(recursive=True):
            if "java" in child.name():
                os.kill(child.pid, signal.SIGKILL)
                child.wait()
    return numbers.repartition(3).where("id % 2 = 0")


@pipe.result("even", order_by=["id"])
def even(halved: DataFrame) -> DataFrame:
    return halved


def main() -> None:
    arm_from_environment()
    spark = build_session(
        master="local[2]", app_name="frames", conf={}, log_file=root / "spark.log", short=True
    )
    # Another order and another number of partitions each time: what was written must stand.
    frame = spark.range(ROWS).withColumn("text", F.concat(F.lit("r"), "id")).orderBy(F.rand())
    marks = root / "evaluated"
    marks.mkdir(exist_ok=True)
    frame = frame.repartition(2 + len(list(marks.iterdir())))
    (marks / str(os.getpid())).touch()
    small = Config(batch_bytes=1)
    try:
        report = pipe.run(
            spark, inputs={"numbers": frame}, state=root / "state", out=root / "out", config=small
        )
    except HoldfastError as error:
        sys.stdout.write(error.code + "\n")
        sys.stdout.flush()
        os._exit(3)
    sys.stdout.write(f"{report.state}\n")


main()
