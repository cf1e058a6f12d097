"""Topics as tables, streams and sinks: every record once, whatever is run again or killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from holdfast._base.ids import START
from holdfast.errors import from_text
from holdfast.log.contract import Record
from holdfast.log.embedded import EmbeddedBackend

JOB = Path(__file__).with_name("topics_job.py")
RECORDS = 300
PARTITIONS = 3


class Log:
    """A log in a file, with a topic that holds numbers and an empty one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.backend = EmbeddedBackend(directory / "log.sqlite3")
        self.backend.start()
        self.url = self.backend.endpoint().url
        for topic in ("in", "out"):
            self.backend.create_topic(topic, partitions=PARTITIONS)

    def fill(self, start: int, stop: int) -> None:
        for partition in range(PARTITIONS):
            records = [
                Record(str(n).encode(), record_id=f"n{n}", key=b"k", headers={"n": str(n)})
                for n in range(start, stop)
                if n % PARTITIONS == partition
            ]
            self.backend.produce_batch("in", records, partition=partition)

    def values(self, topic: str = "out") -> Counter[str]:
        found = Counter[str]()
        for partition in range(PARTITIONS):
            for one in self.backend.fetch_batch(topic, START, count=10**6, partition=partition):
                found[one.record.value.decode()] += 1
        return found


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log(tmp_path)
    yield log
    log.backend.stop()


def seen(stop: int, start: int = 0) -> Counter[str]:
    return Counter(f"seen {n}" for n in range(start, stop))


def code_of(action: Callable[[], Any]) -> str:
    with pytest.raises(PySparkException) as raised:
        action()
    found = from_text(str(raised.value))
    return found.code if found is not None else f"none in {raised.value}"


def read(spark: SparkSession, log: Log, **options: str) -> DataFrame:
    return spark.read.format("holdfast").options(topic="in", url=log.url, **options).load()


def test_a_topic_is_a_table(spark: SparkSession, log: Log) -> None:
    log.fill(0, RECORDS)
    rows = read(spark, log).orderBy("partition", "offset").collect()
    assert [tuple(rows[0])[:4], rows[0].asDict()["value"]] == [("in", 0, 0, "n0"), b"0"]
    assert rows[0].key == b"k"
    assert rows[0].headers == {"n": "0"}
    assert Counter(int(row.value) for row in rows) == Counter(range(RECORDS))
    assert [row.offset for row in rows if row.partition == 1] == list(range(RECORDS // PARTITIONS))
    assert read(spark, log, startingOffsets="latest").count() == 0


def stream(spark: SparkSession, log: Log, **options: str) -> DataFrame:
    reader = spark.readStream.format("holdfast").options(topic="in", url=log.url, **options)
    shown = sf.concat(sf.lit("seen "), sf.col("value")).alias("value")
    return reader.load().select("record_id", shown)


def copy_now(frame: DataFrame, log: Log, **options: str) -> Any:
    """Copy what there is into the other topic; return the query, which has ended."""
    query = (
        frame.writeStream.format("holdfast")
        .options(topic="out", url=log.url, **{"idColumn": "record_id", **options})
        .option("checkpointLocation", str(log.directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def test_a_stream_reads_in_limited_batches_up_to_now(spark: SparkSession, log: Log) -> None:
    """At most so many records a batch; the lag is shown; a second query goes on where it was."""
    log.fill(0, RECORDS)
    frame = stream(spark, log, maxRecordsPerBatch="100", group="copy")
    query = copy_now(frame, log)
    batches = [one for one in query.recentProgress if one.numInputRows]
    assert [batch.numInputRows for batch in batches] == [100, 100, 100]
    ends = {str(partition): RECORDS // PARTITIONS for partition in range(PARTITIONS)}
    assert [places(batch.sources[0].latestOffset) for batch in batches] == [ends] * 3
    assert places(batches[-1].sources[0].endOffset) == ends
    assert log.values() == seen(RECORDS)
    log.fill(RECORDS, RECORDS + 9)
    copy_now(stream(spark, log, maxRecordsPerBatch="100", group="copy"), log)
    assert log.values() == seen(RECORDS + 9)
    committed = [log.backend.get_committed_offset("in", "copy", partition=n) for n in range(3)]
    assert min(committed) >= RECORDS // PARTITIONS


def places(text: str) -> dict[str, int]:
    found: dict[str, int] = json.loads(text)
    return found


def test_a_micro_batch_written_twice_appends_nothing_twice(spark: SparkSession, log: Log) -> None:
    """Spark's commit marker is lost, as in a power cut: the batch is written again, whole."""
    log.fill(0, RECORDS)
    copy_now(stream(spark, log), log)
    for marker in (log.directory / "checkpoint" / "commits").glob("*"):
        marker.unlink()
    ends = [log.backend.bounds("out", partition=n) for n in range(PARTITIONS)]
    query = copy_now(stream(spark, log), log)
    assert any(one.numInputRows == RECORDS for one in query.recentProgress), "it was not repeated"
    assert [log.backend.bounds("out", partition=n) for n in range(PARTITIONS)] == ends
    assert log.values() == seen(RECORDS)


def test_a_dropped_record_stops_the_stream(spark: SparkSession, log: Log) -> None:
    log.fill(0, 30)
    copy_now(stream(spark, log), log)
    log.fill(30, 60)
    log.backend.commit_offset("in", "others", log.backend.bounds("in")[1])
    log.backend.truncate_before("in", log.backend.bounds("in")[1])
    frame = stream(spark, log)
    assert code_of(lambda: copy_now(frame, log)) == "RECORDS_DROPPED"
    assert log.values() == seen(30)


def test_a_frame_written_twice_is_there_once(spark: SparkSession, log: Log) -> None:
    frame = spark.range(RECORDS).select("id", sf.concat(sf.lit("seen "), "id").alias("value"))
    for _ in range(2):
        writer = frame.repartition(4).write.format("holdfast").mode("append")
        writer.options(topic="out", url=log.url, idColumn="id").save()
    assert log.values() == seen(RECORDS)


def test_without_an_id_it_is_refused_or_at_least_once(spark: SparkSession, log: Log) -> None:
    frame = spark.range(5).select(sf.concat(sf.lit("seen "), "id").alias("value"))

    def write(**options: str) -> None:
        writer = frame.write.format("holdfast").mode("append").options(url=log.url, **options)
        writer.save()

    assert code_of(lambda: write(topic="out")) == "USAGE_INVALID"
    assert log.values() == Counter()
    for _ in range(2):
        write(topic="out", delivery="at-least-once")
    assert log.values() == seen(5) + seen(5)
    assert code_of(lambda: write(topic="other", delivery="at-least-once")) == "USAGE_INVALID"
    write(topic="other", delivery="at-least-once", partitions="1")
    assert log.backend.bounds("other") == (0, 5)


def test_what_makes_no_sense_is_refused(spark: SparkSession, log: Log) -> None:
    frame = spark.range(5).selectExpr("id", "cast(id as string) as value", "id / 2 as half")

    def writing(mode: str = "append", **options: str) -> str:
        chosen = {"topic": "out", "url": log.url, "idColumn": "id", **options}
        return code_of(frame.write.format("holdfast").mode(mode).options(**chosen).save)

    refused = [
        writing(idColumn="half"),
        writing(url=f"file://{log.directory}/missing"),
        writing(mode="overwrite"),
        code_of(spark.read.format("holdfast").option("topic", "in").load),
    ]
    assert refused == ["USAGE_INVALID"] * len(refused)
    nulls = spark.sql("select cast(null as string) as id, 'x' as value")
    writer = nulls.write.format("holdfast").mode("append")
    assert code_of(writer.options(topic="out", url=log.url, idColumn="id").save) == "USAGE_INVALID"
    assert log.values() == Counter()
    assert not (log.directory / "missing").exists()


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_killed_driver_copies_each_record_once(log: Log) -> None:
    """SIGKILL while micro-batches are written; started again until it ends by itself."""
    log.fill(0, RECORDS)
    kills = 0
    for goal in (80, None):
        process = subprocess.Popen([sys.executable, str(JOB), str(log.directory)])
        deadline = time.monotonic() + 90
        while process.poll() is None and (goal is None or log.values().total() < goal):
            assert time.monotonic() < deadline, (log.directory / "spark.log").read_text()[-2000:]
            time.sleep(0.02)
        if goal is not None and process.poll() is None:
            process.kill()
            kills += 1
        process.wait()
        assert log.values() <= seen(RECORDS)
    assert process.returncode == 0
    assert kills == 1
    assert log.values() == seen(RECORDS)
