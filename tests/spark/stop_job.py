"""A pipeline whose batches say when they have begun and wait to be let go, by two pipes.

So a test can send a signal exactly while Spark is at a batch, without waiting for a clock.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast import Pipeline

PIPES = "HOLDFAST_TEST_PIPES"
pipe = Pipeline("stops", version="1")
pipe.input("sales", schema="shop string, amount int")


def _held(frames: Iterator[Any]) -> Iterator[Any]:
    if directory := os.environ.get(PIPES):
        Path(directory, "begun").write_text("begun")
        Path(directory, "go").read_text()
    yield from frames


@pipe.result("all_sales", streamed=True, order_by=["amount"])
def all_sales(sales: Any) -> Any:
    return sales.mapInArrow(_held, "shop string, amount int")
