"""The README's example, copied out of it and run as a reader would."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.timeout(240)
def test_the_twenty_lines_run_as_written(tmp_path: Path) -> None:
    (shop,) = [block for block in blocks("python") if "Pipeline(" in block]
    (tmp_path / "shop.py").write_text(shop)
    (script,) = [block for block in blocks("bash") if "holdfast run shop.py" in block]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-eu", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "answers" / "by_city.csv").read_text() == (
        "city,amount,n\nBergen,120.00,1\nOslo,30.50,1\n"
    )
    assert (tmp_path / "answers" / "large.csv").read_text() == ("shop,item,amount\na,cup,120.00\n")
    assert "all is well" in done.stdout
    assert "Traceback" not in done.stderr
    assert "WARN" not in done.stderr


def test_the_paid_job_runs_as_written(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice, on another ledger: the receipts are those that the page shows."""
    text = README.read_text()
    (job,) = [block for block in blocks("python") if "pay_once(" in block]
    assert text.index("pay_once(") < text.index("## What it is for"), "on the first screen"
    (tmp_path / "job.py").write_text(job.replace("file:///tmp/ledger", f"file://{tmp_path}/ledger"))
    for _ in range(2):
        runpy.run_path(str(tmp_path / "job.py"), run_name="__main__")
        receipt = capsys.readouterr().out.splitlines()[-1]
        assert receipt.startswith("summarise: bought")
        assert receipt in text


def test_the_first_two_commands_are_there() -> None:
    text = README.read_text()
    assert text.index("make demo") < text.index("make check test") < text.index("## What it is for")
