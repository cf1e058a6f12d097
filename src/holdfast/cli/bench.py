"""`holdfast bench`: what safety costs on this machine, and how quick its disk and its log are.

A small part of the suite in `bench/` of the repository, by the same code.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from holdfast._base.files import os_errors
from holdfast.cli.log_race import append_times, fetch_rate, fsync_times, produce_rate
from holdfast.cli.measure import Figure, in_turn, percentile, ratio, table
from holdfast.errors import DependencyMissing, UsageInvalid
from holdfast.log.embedded import EmbeddedBackend

_RECORDS = 10_000
_APPENDS = 200


def bench_command(*, scale: float, rounds: int, directory: Path | None, as_json: bool) -> None:
    """Measure and print. What it writes is below a directory of its own, removed at the end."""
    if rounds < 1 or not 0 < scale <= 1:
        what = f"--rounds {rounds} --scale {scale:g}"
        raise UsageInvalid(what=what, remedy="Give at least one round, and a scale up to 1.")
    with os_errors(directory or Path(tempfile.gettempdir())):
        root = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=directory))
    try:
        figures = [*_disk(root, rounds), *_coffee(root, scale, rounds)]
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if as_json:
        sys.stdout.write(json.dumps({"figures": [one.as_json() for one in figures]}) + "\n")
        return
    sys.stdout.write("\n".join(table(figures)) + "\n")
    sys.stdout.write("next: holdfast demo\n")


def _disk(root: Path, rounds: int) -> list[Figure]:
    """Return the time of one durable append, bare and through the log, and the log's rates."""
    _say("measuring the disk and the embedded log")
    bare, logged, produced, fetched = [], [], [], []
    for number in range(rounds):
        log = EmbeddedBackend(root / f"log-{number}.sqlite3")
        log.start()
        produced.append(produce_rate(log, _RECORDS))
        fetched.append(fetch_rate(log, _RECORDS))
        logged.append(percentile(append_times(log, _APPENDS), 0.5) * 1000)
        log.stop()
        bare.append(percentile(fsync_times(root, _APPENDS), 0.5) * 1000)
    return [
        Figure("write 1 KiB and wait for the disk, bare file", "ms", tuple(bare)),
        Figure("the same through the embedded log", "ms", tuple(logged)),
        Figure("embedded log, produce in batches of 100", "records/s", tuple(produced), "higher"),
        Figure("embedded log, fetch in batches of 100", "records/s", tuple(fetched), "higher"),
    ]


def _coffee(root: Path, scale: float, rounds: int) -> list[Figure]:
    """Return the seconds of the coffee pipeline and of plain PySpark, and their ratio."""
    try:
        from holdfast.cli.coffee_race import CoffeeRace
        from holdfast.spark.session import build_session
    except ModuleNotFoundError as error:
        what = f"this measures Spark, and {error.name} is not installed"
        raise DependencyMissing(what=what, install="pip install 'holdfast[spark]'") from error
    _say(f"starting Spark; coffee-shop data of scale {scale:g}; one run of each is not counted")
    log_file = root / "spark.log"
    spark = build_session(
        master=None, app_name="holdfast bench", conf={}, log_file=log_file, short=False
    )
    try:
        race = CoffeeRace(spark, root, scale=scale)
        sides = {"pipeline": race.pipeline, "plain PySpark": race.typed}
        for side in sides.values():
            side()
        found = in_turn(sides, rounds, _say)
    finally:
        spark.stop()
    seconds = [Figure(f"coffee, {name}", "s", tuple(took)) for name, took in found.items()]
    title = "coffee, pipeline / plain PySpark"
    return [*seconds, ratio(title, found["pipeline"], found["plain PySpark"])]


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
