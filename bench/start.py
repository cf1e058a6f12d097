"""From a command to its first result: `holdfast run` on a tiny input beside a plain PySpark script.

    .venv/bin/python -m bench.start

Both are new processes with a new JVM. The clock of `holdfast run` stops when its first batch is
committed, plan and manifest and all; that of the plain script when its first query is answered.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench import tiny
from bench.harness import Size, alone, say
from holdfast.cli.measure import Figure, in_turn, ratio

PIPELINE = "from bench.tiny import pipeline\n\npipe = pipeline()\n"
PLAIN = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[*]").getOrCreate()
sales = spark.read.csv(sys.argv[1], header=True, schema="shop string, amount int")
assert len(sales.groupBy("shop").sum("amount").collect()) == 2
print("answered", flush=True)
"""
REACH = 2.0
ROOT = Path(__file__).parents[1]


def figures(size: Size, root: Path) -> list[Figure]:
    """Return the seconds of both sides, and their ratio."""
    data = tiny.write_chunks(root / "in", 1)
    file = root / "tiny_start.py"
    file.write_text(PIPELINE, encoding="ascii")

    def holdfast() -> float:
        shutil.rmtree(root / "run", ignore_errors=True)
        command = ["-m", "holdfast.cli", "run", str(file), "--log-format", "json"]
        command += ["--input", str(data), "--out", str(root / "run" / "out")]
        return until([*command, "--state", str(root / "run" / "state")], _is_committed)

    def plain() -> float:
        return until(["-c", PLAIN, str(data)], lambda line: line == "answered\n")

    say("start: one run of each side that is not counted")
    holdfast(), plain()
    seconds = in_turn({"holdfast run": holdfast, "plain session": plain}, size.rounds, say)
    return [
        Figure("start: holdfast run, first batch committed", "s", tuple(seconds["holdfast run"])),
        Figure("start: plain session, first query", "s", tuple(seconds["plain session"])),
        ratio(
            "start: first batch / plain session's first query",
            seconds["holdfast run"],
            seconds["plain session"],
            reach=REACH,
        ),
    ]


def _is_committed(line: str) -> bool:
    return line.startswith("{") and json.loads(line).get("event") == "committed"


def until(arguments: list[str], is_reached: Callable[[str], bool]) -> float:
    """Start a Python process; return the seconds until one of its lines says it is there."""
    started, took = time.perf_counter(), None
    command = [sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # the pipeline's file imports `bench`
    said: list[str] = []
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if took is None and is_reached(line):
                took = time.perf_counter() - started
    assert process.returncode == 0, "".join(said)
    assert took is not None, "".join(said)
    return took


if __name__ == "__main__":
    alone("start", figures)
