"""The yardstick is right: plain PySpark gives the same five answers as the oracle."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.last_end import after_last_end
from bench.peers import run_duckdb, run_polars
from pyspark.sql import SparkSession

from holdfast.cli.coffee_race import CoffeeRace


@pytest.fixture(scope="module")
def race(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> CoffeeRace:
    return CoffeeRace(spark, tmp_path_factory.mktemp("race"), scale=0.002)


@pytest.mark.parametrize("side", ["pipeline", "typed", "text"])
def test_every_side_gives_the_right_answers(race: CoffeeRace, side: str) -> None:
    """`checked` compares all five with the oracle, and raises if one differs."""
    assert getattr(race, side)() > 0


@pytest.mark.parametrize("run", [run_duckdb, run_polars])
def test_the_peers_give_the_right_answers(race: CoffeeRace, run: object) -> None:
    assert callable(run)
    assert race.checked(lambda: run(race.data, race.out)) > 0


def test_what_comes_after_the_last_end_gives_the_right_answers(race: CoffeeRace) -> None:
    assert after_last_end(race) > 0


def test_the_plain_batch_persists_nothing_beyond_its_end(race: CoffeeRace) -> None:
    """A cached frame left behind would make every later round quicker."""
    race.typed()
    assert race.spark._jsparkSession.sharedState().cacheManager().isEmpty()


def test_the_verb_prints_figures_as_json_and_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast.cli", "bench", "--json"]
    command += ["--scale", "0.002", "--rounds", "1", "--dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = {one["name"]: one for one in json.loads(done.stdout)["figures"]}
    assert figures["coffee, pipeline / plain PySpark"]["unit"] == "x"
    assert all(one["median"] > 0 and len(one["values"]) == 1 for one in figures.values())
    assert list(tmp_path.iterdir()) == []
