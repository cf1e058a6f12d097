"""A driver killed in the middle of a paid job: what was recorded is not bought again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

JOB = Path(__file__).with_name("paid_job.py")
ROWS = 60


def start(directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(JOB), str(directory), str(ROWS), "0.1"], start_new_session=True
    )


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


@pytest.mark.slow
def test_a_killed_driver(tmp_path: Path) -> None:
    """SIGKILL the driver and everything below it after 20 calls, run the same job again."""
    job = start(tmp_path)
    deadline = time.monotonic() + 120
    while len(lines(tmp_path / "calls.log")) < 20:
        assert job.poll() is None, "the job ended by itself"
        assert time.monotonic() < deadline, "no call was made"
        time.sleep(0.05)
    family = [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]
    for process in family:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    job.wait()
    psutil.wait_procs(family, timeout=10)
    before = Counter(lines(tmp_path / "calls.log"))
    assert len(before) < ROWS
    assert start(tmp_path).wait(timeout=200) == 0
    calls = Counter(lines(tmp_path / "calls.log"))
    out = [
        json.loads(line)
        for path in (tmp_path / "out").glob("*.json")
        for line in path.read_text().splitlines()
    ]
    assert {row["id"]: row["answer"] for row in out} == {n: f"answer {n}" for n in range(ROWS)}
    assert set(calls) == {str(n) for n in range(ROWS)}
    again = sum(calls.values()) - ROWS
    assert again <= 2 * (4 + 4), f"{again} calls repeated: more than two tasks' windows"
