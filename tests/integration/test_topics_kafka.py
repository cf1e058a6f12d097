"""Topics on a real Kafka, by what Spark's tasks call and by Spark: written with ids, read to the
end.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.integration.kafka_server import KafkaServer

from holdfast.errors import UsageInvalid
from holdfast.spark.session import build_session
from holdfast.spark.topic_options import read_options
from holdfast.spark.topic_sink import append, prepare
from holdfast.spark.topic_source import TopicReader

ROWS = 3000
COLUMNS = StructType([StructField("id", LongType()), StructField("value", StringType())])


def test_a_topic_on_kafka(kafka: KafkaServer) -> None:
    """Copies are accepted by name only; each record carries its id, by which readers drop them."""
    url = kafka.url(f"t-{secrets.token_hex(4)}", "flush=always")
    options = {"topic": "numbers", "url": url, "idColumn": "id", "partitions": "3"}
    with pytest.raises(UsageInvalid, match="does not take an id once"):
        prepare(options, COLUMNS, overwrite=False)
    chosen = prepare({**options, "delivery": "at-least-once"}, COLUMNS, overwrite=False)
    texts = [str(number) for number in range(ROWS)]
    batch = pa.RecordBatch.from_pydict({"id": list(range(ROWS)), "value": texts})
    assert append(chosen, iter([batch])).records == ROWS
    reader = TopicReader(read_options({"topic": "numbers", "url": url}))
    found = pa.Table.from_batches(one for part in reader.partitions() for one in reader.read(part))
    assert sorted(found["record_id"].to_pylist()) == sorted(texts)
    assert sorted(found["value"].to_pylist()) == sorted(text.encode() for text in texts)
    assert len(set(found["partition"].to_pylist())) == 3


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[SparkSession]:
    session = build_session(
        master="local[2]",
        app_name="holdfast-kafka",
        conf={},
        log_file=tmp_path / "spark.log",
        short=True,
    )
    yield session
    session.stop()


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_writes_and_reads_a_topic_on_kafka(
    spark: SparkSession, kafka: KafkaServer, tmp_path: Path
) -> None:
    """A frame into a topic; the topic as a table; a stream that copies it into another topic."""
    url = kafka.url(f"t-{secrets.token_hex(4)}", "flush=always")
    sink = {"url": url, "partitions": "3", "delivery": "at-least-once"}

    def table(topic: str) -> DataFrame:
        return spark.read.format("holdfast").options(topic=topic, url=url).load()

    frame = spark.range(ROWS).selectExpr("id", "concat('row ', id) as value").repartition(4)
    frame.write.format("holdfast").mode("append").options(
        topic="numbers", idColumn="id", **sink
    ).save()
    wanted = sorted((str(number), f"row {number}".encode()) for number in range(ROWS))
    found = table("numbers").collect()
    assert sorted((row.record_id, row.value) for row in found) == wanted
    assert {row.partition for row in found} == {0, 1, 2}
    source = spark.readStream.format("holdfast").options(topic="numbers", url=url)
    query = (
        source.option("maxRecordsPerBatch", str(ROWS // 2))
        .load()
        .select("record_id", "value")
        .writeStream.format("holdfast")
        .options(topic="copies", idColumn="record_id", **sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sum(batch.numInputRows for batch in query.recentProgress) == ROWS
    assert len([batch for batch in query.recentProgress if batch.numInputRows]) >= 2
    copied = table("copies").collect()
    assert sorted((row.record_id, row.value) for row in copied) == wanted
