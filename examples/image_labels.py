"""Images labelled by a model on a GPU, in batches: python examples/image_labels.py DIRECTORY

A row carries a path and a size, well below 1 KiB; the worker that calls the model opens the file.
The model here is a small stand-in: the mean brightness of the bytes. Its cost is GPU time.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession

from holdfast import Budget, Limits, pay_once


class Model:
    """Loaded once per Python worker, as one loads weights onto a GPU."""

    def __init__(self) -> None:
        self.threshold = 127

    def predict(self, images: list[bytes]) -> list[str]:
        means = [sum(image) / max(1, len(image)) for image in images]
        return ["light" if mean > self.threshold else "dark" for mean in means]


def label_images(rows: list[Any], model: Model) -> list[dict[str, Any]]:
    images = [Path(unquote(urlsplit(row.path).path)).read_bytes() for row in rows]
    return [{"label": label, "batch": len(rows)} for label in model.predict(images)]


def images_of(spark: SparkSession, directory: str) -> DataFrame:
    files = spark.read.format("binaryFile").option("pathGlobFilter", "*.raw").load(directory)
    # Not `content`: neither Spark's messages nor the ledger carry pixels.
    return files.select("path", "length")


def main(directory: str) -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    label = pay_once(
        label_images,
        name="label",
        key="path",
        returns="label string, batch int",
        setup=Model,
        batch=8,
        fingerprint={"weights": "v1"},
        limits=Limits(max_in_flight=16, intent_ahead=16),
        budget=Budget(cost=0.0001),
    )
    images_of(spark, directory).transform(label).groupBy("label").count().show()
    print("receipt:", label.receipt())


if __name__ == "__main__":
    main(sys.argv[1])
