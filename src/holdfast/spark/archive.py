"""A class-data-sharing archive of Spark's classes, so that short sessions start in half the time.

The JVM of a training session writes it when it exits, which takes about as long as three sessions
save; so it is made on purpose, by `python -m holdfast.spark.archive`, and only used where it is
found. Its name carries everything it depends on; a JVM that finds it unfit ignores it. Without an
archive everything works as well, only slower: nothing here raises but for a missing Java.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from holdfast._base.ids import digest, fresh_token
from holdfast.errors import HoldfastError
from holdfast.spark.java import Java, cache_directory, find_java

_TRAINING_TIMEOUT_S = 300.0
"""Training takes 30 s on two idle cores."""


def archive_path(java: Java) -> Path:
    """Return where the archive for this Java and this PySpark is, or would be."""
    import pyspark

    name = digest(str(java.home), java.version, str(pyspark.__file__), version("pyspark"))
    # It fits one PySpark at one place, so in a virtual environment it lives and goes with that.
    in_environment = sys.prefix != sys.base_prefix
    home = Path(sys.prefix) / "share" / "holdfast" if in_environment else cache_directory()
    return home / "classes" / f"{name}.jsa"


def archive_option(java: Java) -> str | None:
    """Return the option that makes a JVM use the archive, if there is one."""
    path = archive_path(java)
    return f"-XX:SharedArchiveFile={path}" if path.is_file() else None


def make_archive(java: Java) -> bool:
    """Make the archive if it is missing. Returns whether there is one now.

    1. A child runs a session that does a little of everything; its JVM writes a temporary file.
    2. The file gets its name when that JVM is gone. Crash before: a stray file in the cache.
    """
    path = archive_path(java)
    if path.is_file():
        return True
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(fresh_token())
        try:
            # The JVM holds the pipe of the child's output, so this returns when it has exited.
            subprocess.run(  # noqa: S603 - ourselves, no shell
                [sys.executable, "-m", "holdfast.spark.archive", str(temporary)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=True,
                timeout=_TRAINING_TIMEOUT_S,
            )
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def train(archive: Path) -> None:
    """Load the classes that short runs need, in a JVM that will write them to `archive`."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    from holdfast.engine.executor import Source
    from holdfast.intake.split import split_file
    from holdfast.intake.tables import BadRowPolicy, TableSpec
    from holdfast.spark.session import build_session
    from holdfast.spark.settings import JAVA_OPTIONS
    from holdfast.spark.source import read_csv

    spark = build_session(
        master="local[2]",
        app_name="holdfast-classes",
        conf={JAVA_OPTIONS: f"-XX:ArchiveClassesAtExit={archive}"},
        log_file=Path("/dev/stderr"),
        short=True,
    )
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "t.csv")
        path.write_text("k,d,at\n" + "a,1.5,2024-01-01 10:00:00\n" * 100, encoding="utf-8")
        table = TableSpec(name="t", format="csv", schema="", segment=1)
        pieces = split_file(path, table, ["k", "d", "at"], 1000)
        sources = [Source(str(path), p.start, p.stop, p.checksum) for p in pieces]
        schema = StructType().add("k", "string").add("d", "decimal(9,2)").add("at", "timestamp_ntz")
        frame = read_csv(spark, schema, sources, BadRowPolicy.QUARANTINE).persist()
        sums = frame.groupBy("k", F.year("at").alias("y")).agg(F.sum("d").alias("s"), F.count("*"))
        sums.write.parquet(f"{directory}/sums")
        frame.where("d > 1").write.parquet(f"{directory}/rows")
        again = spark.read.parquet(f"{directory}/sums")
        joined = spark.read.parquet(f"{directory}/rows").join(again, "k").orderBy("at", "d")
        joined.write.csv(f"{directory}/out")
        frame.unpersist()
        frame.collect()


def main() -> int:
    """Make the archive, or be the training session of it. Returns the exit code."""
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]))
        return 0
    try:
        java = find_java()
    except HoldfastError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    made = make_archive(java)
    sys.stdout.write(f"{archive_path(java)} {'is there' if made else 'could not be made'}\n")
    return 0 if made else 1


if __name__ == "__main__":
    sys.exit(main())
