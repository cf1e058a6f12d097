"""The README's example, copied out of it and run as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.timeout(240)
def test_the_twenty_lines_run_as_written(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(blocks("python")[0])
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


def test_the_first_two_commands_are_there() -> None:
    text = README.read_text()
    assert text.index("make demo") < text.index("make check test") < text.index("## What it is for")
