from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from holdfast.errors import SparkNotStarted


def test_the_session_is_in_utc_and_writes_whole_jobs_or_nothing(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    version = "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version"
    assert spark.conf.get(version) == "1"
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"


def test_a_changed_byte_in_a_parquet_page_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "p")
    # Neither compressed nor in a dictionary: without page checksums the change goes unseen.
    frame = spark.range(1000).selectExpr("concat('value-', id) AS s").coalesce(1)
    frame.write.option("compression", "none").option("parquet.enable.dictionary", "false").parquet(
        path
    )
    (file,) = Path(path).glob("*.parquet")
    # Spark's own checksum file would find it too, but nobody copies that along.
    for checksum in Path(path).glob(".*.crc"):
        checksum.unlink()
    data = file.read_bytes()
    assert data.count(b"value-500") == 1
    file.write_bytes(data.replace(b"value-500", b"value-5x0"))
    with pytest.raises((PySparkException, Py4JJavaError), match="CRC checksum"):
        spark.read.parquet(path).collect()


PROGRAM = """
import sys
from pathlib import Path
from holdfast.errors import SparkNotStarted
from holdfast.spark.session import build_session
conf = {} if sys.argv[2] == "good" else {"spark.driver.memory": "nonsense"}
try:
    spark = build_session(
        master="local[1]", app_name="t", conf=conf, log_file=Path(sys.argv[1]), short=True
    )
except SparkNotStarted as error:
    print(error.log)
    sys.exit(3)
print(spark.range(3).count())
try:
    spark.sql("SELECT nothing")
except Exception as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize(
    ("conf", "exit_code", "says"),
    [("good", 0, "3\nAnalysisException\n"), ("bad", 3, "{log}\n")],
)
def test_nothing_of_spark_or_java_reaches_the_terminal(
    tmp_path: Path, conf: str, exit_code: int, says: str
) -> None:
    log = tmp_path / "logs" / "spark.log"
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, log, conf], capture_output=True, text=True, check=False
    )
    assert answer.stderr == ""
    assert (answer.stdout, answer.returncode) == (says.format(log=log), exit_code)
    assert log.read_text()


def test_the_error_of_a_session_that_did_not_start_names_its_log() -> None:
    assert "spark.log" in str(SparkNotStarted(error="x", log="spark.log"))
