"""1, 2, 4 durable stages times 1, 2, 4 runs side by side: throughput, time per stage, CPU, memory.

    .venv/bin/python -m bench.stages

A run works on one batch at a time: that is how it knows what a crash leaves. So concurrent batches
are those of several runs, here each in a process and a state directory of its own, on the executor
without Spark: what is measured is the engine's durable work, not Spark's scheduling.
"""

from __future__ import annotations

import multiprocessing
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench import tiny
from bench.harness import Size, alone, say, tree_watched
from holdfast.cli.measure import Figure, percentile, ratio
from holdfast.config import Config
from holdfast.engine.events import Event, EventKind

STAGES = (1, 2, 4)
SIDE_BY_SIDE = (1, 2, 4)
PER_BATCH = Config(batch_chunks=2)

Times = dict[int, list[float]]


def figures(size: Size, root: Path) -> list[Figure]:
    """Return the figures of every combination."""
    data = tiny.write_chunks(root / "in", size.stage_chunks)
    made: list[Figure] = []
    per_s: dict[tuple[int, int], list[float]] = {}
    spawn = multiprocessing.get_context("spawn")
    for runs in SIDE_BY_SIDE:
        with ProcessPoolExecutor(runs, mp_context=spawn) as pool:
            # Processes start when they are first needed: that is not part of any figure.
            list(pool.map(time.sleep, [0.5] * runs))
            for stages in STAGES:
                found = combination(pool, root, data, stages, runs, size.rounds)
                per_s[stages, runs] = list(found[0].values)
                made += found
    made.append(
        ratio("stages: batches/s, 2 runs / 1", per_s[1, 2], per_s[1, 1], better="higher"),
    )
    made.append(ratio("stages: batches/s, 4 stages / 1", per_s[4, 1], per_s[1, 1], better="higher"))
    return made


def combination(
    pool: ProcessPoolExecutor, root: Path, data: Path, stages: int, runs: int, rounds: int
) -> list[Figure]:
    """Return batches per second, times per stage, CPU and memory of one combination."""
    name = f"stages {stages} x {runs} runs"
    per_s, cores, memory = [], [], []
    times: dict[str, list[float]] = {}
    for number in range(rounds):
        roots = [root / "runs" / str(n) for n in range(runs)]
        shutil.rmtree(root / "runs", ignore_errors=True)
        started = time.perf_counter()
        with tree_watched() as tree:
            jobs = [pool.submit(run, one, data, stages) for one in roots]
            found = [job.result() for job in jobs]
        seconds = time.perf_counter() - started
        batches = sum(len(some) for one in found for some in one.values())
        per_s.append(batches / seconds)
        cores.append(tree.cpu_s / seconds)
        memory.append(tree.peak_mib["all processes"])
        for segment in sorted(found[0]):
            all_runs = [value for one in found for value in one[segment]]
            for share, word in ((0.5, "p50"), (0.99, "p99")):
                title = f"{name}: batch of segment {segment}, {word}"
                times.setdefault(title, []).append(percentile(all_runs, share) * 1000)
        say(f"  round {number + 1} of {rounds}: {name} {per_s[-1]:.1f} batches/s")
    made = [Figure(f"{name}: throughput", "batches/s", tuple(per_s), "higher")]
    made += [Figure(title, "ms", tuple(values)) for title, values in times.items()]
    made.append(Figure(f"{name}: CPU", "cores", tuple(cores)))
    made.append(Figure(f"{name}: peak memory, all processes", "MiB", tuple(memory)))
    return made


def run(root: Path, data: Path, stages: int) -> Times:
    """Run once; return the seconds from start to commit of every batch, by segment."""
    times: Times = {}
    begun: dict[str, float] = {}

    def watch(event: Event) -> None:
        now = time.perf_counter()
        if event.kind is EventKind.STARTED:
            begun[event.name] = now
        elif event.kind is EventKind.COMMITTED and event.chunks:
            segment = int(event.name.partition(".")[0])
            times.setdefault(segment, []).append(now - begun[event.name])

    tiny.run(root, data, pipe=tiny.pipeline(stages), config=PER_BATCH, watch=watch)
    return times


if __name__ == "__main__":
    alone("stages", figures)
