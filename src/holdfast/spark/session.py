"""Builds the one Spark session of the command line's child process.

Library code never builds a session: it takes the one of the DataFrame it is given. Each setting
has its reason beside it; what the user sets (`--spark-conf`) wins over all of them.

Nothing that Spark or Java print reaches the terminal: their standard output and error are the log
file from the moment the JVM starts.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from holdfast._base.files import os_errors
from holdfast.config import MIB
from holdfast.errors import SparkNotStarted
from holdfast.spark.archive import archive_option
from holdfast.spark.java import Java, find_java

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")

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


def build_session(
    *,
    master: str | None,
    app_name: str,
    conf: Mapping[str, str],
    log_file: Path,
    short: bool,
) -> SparkSession:
    """Start Spark, or connect to it, and return the session.

    `master` None means all cores of this machine. `short` is for runs of about a minute: it trades
    peak speed for a quick start.

    Raises:
        JavaMissing: no Java 17 or newer.
        SparkNotStarted: the log file says why.
    """
    master = master or "local[*]"
    builder = SparkSession.builder.appName(app_name)
    if master.startswith("sc://"):
        # Spark Connect: the server's JVM is somebody else's, only the session's settings are ours.
        builder = builder.remote(master)
        settings = {**_session_settings(), **conf}
    else:
        java = find_java()
        os.environ["JAVA_HOME"] = str(java.home)
        builder = builder.master(master)
        settings = _merged(_settings(master, java, short=short), conf)
    if master.startswith("local"):
        # Looking up the machine's own name may wait for a name server that does not answer.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        if "spark.pyspark.python" not in settings:
            # Without it the workers run whichever python3 is first on the PATH.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _silence_python_side()
    # PySpark prints every analysis error as a page of JSON; `trouble` says it in one line.
    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _output_to(log_file):
        try:
            return builder.getOrCreate()
        except Exception as error:  # whatever PySpark, Py4J or gRPC raise: there is no session
            text = (str(error) or type(error).__name__).splitlines()[0]
            raise SparkNotStarted(error=text, log=str(log_file)) from error


def _silence_python_side() -> None:
    """Keep this process's own Spark libraries from writing to the terminal: they raise as well."""
    # Py4J logs every call that meets a dead JVM.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    # PySpark prints a page of JSON for every column that a stage misspells. It must be made by
    # PySpark's own class: its calls have arguments that the standard one refuses.
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _session_settings() -> dict[str, str]:
    return {
        # `date_format` of a timestamp without zone shifts it in any other zone.
        "spark.sql.session.timeZone": "UTC",
        # Merges small shuffle partitions, so that their number need not be tuned.
        "spark.sql.adaptive.enabled": "true",
        # The rule replaces a cached frame that came out empty, and the count of the rows it read
        # goes with it.
        "spark.sql.adaptive.optimizer.excludedRules": (
            "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
        ),
        # `toPandas` and `createDataFrame` of pandas: row by row otherwise.
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # What every Parquet reader knows, said so that a cluster's default cannot change files.
        "spark.sql.parquet.compression.codec": "snappy",
    }


def _settings(master: str, java: Java, *, short: bool) -> dict[str, str]:
    settings = _session_settings() | {
        # A web server nobody looks at: 0.5 s of start-up and an open port.
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Version 2 moves files into place while the job may still fail; version 1 does it at its
        # end, so that an attempt's directory has all of a job's files or none.
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "1",
        # A flipped bit in a page must be an error. The check is off by default.
        "spark.hadoop.parquet.page.write-checksum.enabled": "true",
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
        JAVA_OPTIONS: _java_options(java, short=short),
    }
    if master.startswith("local"):
        settings |= {
            # Nobody else has to reach this driver, so nobody can.
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # 200 by default: for a batch of 64 MiB on a few cores that is all overhead.
            "spark.sql.shuffle.partitions": str(2 * _cores()),
            "spark.driver.memory": f"{_driver_memory_mib()}m",
        }
    return settings


def _java_options(java: Java, *, short: bool) -> str:
    options = [f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"]
    if short:
        options += _SHORT_OPTIONS
        if archive := archive_option(java):
            options.append(archive)
    return " ".join(options)


def _merged(ours: dict[str, str], conf: Mapping[str, str]) -> dict[str, str]:
    merged = {**ours, **conf}
    if JAVA_OPTIONS in conf:
        # Later options win in Java, so the user's still do.
        merged[JAVA_OPTIONS] = f"{ours[JAVA_OPTIONS]} {conf[JAVA_OPTIONS]}"
    return merged


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _driver_memory_mib() -> int:
    """Return half of the machine, within limits: Python workers and page cache need the rest."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(_MEMORY_SMALLEST_MIB, min(_MEMORY_LARGEST_MIB, physical // MIB // 2))


@contextmanager
def _output_to(log_file: Path) -> Iterator[None]:
    """Point this process's standard output and error at the log; the JVM inherits that for good."""
    with os_errors(log_file):
        log_file.parent.mkdir(parents=True, exist_ok=True)
        log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    saved = {stream: os.dup(stream) for stream in (1, 2)}
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream in saved:
            os.dup2(log, stream)
        yield
    finally:
        for stream, copy in saved.items():
            os.dup2(copy, stream)
            os.close(copy)
        os.close(log)
