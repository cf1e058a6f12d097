"""Ctrl-C, SIGTERM, the live view and the last line of a run that failed: on real processes, real
Spark and a real terminal.
"""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.spark.stop_job import PIPES

from holdfast.queries import describe, verify

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
BATCHES = 3


class Job:
    """`holdfast run` of the pipeline that waits, on directories of its own."""

    def __init__(self, root: Path) -> None:
        self.root, self.state, self.out = root, root / "state", root / "out"
        (root / "in").mkdir()
        for number in range(BATCHES):
            text = f"shop,amount\na,{number}\nb,{number + 10}\n"
            (root / "in" / f"sales_{number}.csv").write_text(text)
        for name in ("begun", "go"):
            os.mkfifo(root / name)

    def command(self, *more: str) -> list[str]:
        script = str(Path(__file__).with_name("stop_job.py"))
        places = ["--input", str(self.root / "in"), "--out", str(self.out)]
        places += ["--state", str(self.state), "--master", "local[1]", "--batch-bytes", "1"]
        return [sys.executable, "-m", "holdfast.cli", "run", script, *places, *more]

    def environment(self, *, held: bool) -> dict[str, str]:
        return {**os.environ, **({PIPES: str(self.root)} if held else {})}

    def start(self, *, held: bool) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command("--log-format", "json"),
            env=self.environment(held=held),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_batch(self) -> None:
        """Return when Spark is at a batch."""
        assert (self.root / "begun").read_text() == "begun"

    def let_go(self) -> None:
        (self.root / "go").write_text("go")


def events(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stderr is not None
    for line in process.stderr:
        yield json.loads(line)


def until(told: Iterator[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    seen = []
    for event in told:
        seen.append(event)
        if event["event"] == kind:
            return seen
    raise AssertionError(f"the run ended without {kind}: {seen}")


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    found: list[psutil.Process] = psutil.Process(process.pid).children(recursive=True)
    return found


def check_gone(relatives: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(relatives, timeout=60)
    assert alive == []


def kinds(seen: list[dict[str, Any]], kind: str) -> int:
    return sum(event["event"] == kind and event.get("chunks", 0) > 0 for event in seen)


def check_stopped(job: Job, process: subprocess.Popen[str], last: dict[str, Any]) -> None:
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert (last["event"], last["code"]) == ("error", "RUN_STOPPED")
    wanted = shlex.join(job.command("--log-format", "json")[3:])
    assert last["facts"]["resume"] == f"Resume: holdfast {wanted}"


def test_once_commits_the_batch_first_and_twice_stops_at_once(tmp_path: Path) -> None:
    """SIGINT in the first batch; on the resume twice in the second; then run to the end."""
    job = Job(tmp_path)
    process = job.start(held=True)
    job.wait_for_batch()
    relatives = family(process)
    assert any("java" in one.name() for one in relatives)
    process.send_signal(signal.SIGINT)
    told = events(process)
    seen = until(told, "stopping")
    assert kinds(seen, "committed") == 0
    job.let_go()
    seen += list(told)
    assert (kinds(seen, "started"), kinds(seen, "committed")) == (1, 1)
    check_stopped(job, process, seen[-1])
    check_gone(relatives)

    process = job.start(held=True)
    job.wait_for_batch()
    relatives = family(process)
    process.send_signal(signal.SIGINT)
    told = events(process)
    seen = until(told, "stopping")
    process.send_signal(signal.SIGINT)
    seen += list(told)
    assert kinds(seen, "committed") == 0
    check_stopped(job, process, seen[-1])
    check_gone(relatives)
    assert describe(job.state)[0].batches_committed == 1

    process = job.start(held=False)
    out, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert f"{BATCHES - 1} batches of {BATCHES - 1} chunks by this process" in out
    seen = [json.loads(line) for line in errors.splitlines()]
    assert [event["name"] for event in seen if event["event"] == "resumed"] == ["1.2"]
    assert len((job.out / "all_sales.csv").read_text().splitlines()) == 1 + 2 * BATCHES
    assert verify(job.state, job.out).findings == ()
    assert describe(job.state)[0].failures == 0


def test_a_signal_while_spark_starts_ends_promptly(tmp_path: Path) -> None:
    """SIGTERM while the JVM hangs in its start: it is not waited for, nothing is left, no run."""
    job = Job(tmp_path)
    process = job.start(held=True)
    java: psutil.Process | None = None
    while java is None:
        assert process.poll() is None
        relatives = family(process)
        java = next((one for one in relatives if "java" in one.name()), None)
    java.suspend()
    try:
        process.send_signal(signal.SIGTERM)
        seen = list(events(process))
        check_stopped(job, process, seen[-1])
    finally:
        for one in [process, *(one for one in relatives if one.is_running())]:
            one.kill()
    assert [event["event"] for event in seen] == ["starting", "stopping", "error"]
    check_gone(relatives)
    assert describe(job.state) == []


class Terminal:
    """A command on a terminal of its own; what it shows is kept."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            os.execve(command[0], command, environment)
        self.shown = ""

    def read_until(self, text: str | None) -> None:
        """Read until `text` was shown; None: to the end."""
        while text is None or text not in self.shown:
            try:
                piece = os.read(self._master, 1 << 16)
            except OSError:  # how Linux says that nobody has the other side open any more
                piece = b""
            if not piece:
                assert text is None, self.shown
                return
            self.shown += piece.decode(errors="replace")

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def end(self) -> int:
        self.read_until(None)
        os.close(self._master)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def check_restored(self) -> list[str]:
        """The cursor is back after the last time it was hidden; return the lines after that."""
        assert self.shown.count("\x1b[?25l") == self.shown.count("\x1b[?25h") == 1
        assert "Traceback" not in self.shown
        after = self.shown.split("\x1b[?25h")[1]
        return [line for line in after.replace("\r", "").split("\n") if line]


def test_the_live_view_on_a_terminal(tmp_path: Path) -> None:
    """Ctrl-C typed while Spark is at a batch; then a resume that fails; then the view's end."""
    job = Job(tmp_path)
    environment = job.environment(held=True) | {"TERM": "xterm", "COLUMNS": "200"}
    terminal = Terminal(job.command(), environment)
    job.wait_for_batch()
    terminal.read_until("batch 1.1: 1 chunk")
    terminal.press(b"\x03")
    terminal.read_until("stopping when the batch is committed")
    job.let_go()
    assert terminal.end() == 130
    (last,) = terminal.check_restored()
    assert last.startswith("holdfast: [RUN_STOPPED] ")
    assert " Resume: holdfast run " in last
    for text in ("starting Spark", "sales", "1/3", "barrier: waits for 2 chunks"):
        assert text in terminal.shown

    (tmp_path / "in" / "sales_2.csv").write_text("shop,amount\nc,1\n")
    terminal = Terminal(job.command(), environment)
    assert terminal.end() == 1
    (last,) = terminal.check_restored()
    assert last.startswith("holdfast: [INPUT_CHANGED] ")
    assert "sales_2.csv" in last


RAISES = """
from holdfast import Pipeline

pipe = Pipeline("raises", version="1")
pipe.input("sales", schema="shop string, amount int")


def bad(frames):
    raise ValueError("no luck")
    yield


@pipe.result("all_sales", streamed=True)
def all_sales(sales):
    print("a stage says hello")
    return sales.mapInArrow(bad, "shop string, amount int")
"""


def test_a_stage_that_fails_names_its_line_and_sparks_own_log(tmp_path: Path) -> None:
    """What the stage prints is told too, and the log is kept."""
    job = Job(tmp_path)
    script = tmp_path / "raises.py"
    script.write_text(RAISES)
    command = job.command("--log-format", "json")
    command[4] = str(script)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    told = [json.loads(line) for line in ended.stderr.splitlines()]
    last = told[-1]
    assert (ended.returncode, last["code"]) == (1, "RUN_FAILED")
    assert " raises.py:9: ValueError: no luck" in last["message"]
    log = Path(last["spark_log"])
    assert log == job.state / "logs" / "spark.log" == Path(told[0]["spark_log"])
    assert log.stat().st_size > 0
    assert [one["event"] for one in told].count("failed_attempt") == 3
    assert "a stage says hello" in {one["message"] for one in told if one["event"] == "output"}
    (run,) = describe(job.state)
    assert run.state == "FAILED"
