"""Reviews classified by a chat completion, at most once each: python examples/chat_completion.py"""

from __future__ import annotations

import json
import os
import urllib.request
from typing import Any

from pyspark.sql import SparkSession

from holdfast import Budget, pay_once

MODEL = os.environ.get("PROVIDER_MODEL", "m-1")
PROMPT = "Say in one word whether this review is praise, blame or unclear."
REVIEWS = [(n, f"Visit {n}: the coffee was {('great', 'cold', 'hot')[n % 3]}.") for n in range(30)]


class Client:
    """Made once per Python worker (`setup=`): the place for addresses and secrets."""

    def __init__(self) -> None:
        self.url = os.environ.get("PROVIDER_URL", "http://127.0.0.1:8400")
        self.key = os.environ.get("PROVIDER_KEY", "none")

    def complete(self, text: str, idempotency_key: str) -> dict[str, Any]:
        messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": text}]
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {self.key}",
            "Idempotency-Key": idempotency_key,
        }
        body = json.dumps({"model": MODEL, "messages": messages}).encode()
        request = urllib.request.Request(f"{self.url}/v1/chat/completions", body, headers)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return dict(json.load(reply))


def classify(row: Any, client: Client, idempotency_key: str) -> dict[str, Any]:
    reply = client.complete(row.text, idempotency_key)
    usage = reply["usage"]
    return {
        "label": reply["choices"][0]["message"]["content"],
        "tokens_in": usage["prompt_tokens"],
        "tokens_out": usage["completion_tokens"],
    }


def price(answer: dict[str, Any]) -> float:
    """Dollars of one answer: what the provider's price list says per million tokens."""
    return float(answer["tokens_in"] * 0.15 + answer["tokens_out"] * 0.60) / 1e6


def main() -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    reviews = spark.createDataFrame(REVIEWS, "review_id int, text string")
    label = pay_once(
        classify,
        name="label",
        key="review_id",
        returns="label string, tokens_in int, tokens_out int",
        setup=Client,
        fingerprint={"model": MODEL, "prompt": PROMPT},
        budget=Budget(usd=1.0, cost=price),
    )
    print("before:", label.dry_run(reviews))
    reviews.transform(label).groupBy("label").count().show()
    print("receipt:", label.receipt())


if __name__ == "__main__":
    main()
