"""A paid job on Spark Connect in a process of its own: python connect_job.py DIRECTORY."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from holdfast import Budget, pay_once
from holdfast.errors import HoldfastError, from_text
from holdfast.spark.java import find_java

ROWS = 40


def code_of(action: Any) -> str:
    try:
        action()
    except HoldfastError as error:
        return error.code
    except Exception as error:  # Spark hands over text: our error is in it
        found = from_text(str(error))
        return found.code if found else f"{type(error).__name__}: {error}"
    return "none"


def copied_topic(spark: Any, directory: Path) -> list[Any]:
    """Write a frame into a topic twice, follow it into another twice; return what both hold."""
    url = f"file://{directory}/log.sqlite3"
    numbers = spark.range(ROWS).selectExpr("id", "cast(id as string) as value")
    target = {"url": url, "idColumn": "id", "partitions": "2"}
    for _ in range(2):
        numbers.write.format("holdfast").mode("append").options(topic="a", **target).save()
    for _ in range(2):
        source = spark.readStream.format("holdfast").options(topic="a", url=url)
        copy = (
            source.option("maxRecordsPerBatch", "15").load().selectExpr("record_id as id", "value")
        )
        writer = copy.writeStream.format("holdfast").options(topic="b", **target)
        writer = writer.option("checkpointLocation", f"{directory}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
    found = [spark.read.format("holdfast").options(topic=name, url=url).load() for name in "ab"]
    held = [sorted(int(row.value) for row in one.collect()) for one in found]
    return [held == [list(range(ROWS))] * 2, len(held[0])]


def main(directory: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    import paid_provider  # type: ignore[import-not-found]  # beside this file

    cloudpickle.register_pickle_by_value(paid_provider)  # type: ignore[no-untyped-call]
    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    url = f"file://{directory}/ledger"
    provider = paid_provider.Provider(directory / "calls.log")

    def step(**options: Any) -> Any:
        settings = {"name": "ask", "key": "id", "returns": "answer string", **options}
        return pay_once(provider, ledger=url, version="1", budget=Budget(cost=0.01), **settings)

    ask = step()
    frame = spark.range(ROWS)
    before = ask.dry_run(frame)
    out = frame.transform(ask)
    nulls = spark.sql("select cast(null as bigint) as id")
    table = spark.read.format("holdfast").option("ledger", url).load()
    facts = {
        "session": type(spark).__module__,
        "to_buy": before.to_buy,
        "filtered": out.filter(sf.col("answer") != "answer 3").count(),
        "joined": out.alias("a").join(out.alias("b"), "id").count(),
        "receipt": [ask.receipt().bought, ask.receipt().spent_usd],
        "then": ask.dry_run(frame).to_buy,
        "table": {r["state"]: r["count"] for r in table.groupBy("state").count().collect()},
        "null_key": code_of(lambda: nulls.transform(step(name="other")).collect()),
        "changed": code_of(lambda: frame.transform(step(returns="answer int"))),
        "no_column": code_of(lambda: frame.transform(step(key="nothing"))),
        "no_table": code_of(lambda: spark.read.format("holdfast").load().collect()),
        "topic": copied_topic(spark, directory),
    }
    sys.stdout.write("FACTS " + json.dumps(facts) + "\n")
    sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
