"""The Spark settings of our own session: chosen for the machine, each with its reason.

What the user sets (`[spark]` in holdfast.toml, HOLDFAST_SPARK_CONF, `--spark-conf`) wins over every
one of them. Imports no pyspark, so that `holdfast doctor` can show them where there is none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.config import MIB
from holdfast.spark.archive import archive_option
from holdfast.spark.java import Java

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
_POOLS = Path(__file__).with_name("fair_pools.xml")

_SHORT_OPTIONS = (
    # The second compiler never earns back its own time in a run of a minute.
    "-XX:TieredStopAtLevel=1",
    # The parallel collectors start threads that two busy cores have no use for.
    "-XX:+UseSerialGC",
    "-Xshare:auto",
)

_MEMORY_SMALLEST_MIB = 1024
"""Below this Spark's own structures leave nothing for data."""
_MEMORY_LARGEST_MIB = 8192
"""Batches are bounded (64 MiB by default): more heap would only make collections longer."""

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where a container's memory limit stands, in the two versions of control groups."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What of the machine the choice depends on."""

    cores: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Choice:
    """One Spark setting, and why it is not left to Spark."""

    name: str
    value: str
    reason: str


def measure() -> Machine:
    """Return what this process may use: a container's limits, where they are the smaller."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP_LIMITS:
        # No such file, or the word "max": no limit.
        with suppress(OSError, ValueError):
            memory = min(memory, int(Path(path).read_text()))
    return Machine(len(os.sched_getaffinity(0)), memory)


def session_choices() -> list[Choice]:
    """Return the settings of a session, also of one whose JVM is somebody else's."""
    empty_rule = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
    return [
        Choice(
            "spark.sql.session.timeZone",
            "UTC",
            "`date_format` of a timestamp without zone shifts it in any other zone.",
        ),
        Choice(
            "spark.sql.adaptive.enabled",
            "true",
            "Merges small shuffle partitions, so that their number need not be tuned.",
        ),
        Choice(
            "spark.sql.adaptive.optimizer.excludedRules",
            empty_rule,
            "The rule replaces a cached frame that came out empty, and the count of the rows it"
            " read goes with it.",
        ),
        Choice(
            "spark.sql.execution.arrow.pyspark.enabled",
            "true",
            "`toPandas` and `createDataFrame` of pandas go row by row otherwise.",
        ),
        Choice(
            "spark.sql.parquet.compression.codec",
            "snappy",
            "What every Parquet reader knows, said so that a cluster's default cannot change"
            " files.",
        ),
        Choice(
            "spark.sql.parquet.outputTimestampType",
            "TIMESTAMP_MICROS",
            "Parquet's own type, with its zone. The default is an older one, which other readers"
            " take for nanoseconds without a zone.",
        ),
    ]


def choices(master: str, machine: Machine, java_options: str) -> list[Choice]:
    """Return the settings of a session whose JVM is ours."""
    checksum = "A flipped bit in a page must be an error; the check is off by default."
    found = [
        *session_choices(),
        Choice(
            "spark.ui.enabled",
            "false",
            "A web server nobody looks at: 0.5 s of start-up and an open port.",
        ),
        Choice("spark.ui.showConsoleProgress", "false", "It writes over our own progress."),
        Choice(
            "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version",
            "1",
            "Version 2 moves files into place while the job may still fail; version 1 does it at"
            " its end, so that an attempt's directory has all of a job's files or none.",
        ),
        Choice("spark.hadoop.parquet.page.write-checksum.enabled", "true", checksum),
        Choice("spark.hadoop.parquet.page.verify-checksum.enabled", "true", checksum),
        Choice(
            "spark.buffer.size",
            "512",
            "What a Python worker keeps back before Spark sees it, 64 KiB by default: of short paid"
            " answers, some two thousand that `limit(5)` buys for nothing. Arrow's batches pass it"
            " by.",
        ),
        Choice(
            JAVA_OPTIONS,
            java_options,
            "Where the log goes; for runs of about a minute also a quick start. Your own options"
            " are added, and win.",
        ),
    ]
    return found + _local_choices(machine) if master.startswith("local") else found


def fair_choices() -> list[Choice]:
    """Return the settings of a session that works on several runs at once: that of a service."""
    return [
        Choice(
            "spark.scheduler.mode",
            "FAIR",
            "Else the first job has all cores until it has no task left to start, and the job of a"
            " small run waits behind that of a large one.",
        ),
        Choice(
            "spark.scheduler.allocation.file",
            _POOLS.as_uri(),
            "Makes Spark's default pool share evenly among its jobs; of itself it does not.",
        ),
    ]


def _local_choices(machine: Machine) -> list[Choice]:
    unreachable = "Nobody else has to reach this driver, so nobody can."
    return [
        Choice("spark.driver.host", "127.0.0.1", unreachable),
        Choice("spark.driver.bindAddress", "127.0.0.1", unreachable),
        Choice(
            "spark.hadoop.fs.permissions.umask-mode",
            "077",
            "Spark gives directories their mode itself, 0755 by default, whatever the umask.",
        ),
        Choice(
            "spark.sql.shuffle.partitions",
            str(2 * machine.cores),
            "Two per core; 200 by default, which for a batch of 64 MiB is all overhead.",
        ),
        Choice(
            "spark.sql.sources.parallelPartitionDiscovery.threshold",
            "10000",
            "Above it (32 by default) a job is run to list files, which here are on this machine.",
        ),
        Choice(
            "spark.driver.memory",
            f"{driver_memory_mib(machine)}m",
            "Half of the machine, from 1 to 8 GiB: Python workers and page cache need the rest.",
        ),
    ]


def driver_memory_mib(machine: Machine) -> int:
    """Return half of the machine, within limits."""
    half = machine.memory_bytes // MIB // 2
    return max(_MEMORY_SMALLEST_MIB, min(_MEMORY_LARGEST_MIB, half))


def java_options(java: Java, *, short: bool) -> str:
    """Return the options of our JVM. `short` trades peak speed for a quick start."""
    options = [f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"]
    if short:
        options += _SHORT_OPTIONS
        if archive := archive_option(java):
            options.append(archive)
    return " ".join(options)


def merged(ours: Iterable[Choice], theirs: Mapping[str, str]) -> dict[str, str]:
    """Return all settings by name. The user's win; Java options are added to ours."""
    settings = {choice.name: choice.value for choice in ours}
    both = {**settings, **theirs}
    if JAVA_OPTIONS in theirs and JAVA_OPTIONS in settings:
        # Later options win in Java, so the user's still do.
        both[JAVA_OPTIONS] = f"{settings[JAVA_OPTIONS]} {theirs[JAVA_OPTIONS]}"
    return both
