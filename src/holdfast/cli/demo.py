"""`holdfast demo`: the promise, shown. Generate, run, kill twice, resume, compare.

The run is a process of its own, killed with SIGKILL, its whole group, after its n-th commit.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from holdfast.apps.coffee.compare import compare
from holdfast.apps.coffee.generator import generate
from holdfast.apps.coffee.oracle import answers
from holdfast.errors import UsageInvalid

_BATCHES = 6
"""About how many batches the demo has: enough for two kills in the middle."""
_KILLS = (2, 2)
"""The first run is killed after its second commit, the second after its second."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """How one run of the demo ended: killed after a commit, or by itself."""

    killed: bool
    code: int
    output: str


def demo_command(*, scale: float, seed: int, keep: Path | None) -> None:
    """Show that two kills in the middle change nothing. Exits with 1 if they do."""
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise UsageInvalid(what=f"{keep} is not empty", remedy="Give a new directory to --keep.")
    root = (keep or Path(tempfile.mkdtemp(prefix="holdfast-demo-"))).absolute()
    try:
        failed = _demonstrate(root, scale, seed)
    finally:
        if keep is None:
            shutil.rmtree(root, ignore_errors=True)
    if failed:
        sys.exit(1)


def _demonstrate(root: Path, scale: float, seed: int) -> bool:
    data, out, state = root / "data", root / "answers", root / "state"
    _say(f"generating coffee-shop data, scale {scale}, seed {seed}")
    try:
        generate(data, scale=scale, seed=seed)
    except ValueError as error:
        raise UsageInvalid(what=str(error), remedy="Nothing was run.") from error
    size = sum(path.stat().st_size for path in data.iterdir())
    command = [sys.executable, "-m", "holdfast.cli", "run", "coffee"]
    command += ["--input", str(data), "--out", str(out), "--state", str(state), "--json"]
    command += ["--batch-bytes", str(max(1, size // _BATCHES))]
    kills = 0
    for commits in _KILLS:
        _say(f"running; SIGKILL after commit {commits}")
        kills += _run(command, kill_after=commits).killed
    _say("running to the end")
    last = _run(command, kill_after=None)
    if last.code != 0:
        _say(f"the last run failed with exit code {last.code}")
        return True
    redone = json.loads(last.output)
    return _conclude(root, scale, seed, kills, redone)


def _conclude(root: Path, scale: float, seed: int, kills: int, report: dict[str, int]) -> bool:
    results = compare(root / "answers", answers(scale=scale, seed=seed))
    for result in results:
        _say(f"  {result.name}: {'equal' if result.equal else result.problem}")
    equal = sum(result.equal for result in results)
    _say(f"kills: {kills}")
    _say(
        f"chunks redone after the last kill: {report['redone_chunks']}"
        f" in {report['redone_batches']} batch(es); at most one batch per kill"
    )
    _say(f"answers equal to the oracle: {equal} of {len(results)}")
    return equal != len(results) or kills != len(_KILLS) or report["redone_batches"] > 1


def _run(command: list[str], kill_after: int | None) -> _Ended:
    """Run once; kill the whole group with SIGKILL after the n-th commit, if told to."""
    process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    commits = 0
    assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018 - pipes
    for text in process.stderr:
        _say(f"  | {text.rstrip()}")
        commits += text.startswith("batch ") and " committed" in text
        if kill_after is not None and commits == kill_after:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return _Ended(True, process.returncode, "")
    output = process.stdout.read()
    return _Ended(False, process.wait(), output)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
