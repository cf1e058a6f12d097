"""The coffee pipeline, first chunk to last result, against plain PySpark on the same CSV files.

    .venv/bin/python -m bench.coffee [--scale 0.1] [--rounds 5] [--profile]

One warm session, sides in turn, every run's answers compared with the oracle. DuckDB and Polars
are for orientation. CPU time is that of the whole process tree: on a busy machine the ratio of CPU
times says more than that of seconds.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness import ROUNDS, Tree, say, say_table, tree_watched, workspace, write_result
from bench.peers import run_duckdb, run_polars
from holdfast.apps.coffee.pipeline import pipe
from holdfast.cli.coffee_race import CoffeeRace
from holdfast.cli.measure import Figure, in_turn, ratio
from holdfast.engine.drive import drive
from holdfast.engine.events import Event, EventKind
from holdfast.engine.state import hold
from holdfast.spark.execute import SparkExecutor
from holdfast.spark.run import gather
from holdfast.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REACH = {0.1: 1.1, 1.0: 1.0}
"""Times the plain typed batch, by scale."""


@contextmanager
def session(root: Path, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Yield the session that `holdfast run` would build for a long run."""
    spark = build_session(
        master=None,
        app_name="holdfast bench",
        conf=conf or {},
        log_file=root / "spark.log",
        short=False,
    )
    try:
        yield spark
    finally:
        spark.stop()


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


def sides_of(race: CoffeeRace, *, peers: bool) -> dict[str, Watched]:
    """Return the sides of the race by name."""
    sides = {"pipeline": race.pipeline, "plain typed": race.typed}
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
    figures = [Figure(f"{name}: {side}", "s", tuple(took)) for side, took in seconds.items()]
    figures.append(
        ratio(
            f"{name}: pipeline / plain typed",
            seconds["pipeline"],
            seconds["plain typed"],
            reach=REACH.get(scale),
        )
    )
    figures += [
        ratio(f"{name}: pipeline / {side}", seconds["pipeline"], seconds[side])
        for side in sides
        if side not in ("pipeline", "plain typed")
    ]
    cpu = {side: [tree.cpu_s for tree in sides[side].trees] for side in sides}
    figures.append(
        ratio(f"{name}: CPU, pipeline / plain typed", cpu["pipeline"], cpu["plain typed"])
    )
    return figures + used(name, race, sides)


def used(name: str, race: CoffeeRace, sides: Mapping[str, Watched]) -> list[Figure]:
    """Return memory of every process and bytes written per byte read."""
    figures = []
    for side in ("pipeline", "plain typed"):
        trees = sides[side].trees
        for kind in sorted({kind for tree in trees for kind in tree.peak_mib}):
            peaks = tuple(tree.peak_mib.get(kind, 0.0) for tree in trees)
            figures.append(Figure(f"{name}: {side}, peak memory, {kind}", "MiB", peaks))
        written = tuple(tree.written_bytes / race.bytes for tree in trees)
        figures.append(Figure(f"{name}: {side}, bytes written per byte read", "B/B", written))
    return figures


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
    parser.add_argument("--rounds", "--repeats", type=int, default=ROUNDS)
    parser.add_argument("--no-peers", action="store_true", help="only pipeline and plain typed")
    parser.add_argument("--dir", type=Path, help="a directory on the disk to measure")
    parser.add_argument("--keep", type=Path, help="keep data here, and find it here again")
    parser.add_argument("--profile", action="store_true", help="one run, second by second")
    parser.add_argument(
        "--event-log", type=Path, help="with --profile: Spark's event log goes here"
    )
    parser.add_argument("--save", help="write bench/results/NAME.json")
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
            figures = measure(race, options.scale, options.rounds, peers=not options.no_peers)
    say_table(figures)
    if options.save:
        settings = {"scale": options.scale, "rounds": options.rounds}
        say(f"wrote {write_result(options.save, figures, settings, load=load)}")


if __name__ == "__main__":
    main()
