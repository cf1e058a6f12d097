"""The coffee run as a process, over a log of one's choice, killed and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

SCALE = "0.001"
SIZES = ("--chunk-bytes", "64KiB", "--batch-bytes", "192KiB")


def holdfast(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def run(root: Path, name: str, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
    places = ("--input", str(root / "data"), "--out", f"{name}-out", "--state", f"{name}-state")
    return holdfast("run", "coffee", *places, *SIZES, *more, cwd=root, **environment)


def answers(root: Path, name: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / f"{name}-out").glob("*.csv")}


def make_coffee(root: Path) -> Path:
    """Make input files, and the answers of a run whose log is the store's own."""
    made = holdfast(
        "coffee", "generate", "--scale", SCALE, "--seed", "7", "--out", "data", cwd=root
    )
    assert made.returncode == 0, made.stderr
    done = run(root, "plain")
    assert done.returncode == 0, done.stderr
    assert len(answers(root, "plain")) >= 4
    return root


def check_killed_and_resumed(root: Path, name: str, log: str) -> None:
    """Kill it after its second commit, then let it end."""
    cut = run(root, name, "--log", log, HOLDFAST_CRASH="engine.commit.after:2")
    assert cut.returncode == -signal.SIGKILL, cut.stderr
    done = run(root, name, "--log", log)
    assert done.returncode == 0, done.stderr
    assert answers(root, name) == answers(root, "plain")
