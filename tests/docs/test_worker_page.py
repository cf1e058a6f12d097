"""The page of the worker kit runs as it is written, again, and after its crashes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from holdfast.worker.crashes import CRASH_VARIABLE

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "worker.md"
PROGRAMS = ("count_words.py", "count_group.py", "count_rabbit.py")
"""In the order of the page. The last needs a broker: tests/integration/test_workers_rabbit.py."""


def blocks(language: str) -> list[str]:
    text = PAGE.read_text(encoding="ascii")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == language]


def answers() -> list[str]:
    """What the two programs say."""
    return [block for block in blocks("") if block.startswith("Chunk(")]


def start(
    directory: Path, name: str = "count_words.py", crash: str = "", *arguments: str
) -> Popen[str]:
    """Start a program of the page beside the others."""
    for program, code in zip(PROGRAMS, blocks("python"), strict=True):
        (directory / program).write_text(code)
    return Popen(
        [sys.executable, name, *arguments],
        cwd=directory,
        env={**os.environ, CRASH_VARIABLE: crash},
        stdout=PIPE,
        stderr=PIPE,
        text=True,
    )


def end(process: Popen[str]) -> tuple[int, str]:
    out, errors = process.communicate(timeout=60)
    assert process.returncode in (0, -9), errors
    return process.returncode, out


def run(directory: Path, crash: str = "") -> tuple[int, str]:
    return end(start(directory, crash=crash))


@pytest.mark.parametrize("crash", ["", "crash_after_two_chunks", "crash_after_end_processed"])
def test_the_tutorial_says_what_happens(tmp_path: Path, crash: str) -> None:
    promised, _ = answers()
    assert f"{CRASH_VARIABLE}={crash}" in PAGE.read_text(encoding="ascii")
    assert run(tmp_path, crash) == ((-9, "") if crash else (0, promised))
    assert run(tmp_path) == (0, promised)
    assert run(tmp_path) == (0, promised)


@pytest.mark.parametrize("crash", ["", "crash_after_end_processed"])
def test_the_group_says_what_happens(tmp_path: Path, crash: str) -> None:
    """Two processes at once, perhaps after one that was killed; then one that joins at the end."""
    _, promised = answers()
    if crash:
        assert end(start(tmp_path, "count_group.py", crash)) == (-9, "")
    both = [start(tmp_path, "count_group.py") for _ in range(2)]
    assert [end(one) for one in both] == [(0, promised)] * 2
    assert end(start(tmp_path, "count_group.py")) == (0, promised)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_coffee_shop_runs_as_written(tmp_path: Path) -> None:
    """The commands as they stand, of a checkout: the workers are killed, the answers are right."""
    (commands,) = (block for block in blocks("") if "examples.workers" in block)
    found = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    sources = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=tmp_path,
        env={**os.environ, "PATH": found, "PYTHONPATH": sources},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 answers in" in done.stdout
    assert len(list((tmp_path / "answers").glob("*.csv"))) == 5
