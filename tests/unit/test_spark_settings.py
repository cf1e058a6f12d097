"""Spark's settings: chosen for the machine, every one with a reason, every one to be overridden."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from holdfast.spark.java import Java
from holdfast.spark.settings import (
    JAVA_OPTIONS,
    Choice,
    Machine,
    choices,
    fair_choices,
    java_options,
    measure,
    merged,
    session_choices,
)

GIB = 1 << 30
MACHINE = Machine(cores=4, memory_bytes=8 * GIB)


def chosen(master: str, machine: Machine = MACHINE) -> dict[str, str]:
    return merged(choices(master, machine, "-Dours=1"), {})


def test_what_the_user_sets_wins_over_every_choice() -> None:
    ours = choices("local[2]", MACHINE, "-Dours=1")
    theirs = {choice.name: "theirs" for choice in ours}
    both = merged(ours, theirs)
    assert both.pop(JAVA_OPTIONS) == "-Dours=1 theirs"
    assert set(both.values()) == {"theirs"}
    assert len(both) == len(ours) - 1 > 10


def test_java_options_are_the_users_alone_where_the_jvm_is_somebody_elses() -> None:
    assert merged(session_choices(), {JAVA_OPTIONS: "-Dx=1"})[JAVA_OPTIONS] == "-Dx=1"


def test_a_short_run_trades_peak_speed_for_a_quick_start() -> None:
    java = Java(Path("/none"), "17", "PATH")
    assert "-XX:TieredStopAtLevel=1" in java_options(java, short=True)
    assert "-XX:TieredStopAtLevel=1" not in java_options(java, short=False)


def test_a_cluster_decides_itself_where_drivers_are_reached_and_how_wide_shuffles_are() -> None:
    settings = chosen("spark://host:7077")
    for name in ("spark.driver.host", "spark.driver.bindAddress", "spark.sql.shuffle.partitions"):
        assert name not in settings
        assert name in chosen("local[2]")


def test_shuffles_are_as_wide_as_the_machine() -> None:
    assert chosen("local[*]")["spark.sql.shuffle.partitions"] == "8"


@pytest.mark.parametrize(
    ("memory", "driver"),
    [(GIB, "1024m"), (6 * GIB, "3072m"), (16 * GIB, "8192m"), (512 * GIB, "8192m")],
)
def test_the_driver_gets_half_of_the_machine_within_limits(memory: int, driver: str) -> None:
    machine = Machine(cores=2, memory_bytes=memory)
    assert chosen("local[*]", machine)["spark.driver.memory"] == driver


def test_the_machine_is_measured() -> None:
    machine = measure()
    assert machine.cores >= 1
    assert 256 << 20 < machine.memory_bytes < 1 << 50


def test_jobs_of_several_runs_share_the_cores_evenly() -> None:
    """Spark's mode alone puts them all into one pool, which takes them one after the other."""
    settings = merged(fair_choices(), {})
    assert settings["spark.scheduler.mode"] == "FAIR"
    path = settings["spark.scheduler.allocation.file"].removeprefix("file://")
    (pool,) = ElementTree.parse(path).getroot()
    assert (pool.tag, pool.get("name")) == ("pool", "default")
    assert pool.findtext("schedulingMode") == "FAIR"


def test_every_choice_has_a_name_of_its_own_and_a_reason() -> None:
    ours: list[Choice] = choices("local[2]", MACHINE, "")
    assert len({choice.name for choice in ours}) == len(ours)
    for choice in ours:
        assert choice.name.startswith("spark.")
        assert choice.reason.endswith(".")
