"""A paid stage between two ordinary ones.

holdfast dry-run examples/reviews_pipeline.py --input data
holdfast run examples/reviews_pipeline.py --input data --out answers --state state

`data/reviews.csv` has the columns review_id and text.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from holdfast import Budget, Pipeline, pay_once
from holdfast.apps.paid.chat import MODEL, PROMPT, RETURNS, Client, classify, price

pipe = Pipeline("reviews")
pipe.input("reviews", schema="review_id int, text string")

label = pay_once(
    classify,
    name="label",
    key="review_id",
    returns=RETURNS,
    setup=Client,
    fingerprint={"model": MODEL, "prompt": PROMPT},
    budget=Budget(cost=price),
)


@pipe.stage
def clean(reviews: DataFrame) -> DataFrame:
    return reviews.select("review_id", F.trim("text").alias("text")).where("text <> ''")


@pipe.stage
def labelled(clean: DataFrame) -> DataFrame:
    return clean.transform(label)


@pipe.result("by_label", order_by=["label"])
def by_label(labelled: DataFrame) -> DataFrame:
    return labelled.groupBy("label").count()
