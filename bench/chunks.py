"""What a run costs by itself: how its time grows with chunks and batches, and tiny runs per second.

    .venv/bin/python -m bench.chunks

Chunks of ten rows. Without Spark the time is the engine's own: binding, planning, committing,
exporting, with every fsync. With Spark it is what a user waits for, in a warm session.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from bench import tiny
from bench.harness import Size, alone, say, session
from holdfast.cli.measure import Figure, in_turn, ratio, stopwatch
from holdfast.config import DEFAULT, Config
from holdfast.engine.executor import Executor
from holdfast.pipeline import Pipeline
from holdfast.spark.execute import SparkExecutor
from holdfast.testing.plain import PlainExecutor

SINGLE = Config(batch_chunks=1)
"""A batch per chunk: what each further batch costs."""
TINY_RUNS = 10

Make = Callable[[Pipeline], Executor]


def figures(size: Size, root: Path) -> list[Figure]:
    """Return the seconds of runs with ever more chunks, and how they grow."""
    data = {n: tiny.write_chunks(root / f"in-{n}", n) for n in {*size.chunks, *size.spark_chunks}}
    say("chunks: without Spark, as many in a batch as fit")
    made = growing("chunks, engine alone", data, size.chunks, size.rounds, PlainExecutor, DEFAULT)
    say("chunks: without Spark, a batch each")
    few = tuple(n for n in size.chunks if n <= 100)
    made += growing("batches, engine alone", data, few, size.rounds, PlainExecutor, SINGLE)
    made.append(tiny_runs(data[1], size.rounds))
    say("chunks: with Spark")
    with session(root) as spark:

        def make(pipe: Pipeline) -> Executor:
            return SparkExecutor(spark, pipe)

        for _ in range(2):
            once(data[1], make, DEFAULT)
        made += growing("chunks, Spark", data, size.spark_chunks, size.rounds, make, DEFAULT)
    return made


def growing(
    name: str,
    data: dict[int, Path],
    counts: tuple[int, ...],
    rounds: int,
    make: Make,
    config: Config,
) -> list[Figure]:
    """Return the seconds of a run by number of chunks, and the last step's growth per chunk."""

    def side(count: int) -> Callable[[], float]:
        return lambda: once(data[count], make, config)

    found = in_turn({f"{name}: {n:,}": side(n) for n in counts}, rounds, say)
    made = [Figure(title, "s", tuple(values)) for title, values in found.items()]
    many, fewer = counts[-1], counts[-2]
    per_chunk = {n: [value / n for value in found[f"{name}: {n:,}"]] for n in (many, fewer)}
    title = f"{name}: time per chunk, {many:,} / {fewer:,}"
    return [*made, ratio(title, per_chunk[many], per_chunk[fewer])]


def once(data: Path, make: Make, config: Config) -> float:
    """Return the seconds of one run from nothing to DONE."""
    root = data.parent / "run"
    shutil.rmtree(root, ignore_errors=True)
    pipe = tiny.pipeline()
    return stopwatch(lambda: tiny.run(root, data, pipe=pipe, executor=make, config=config))


def tiny_runs(data: Path, rounds: int) -> Figure:
    """Return how many runs of one chunk are done in a second, each with a state of its own."""
    values = []
    for _ in range(rounds):
        seconds = sum(once(data, PlainExecutor, DEFAULT) for _ in range(TINY_RUNS))
        values.append(TINY_RUNS / seconds)
    return Figure("runs of one chunk, engine alone", "runs/s", tuple(values), "higher")


if __name__ == "__main__":
    alone("chunks", figures)
