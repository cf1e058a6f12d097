"""The same promise with real Spark: the whole command killed at its crash points, the JVM killed,
a Python worker killed. Answers are compared with the oracle, byte by byte and as multisets.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from holdfast._base.crashpoint import ARM_VARIABLE, RECORD_VARIABLE, recorded
from holdfast.apps.coffee.compare import compare
from holdfast.apps.coffee.generator import generate
from holdfast.apps.coffee.oracle import Answers, answers
from holdfast.queries import describe, verify
from holdfast.testing.crash import Tally

SCALE, SEED = 0.0004, 3
POINTS = {
    # One state each, in the order in which a run passes the points: every run resumes what the
    # one before left.
    "first": [
        "lease.take.before:1",
        "intake.create.after:1",
        "intake.bind.before:1",
        "engine.plan.before:1",
        "engine.attempt.after:1",
        "engine.job.after:1",
        "engine.sweep.before:1",
        "engine.commit.after:1",
        "engine.sync.after:2",
        "store.transaction.before:9",
        "engine.series.after:1",
        "delivery.export.written:1",
        "delivery.done.before:1",
    ],
    "second": [
        "lease.take.after:1",
        "intake.bind.after:1",
        "engine.plan.after:1",
        "engine.job.after:1",
        "engine.sweep.each:1",
        "engine.sync.after:1",
        "engine.job.after:3",
        "store.transaction.after:12",
        "engine.commit.after:3",
        "delivery.export.renamed:2",
        "delivery.done.after:1",
    ],
}


FRAME_POINTS = ["intake.frame.written:1", "intake.frame.synced:1", "intake.bind.after:1"]
"""Tried with a DataFrame input in the caller's own process."""


class Command:
    """`holdfast run coffee` on one directory, as a process of its own."""

    def __init__(self, root: Path, data: Path) -> None:
        self.root, self.out, self.state = root, root / "out", root / "state"
        self._arguments = [sys.executable, "-m", "holdfast.cli", "run", "coffee"]
        self._arguments += ["--input", str(data), "--out", str(self.out)]
        self._arguments += ["--state", str(self.state)]
        self._arguments += ["--batch-bytes", "400000", "--chunk-bytes", "100000"]

    def start(self, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._arguments,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, **environment: str) -> int:
        process = self.start(**environment)
        _, errors = process.communicate(timeout=240)
        assert "Traceback" not in errors, errors
        return process.returncode


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("coffee") / "data"
    generate(directory, scale=SCALE, seed=SEED, hard=True)
    return directory


@pytest.fixture(scope="module")
def right() -> Answers:
    return answers(scale=SCALE, seed=SEED, hard=True)


def note_kill(tally: Tally, hit: str) -> None:
    tally.points.add(hit.partition(":")[0])
    tally.cases += 1


def check(command: Command, right: Answers) -> None:
    for result in compare(command.out, right):
        assert result.equal, f"{result.name}: {result.problem} {result.differences}"
    found = verify(command.state, command.out)
    assert found.findings == ()
    assert found.orphans == 0
    assert not [path for path in command.out.iterdir() if path.name.startswith(".")]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", POINTS)
def test_the_command_killed_at_its_crash_points(
    name: str, data: Path, right: Answers, tmp_path: Path, tallies: defaultdict[str, Tally]
) -> None:
    """SIGKILL at one point after the other, on one state; then run to the end."""
    command = Command(tmp_path, data)
    for hit in POINTS[name]:
        code = command.run(**{ARM_VARIABLE: hit})
        assert code == -signal.SIGKILL, f"{hit} was not reached, exit code {code}"
        note_kill(tallies["Spark"], hit)
    assert command.run() == 0
    check(command, right)


@pytest.mark.timeout(300)
def test_at_least_twenty_points_are_passed_with_spark(data: Path, tmp_path: Path) -> None:
    """The list above is compared with what a run really passes, so that none is forgotten."""
    record = tmp_path / "passes"
    command = Command(tmp_path, data)
    command.run(**{ARM_VARIABLE: "engine.job.after:1"})
    assert command.run(**{RECORD_VARIABLE: str(record)}) == 0
    every = [*FRAME_POINTS, *(hit for hits in POINTS.values() for hit in hits)]
    tried = {hit.partition(":")[0] for hit in every}
    passed = set(recorded(record))
    # A resume does not create and bind again; those were passed by the killed run.
    assert passed - tried == set()
    assert len(tried) >= 20


def kill_first(process: subprocess.Popen[str], wanted: Callable[[psutil.Process], bool]) -> None:
    """Kill the first descendant that fits, as soon as the second batch has started."""
    assert process.stderr is not None
    for line in process.stderr:
        if " batch 1.2 started" in line:
            break
    while process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            try:
                if wanted(child):
                    child.kill()
                    return
            except psutil.NoSuchProcess:
                continue
    raise AssertionError("the run ended before there was anything to kill")


@pytest.mark.timeout(300)
def test_a_killed_jvm_is_one_failed_attempt_not_a_dead_run(
    data: Path, right: Answers, tmp_path: Path
) -> None:
    command = Command(tmp_path, data)
    process = command.start()
    kill_first(process, lambda child: "java" in child.name())
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    check(command, right)
    (run,) = describe(command.state)
    assert run.failures == 1


@pytest.mark.timeout(300)
def test_a_killed_python_worker_changes_no_answer(
    data: Path, right: Answers, tmp_path: Path
) -> None:
    command = Command(tmp_path, data)
    process = command.start()
    kill_first(process, lambda child: "pyspark.daemon" in " ".join(child.cmdline()))
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    check(command, right)


@pytest.mark.timeout(300)
def test_a_killed_command_leaves_no_process_behind(data: Path, tmp_path: Path) -> None:
    """The Spark child dies with its parent, the JVM with the child, the workers with the JVM."""
    command = Command(tmp_path, data)
    process = command.start()
    assert process.stderr is not None
    for line in process.stderr:
        if " batch 1.1 committed" in line:
            break
    family = psutil.Process(process.pid).children(recursive=True)
    assert any("java" in child.name() for child in family)
    process.kill()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
    process.communicate()
    assert command.run() == 0


@pytest.mark.timeout(300)
def test_a_second_run_exits_before_any_effect_naming_the_owner(data: Path, tmp_path: Path) -> None:
    command = Command(tmp_path, data)
    first = command.start()
    assert first.stderr is not None
    next(iter(first.stderr))
    second = command.start()
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 1
    assert errors.startswith("holdfast: [STATE_BUSY]")
    assert f"process {first.pid}" in errors
    assert len(errors.splitlines()) == 1
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()


def run_frames(root: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    """Run the notebook-like job once; returns its exit code and what it printed."""
    script = Path(__file__).with_name("frame_job.py")
    done = subprocess.run(
        [sys.executable, str(script), str(root), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.returncode, done.stdout.strip()


@pytest.mark.timeout(600)
def test_a_frame_input_is_written_once_through_kills_and_a_lost_session(
    tmp_path: Path, tallies: defaultdict[str, Tally]
) -> None:
    """Killed before and after the frame is bound, then the JVM lost in `pipe.run`, then resumed."""
    for hit in FRAME_POINTS:
        code, _ = run_frames(tmp_path, **{ARM_VARIABLE: hit})
        assert code == -signal.SIGKILL
        note_kill(tallies["Spark"], hit)
    assert run_frames(tmp_path, "kill-jvm") == (3, "SPARK_LOST")
    assert run_frames(tmp_path) == (0, "DONE")
    lines = (tmp_path / "out" / "even.csv").read_text().splitlines()
    assert Counter(lines) == Counter(["id,text", *(f"{n},r{n}" for n in range(0, 300, 2))])
    found = verify(tmp_path / "state", tmp_path / "out")
    assert found.findings == ()
    assert found.orphans == 0
