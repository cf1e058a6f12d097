"""A stream from one topic to another in a process of its own, to be killed.

python topics_job.py DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import functions as sf

from holdfast.spark.session import build_session


def main(directory: Path) -> None:
    url = (directory / "log.sqlite3").as_uri()
    spark = build_session(
        master="local[2]",
        app_name="topics",
        conf={},
        log_file=directory / "spark.log",
        short=True,
    )
    numbers = (
        spark.readStream.format("holdfast")
        .options(topic="in", url=url, maxRecordsPerBatch="40", group="job")
        .load()
    )
    query = (
        numbers.select("record_id", sf.concat(sf.lit("seen "), sf.col("value")).alias("value"))
        .writeStream.format("holdfast")
        .options(topic="out", url=url, idColumn="record_id")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
