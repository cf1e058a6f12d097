"""The coffee pipeline, first chunk to last result, against plain PySpark on the same CSV files.

    .venv/bin/python -m bench.coffee [--scale 0.1] [--rounds 5] [--profile]

One warm session, sides in turn, every run's answers compared with the oracle. DuckDB and Polars
are for orientation. CPU time is that of the whole process tree: on a busy machine the ratio of CPU
times says more than that of seconds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.harness import (
    RESULTS,
    Size,
    Tree,
    say,
    say_table,
    session,
    tree_watched,
    workspace,
    write_result,
)
from bench.last_end import after_last_end
from bench.peers import run_duckdb, run_polars
from holdfast.apps.coffee.pipeline import pipe
from holdfast.cli.coffee_race import CoffeeRace
from holdfast.cli.measure import Figure, in_turn, ratio
from holdfast.engine.drive import drive
from holdfast.engine.events import Event, EventKind
from holdfast.engine.state import hold
from holdfast.spark.execute import SparkExecutor
from holdfast.spark.run import gather

REACH = {0.1: 1.1, 1.0: 1.0}
"""Times the plain typed batch, by scale."""
AFTER_END = "last END to last result"
REACH_AFTER_END = {0.1: 0.35, 1.0: 0.15}


class Watched:
    """A side whose every run is watched; remembers what each run used."""

    def __init__(self, side: Callable[[], float]) -> None:
        self._side = side
        self.trees: list[Tree] = []

    def __call__(self) -> float:
        with tree_watched() as tree:
            took = self._side()
        self.trees.append(tree)
        return took


def figures(size: Size, root: Path) -> list[Figure]:
    """Return the figures of the race."""
    say(f"coffee: scale {size.scale:g}")
    with session(root) as spark:
        race = CoffeeRace(spark, root, scale=size.scale)
        made = measure(race, size.scale, size.rounds, peers=size.peers)
        return made + (by_command(race, size.scale) if size.peers else [])


def by_command(race: CoffeeRace, scale: float) -> list[Figure]:
    """Return the memory of every process of one `holdfast run`, which has Spark in a child."""
    say("one `holdfast run`, watched from outside")
    command = [sys.executable, "-m", "holdfast.cli", "run", "coffee", "--input", str(race.data)]
    command += ["--out", str(race.out), "--state", str(race.state)]
    command += ["--batch-bytes", str(race.config.batch_bytes)]
    sizes: dict[str, float] = {}

    def run() -> None:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as own:
            with tree_watched(own.pid) as tree:
                assert own.wait() == 0
            sizes.update(tree.peak_mib)

    took = race.checked(run)
    name = f"coffee {scale:g}: holdfast run"
    return [
        Figure(f"{name}, with Spark's start", "s", (took,)),
        *(Figure(f"{name}, peak memory, {kind}", "MiB", (size,)) for kind, size in sizes.items()),
    ]


def sides_of(race: CoffeeRace, *, peers: bool) -> dict[str, Watched]:
    """Return the sides of the race by name."""
    sides = {
        "pipeline": race.pipeline,
        "plain typed": race.typed,
        AFTER_END: lambda: after_last_end(race),
    }
    if peers:
        sides |= {
            "plain text": race.text,
            "DuckDB": lambda: race.checked(lambda: run_duckdb(race.data, race.out)),
            "Polars": lambda: race.checked(lambda: run_polars(race.data, race.out)),
        }
    return {name: Watched(side) for name, side in sides.items()}


def measure(race: CoffeeRace, scale: float, rounds: int, *, peers: bool = True) -> list[Figure]:
    """Race, and return all figures: seconds, ratios, CPU, memory, bytes written."""
    sides = sides_of(race, peers=peers)
    say("warming up: one run of each side that is not counted")
    for side in sides.values():
        side()
        side.trees.clear()
    seconds = in_turn(sides, rounds, say)
    name = f"coffee {scale:g}"
    made = [Figure(f"{name}: {side}", "s", tuple(took)) for side, took in seconds.items()]
    made.append(
        ratio(
            f"{name}: pipeline / plain typed",
            seconds["pipeline"],
            seconds["plain typed"],
            reach=REACH.get(scale),
        )
    )
    made.append(
        ratio(
            f"{name}: {AFTER_END} / plain typed",
            seconds[AFTER_END],
            seconds["plain typed"],
            reach=REACH_AFTER_END.get(scale),
        )
    )
    made += [
        ratio(f"{name}: pipeline / {side}", seconds["pipeline"], seconds[side])
        for side in ("plain text", "DuckDB", "Polars")
        if side in sides
    ]
    cpu = {side: [tree.cpu_s for tree in sides[side].trees] for side in sides}
    made.append(ratio(f"{name}: CPU, pipeline / plain typed", cpu["pipeline"], cpu["plain typed"]))
    return made + used(name, race, sides)


def used(name: str, race: CoffeeRace, sides: Mapping[str, Watched]) -> list[Figure]:
    """Return memory of every process and bytes written per byte read."""
    made = []
    for side in ("pipeline", "plain typed"):
        trees = sides[side].trees
        for kind in sorted({kind for tree in trees for kind in tree.peak_mib}):
            peaks = tuple(tree.peak_mib.get(kind, 0.0) for tree in trees)
            made.append(Figure(f"{name}: {side}, peak memory, {kind}", "MiB", peaks))
        written = tuple(tree.written_bytes / race.bytes for tree in trees)
        made.append(Figure(f"{name}: {side}, bytes written per byte read", "B/B", written))
    return made


def profile(race: CoffeeRace) -> None:
    """Run once, watched, and print how long each batch and each result took."""
    moments: list[tuple[float, Event]] = []

    def watch(event: Event) -> None:
        moments.append((time.perf_counter(), event))

    def run() -> None:
        spec = pipe.spec()
        with hold(race.state, race.config) as held:
            drive(
                held,
                spec,
                lambda: gather(held, spec, race.data),
                lambda: SparkExecutor(race.spark, pipe),
                out=race.out,
                config=race.config,
                watch=watch,
            )

    started = time.perf_counter()
    took = race.checked(run)
    last = started
    for moment, event in moments:
        what = f"{event.kind} {event.name}".strip()
        size = f"{event.chunks} chunks, {event.size / 1e6:.1f} MB" if event.chunks else ""
        say(f"  {moment - started:7.2f} s  +{moment - last:6.2f} s  {what:26} {size}")
        last = moment
    by_kind: dict[str, float] = {}
    begun: dict[str, float] = {}
    for moment, event in moments:
        if event.kind is EventKind.STARTED:
            begun[event.name] = moment
        elif event.kind is EventKind.COMMITTED:
            kind = "batches" if event.chunks else "results"
            by_kind[kind] = by_kind.get(kind, 0.0) + moment - begun[event.name]
    rest = took - sum(by_kind.values())
    parts = ", ".join(f"{kind} {value:.2f} s" for kind, value in by_kind.items())
    say(f"total {took:.2f} s: {parts}, everything else {rest:.2f} s")


def main() -> None:
    """Run this benchmark alone."""
    parser = argparse.ArgumentParser(prog="bench.coffee")
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--rounds", "--repeats", type=int, default=5)
    parser.add_argument("--no-peers", action="store_true", help="only pipeline and plain typed")
    parser.add_argument("--dir", type=Path, help="a directory on the disk to measure")
    parser.add_argument("--keep", type=Path, help="keep data here, and find it here again")
    parser.add_argument("--profile", action="store_true", help="one run, second by second")
    parser.add_argument(
        "--event-log", type=Path, help="with --profile: Spark's event log goes here"
    )
    parser.add_argument("--save", action="store_true", help="write bench/results/coffee.json")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with workspace(options.dir, keep=options.keep) as root:
        conf = {}
        if options.event_log:
            options.event_log.mkdir(parents=True, exist_ok=True)
            conf = {
                "spark.eventLog.enabled": "true",
                "spark.eventLog.dir": options.event_log.absolute().as_uri(),
            }
        with session(root, conf) as spark:
            race = CoffeeRace(spark, root, scale=options.scale)
            if options.profile:
                say("warming up: one run that is not counted")
                race.pipeline()
                profile(race)
                return
            made = measure(race, options.scale, options.rounds, peers=not options.no_peers)
    say_table(made)
    if options.save:
        settings = {"size": f"scale {options.scale:g}", "rounds": options.rounds}
        say(f"wrote {write_result('coffee', made, settings, load=load, to=RESULTS)}")


if __name__ == "__main__":
    main()
