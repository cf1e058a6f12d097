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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from holdfast.apps.coffee.compare import compare
from holdfast.apps.coffee.generator import generate
from holdfast.apps.coffee.oracle import answers
from holdfast.cli.words import counted
from holdfast.errors import UsageInvalid

_BATCHES = 6
"""About how many batches the demo has: enough for two kills in the middle."""
_KILLS = (2, 1)
"""After how many commits of its own each run is killed, in the middle of its next batch."""


@dataclass(slots=True)
class _Ended:
    """How one run of the demo ended, and what it did again that a killed one had begun."""

    killed: bool = False
    code: int = 0
    commits: int = 0
    batches_redone: int = 0
    chunks_redone: int = 0


class _Say:
    """Writes lines at once, so that they are seen while it runs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What came of it all. `kept`: as promised."""

    kills: int
    batches_redone: int
    chunks_redone: int
    answers: int
    answers_equal: int
    kept: bool


def demo_command(*, scale: float, seed: int, keep: Path | None, as_json: bool) -> None:
    """Show that two kills in the middle change nothing. Exits with 1 if they do.

    With JSON the story goes to standard error, and only the verdict to standard output.
    """
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise UsageInvalid(what=f"{keep} is not empty", remedy="Give a new directory to --keep.")
    root = (keep or Path(tempfile.mkdtemp(prefix="holdfast-demo-"))).absolute()
    say = _Say(sys.stderr if as_json else sys.stdout)
    try:
        verdict = _demonstrate(root, scale, seed, say)
    finally:
        if keep is None:
            shutil.rmtree(root, ignore_errors=True)
    if as_json:
        sys.stdout.write(json.dumps(asdict(verdict)) + "\n")
    elif verdict.kept:
        say(f"next: {f'holdfast status --state {keep}/state' if keep else 'holdfast init shop'}")
    else:
        say("next: holdfast doctor; then report this, with what was said above")
    if not verdict.kept:
        sys.exit(1)


def _demonstrate(root: Path, scale: float, seed: int, say: _Say) -> _Verdict:
    data, out, state = root / "data", root / "answers", root / "state"
    say(f"generating coffee-shop data, scale {scale}, seed {seed}")
    try:
        generate(data, scale=scale, seed=seed)
    except ValueError as error:
        raise UsageInvalid(what=str(error), remedy="Nothing was run.") from error
    size = sum(path.stat().st_size for path in data.iterdir())
    command = [sys.executable, "-m", "holdfast.cli", "run", "coffee"]
    command += ["--input", str(data), "--out", str(out), "--state", str(state)]
    # Whatever holdfast.toml stands in the working directory is not the demo's.
    command += ["--config", os.devnull]
    command += ["--batch-bytes", str(max(1, size // _BATCHES))]
    command += ["--log-format", "json"]
    runs = []
    for commits in _KILLS:
        say(f"running; SIGKILL in the batch after commit {commits}")
        runs.append(_run(command, commits, say))
    say("running to the end")
    runs.append(_run(command, None, say))
    if runs[-1].code != 0:
        say(f"the last run failed with exit code {runs[-1].code}")
    return _conclude(root, scale, seed, runs, say)


def _conclude(root: Path, scale: float, seed: int, runs: list[_Ended], say: _Say) -> _Verdict:
    """Say what came of it."""
    ran = runs[-1].code == 0
    results = compare(root / "answers", answers(scale=scale, seed=seed)) if ran else []
    for result in results:
        say(f"  {result.name}: {'equal' if result.equal else result.problem}")
    equal = sum(result.equal for result in results)
    kills = sum(run.killed for run in runs)
    batches = sum(run.batches_redone for run in runs)
    chunks = sum(run.chunks_redone for run in runs)
    say(f"kills: {kills}")
    redone = f"{chunks}, in {counted(batches, 'batch', 'batches')}"
    say(f"chunks redone: {redone} (at most one batch per kill)")
    say(f"answers equal to the oracle: {equal} of {len(results)}")
    kept = ran and equal == len(results) and kills == len(_KILLS) and batches <= kills
    return _Verdict(kills, batches, chunks, len(results), equal, kept)


def _run(command: list[str], kill_after: int | None, say: _Say) -> _Ended:
    """Run once. If told to, kill it with SIGKILL after its n-th commit, in its next batch."""
    process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        ended = _follow(process, kill_after, say)
    except KeyboardInterrupt:
        # It has a session of its own, which the terminal's signal does not reach.
        os.killpg(process.pid, signal.SIGKILL)
        raise
    process.communicate()
    ended.code = process.returncode
    return ended


def _follow(process: subprocess.Popen[str], kill_after: int | None, say: _Say) -> _Ended:
    """Pass on what a run says, and count, until it ends or has been killed."""
    ended = _Ended()
    for text in process.stderr or ():
        event = _parsed(text)
        say(f"  | {event['message']}")
        is_batch, what = event.get("chunks", 0) > 0, event["event"]
        ended.commits += is_batch and what == "committed"
        if is_batch and what == "resumed":
            ended.batches_redone += 1
            ended.chunks_redone += event["chunks"]
        if ended.commits == kill_after and is_batch and what == "started":
            os.killpg(process.pid, signal.SIGKILL)
            ended.killed = True
            break
    return ended


def _parsed(text: str) -> dict[str, Any]:
    """Return the event in a line; what is none (a warning of Python's own) is passed on."""
    try:
        event: dict[str, Any] = json.loads(text)
    except ValueError:
        return {"event": "", "message": text.rstrip()}
    return event
