"""What Spark's tasks do with a topic, on a real Kafka: written with ids, read to the end."""

from __future__ import annotations

import secrets

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.integration.kafka_server import KafkaServer

from holdfast.errors import UsageInvalid
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
