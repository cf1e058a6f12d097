"""400 reviews to be classified by a provider: the same job in plain Spark and with `pay_once`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import Budget, Limits, pay_once
from holdfast.apps.paid.chat import Client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast import Receipt

COUNT = 400
LIMITS = Limits(max_in_flight=4, intent_ahead=4)
USD_PER_CALL = 0.002
_NOUNS = ("coffee", "cake", "service", "room", "tea")
_SAYINGS = ("was great", "was cold", "was good", "was slow", "is what it is")


def review(number: int) -> str:
    """Return a review's text."""
    saying = _SAYINGS[number // len(_NOUNS) % len(_SAYINGS)]
    return f"Visit {number}: the {_NOUNS[number % len(_NOUNS)]} {saying}."


@dataclass(frozen=True)
class Classify:
    """Asks a provider of chat completions for the label of a text."""

    url: str

    def ask(self, text: str, key: str = "") -> str:
        """Make one call, which costs money."""
        reply = Client(self.url).complete(text, key)
        return str(reply["choices"][0]["message"]["content"])

    def __call__(self, row: Any, idempotency_key: str) -> str:
        """Classify a row."""
        return self.ask(row.text, idempotency_key)


def reviews(spark: SparkSession) -> DataFrame:
    """Return the reviews, in two partitions."""
    rows = [(number, review(number)) for number in range(COUNT)]
    return spark.createDataFrame(rows, "review_id int, text string").repartition(2, "review_id")


def run_plain(spark: SparkSession, url: str, out: Path) -> None:
    """Classify with a Python UDF, drop the unclear ones, write."""
    from pyspark.sql import functions as F

    classify = Classify(url)
    label = F.udf(classify.ask, "string")
    labelled = reviews(spark).withColumn("label", label("text"))
    labelled.where("label <> 'unclear'").write.mode("overwrite").json(str(out))


def run_paid(spark: SparkSession, url: str, out: Path, ledger: str) -> Receipt:
    """Do the same with `pay_once`."""
    classify = pay_once(
        Classify(url),
        name="classify",
        key="review_id",
        returns="label string",
        ledger=ledger,
        version="1",
        limits=LIMITS,
        budget=Budget(cost=USD_PER_CALL),
    )
    labelled = reviews(spark).transform(classify)
    labelled.where("label <> 'unclear'").write.mode("overwrite").json(str(out))
    return classify.receipt()
