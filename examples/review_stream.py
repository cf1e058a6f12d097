"""A stream of reviews: python examples/review_stream.py IN OUT CHECKPOINT

Delete the checkpoint and start again: the stream reads everything again and buys nothing again.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from holdfast import Budget, pay_once
from holdfast.apps.paid.chat import MODEL, PROMPT, RETURNS, Client, classify, price


def main(source: str, out: str, checkpoint: str) -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    label = pay_once(
        classify,
        name="label",
        key="review_id",
        returns=RETURNS,
        setup=Client,
        fingerprint={"model": MODEL, "prompt": PROMPT},
        budget=Budget(cost=price),
    )
    reviews = spark.readStream.schema("review_id int, text string").json(source)
    query = (
        reviews.transform(label)
        .writeStream.format("parquet")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)  # or processingTime="10 seconds"
        .start(out)
    )
    query.awaitTermination()
    print("receipt:", label.receipt())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
