"""Builds the one Spark session of the command line's child process.

Library code never builds a session: it takes the one of the DataFrame it is given. Which settings
it gets, and why, stands in `holdfast.spark.settings`; what the user sets wins over all of them.

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
from holdfast.config import DEFAULT
from holdfast.errors import SparkNotStarted
from holdfast.spark.java import find_java
from holdfast.spark.settings import (
    choices,
    fair_choices,
    java_options,
    measure,
    merged,
    session_choices,
)


def build_session(
    *,
    master: str | None,
    app_name: str,
    conf: Mapping[str, str],
    log_file: Path,
    short: bool,
    fair: bool = False,
) -> SparkSession:
    """Start Spark, or connect to it, and return the session.

    `master` None means all cores of this machine. `short` is for runs of about a minute: it trades
    peak speed for a quick start. `fair`: jobs that are under way together share the cores evenly.

    Raises:
        JavaMissing: no Java 17 or newer.
        SparkNotStarted: the log file says why.
    """
    master = master or DEFAULT.master
    builder = SparkSession.builder.appName(app_name)
    if master.startswith("sc://"):
        # Spark Connect: the server's JVM is somebody else's, only the session's settings are ours.
        builder = builder.remote(master)
        settings = merged(session_choices(), conf)
    else:
        java = find_java()
        os.environ["JAVA_HOME"] = str(java.home)
        builder = builder.master(master)
        ours = choices(master, measure(), java_options(java, short=short))
        settings = merged([*ours, *(fair_choices() if fair else ())], conf)
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
