"""The coffee pipeline and plain PySpark on the same files, in one warm session, answers checked."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast._base.invariant import invariant
from holdfast.apps.coffee import batch
from holdfast.apps.coffee.compare import compare
from holdfast.apps.coffee.generator import generate
from holdfast.apps.coffee.oracle import answers
from holdfast.apps.coffee.pipeline import pipe
from holdfast.cli.measure import stopwatch
from holdfast.config import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES_MIN = 6
"""Fewer would hide what a batch costs."""


class CoffeeRace:
    """Sides that compute the same five answers, each from nothing to its last result file.

    Every side returns its seconds. Preparing directories and checking answers are not in them.
    """

    def __init__(self, spark: SparkSession, root: Path, *, scale: float, seed: int = 1) -> None:
        """Write the data below `root` if it is not there, and compute the right answers."""
        self.spark, self.root = spark, root
        self.data = root / f"data-{scale}-{seed}"
        if not self.data.exists():
            generate(self.data, scale=scale, seed=seed)
        self.bytes = sum(path.stat().st_size for path in self.data.iterdir())
        self.right = answers(scale=scale, seed=seed)
        self.schemas = {table.name: table.schema for table in pipe.spec().tables}
        self.config = Config(batch_bytes=max(1, self.bytes // BATCHES_MIN))
        self.out, self.state = root / "out", root / "state"

    def pipeline(self) -> float:
        """Run the pipeline as users do: `pipe.run`, new state, at least six batches."""

        def run() -> None:
            made = pipe.run(
                self.spark, inputs=self.data, state=self.state, out=self.out, config=self.config
            )
            invariant(made.batches >= BATCHES_MIN, f"only {made.batches} batches")

        return self.checked(run)

    def typed(self) -> float:
        """Run the plain batch with the declared schemas."""
        return self.checked(
            lambda: batch.typed_batch(self.spark, self.data, self.out, self.schemas)
        )

    def text(self) -> float:
        """Run the plain batch that is tuned by hand."""
        return self.checked(lambda: batch.text_batch(self.spark, self.data, self.out, self.schemas))

    def checked(self, run: Callable[[], object]) -> float:
        """Time a run into empty directories, and stop if an answer is wrong."""
        shutil.rmtree(self.out, ignore_errors=True)
        shutil.rmtree(self.state, ignore_errors=True)
        self.out.mkdir(parents=True)
        took = stopwatch(run)
        wrong = [one.name for one in compare(self.out, self.right) if not one.equal]
        invariant(not wrong, f"wrong answers: {', '.join(wrong)}")
        return took
