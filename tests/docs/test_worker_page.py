"""The tutorial of the worker kit runs as it is written, twice, and after both of its crashes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.worker.crashes import CRASH_VARIABLE

PAGE = Path(__file__).parents[2] / "docs" / "worker.md"


def blocks(language: str) -> list[str]:
    text = PAGE.read_text(encoding="ascii")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == language]


def run(directory: Path, crash: str = "") -> tuple[int, str]:
    (program,) = blocks("python")
    (directory / "count_words.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "count_words.py"],
        cwd=directory,
        env={**os.environ, CRASH_VARIABLE: crash},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, -9), done.stderr
    return done.returncode, done.stdout


@pytest.mark.parametrize("crash", ["", "crash_after_two_chunks", "crash_after_end_processed"])
def test_the_tutorial_says_what_happens(tmp_path: Path, crash: str) -> None:
    promised = next(block for block in blocks("") if block.startswith("Chunk("))
    assert f"{CRASH_VARIABLE}={crash}" in PAGE.read_text(encoding="ascii")
    assert run(tmp_path, crash) == ((-9, "") if crash else (0, promised))
    assert run(tmp_path) == (0, promised)
    assert run(tmp_path) == (0, promised)
