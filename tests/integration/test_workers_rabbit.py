"""The coffee example's workers over RabbitMQ, killed at every named moment, answer to the byte."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples.workers.__main__ import PROCESSES
from tests.crash import coffee_workers
from tests.crash.test_coffee_workers_crash import KILLS_MIN, MOMENTS
from tests.docs.test_worker_page import answers, end, start
from tests.integration.rabbit_server import PASSWORD, RabbitServer, running
from tests.integration.waiting import until

from holdfast._base.ids import fresh_token
from holdfast.amqp.broker import Broker
from holdfast.amqp.contract import Message
from holdfast.worker.messages import Chunk, encode
from holdfast.worker.queues import QueueInbox, QueueOutbox

ROOT = Path(__file__).parents[2]
SEED = int(os.environ.get("HOLDFAST_SEED", "5"))
LEAVES_NOTHING = ("before data commit",)
"""At the first of these, nothing was committed: there is nothing to recover."""
LEAVES_CHUNKS = ("before ack", "after ack", "before process")
RECOVERIES = 4
"""Kills of recoveries that must have been, by each process being killed at the moment once."""


@pytest.fixture(scope="module")
def server() -> Iterator[RabbitServer]:
    with running() as one:
        yield one


@pytest.fixture(scope="module")
def source() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="holdfast-coffee-"))
    coffee_workers.prepare(path)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def started(server: RabbitServer, source: Path, root: Path, *more: str) -> subprocess.Popen[str]:
    state = root / f"state-{fresh_token()}"
    command = [sys.executable, "-m", "examples.workers", str(source / "data")]
    command += ["--state", str(state), "--out", str(root / "out"), "--broker", server.url()]
    command += ["--rows-per-chunk", "40", *more]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def killed_in(done: subprocess.Popen[str], source: Path, root: Path) -> int:
    """Wait for the answers, compare them, return how many workers were killed."""
    said, _ = done.communicate(timeout=240)
    assert done.returncode == 0, said
    coffee_workers.compare(source, root / "out")
    found = re.search(r"(\d+) workers killed", said)
    return int(found[1]) if found else 0


@pytest.mark.parametrize("moment", MOMENTS)
def test_every_worker_is_killed_and_again_while_it_recovers(
    server: RabbitServer, source: Path, tmp_path: Path, moment: str
) -> None:
    """Each process dies at the moment, is started again, and dies before its first message."""
    hit = 2 if moment in LEAVES_NOTHING else 1
    crashes = ("--crash", f"{MOMENTS[moment]}:{hit}", "--crash", "worker.recover.each")
    process = started(server, source, tmp_path, *crashes)
    assert killed_in(process, source, tmp_path) >= len(PROCESSES) + RECOVERIES


@pytest.mark.parametrize("moment", LEAVES_CHUNKS)
def test_every_worker_is_killed_and_again_while_it_applies_what_was_left(
    server: RabbitServer, source: Path, tmp_path: Path, moment: str
) -> None:
    """Chunks were committed and no state holds them: the next start applies them first of all."""
    crashes = ("--crash", MOMENTS[moment], "--crash", "worker.apply.after")
    process = started(server, source, tmp_path, *crashes)
    assert killed_in(process, source, tmp_path) >= len(PROCESSES) + RECOVERIES


def test_random_kills(server: RabbitServer, source: Path, tmp_path: Path) -> None:
    """Again with HOLDFAST_SEED."""
    process = started(server, source, tmp_path, "--rows-per-chunk", "1", "--kill", str(SEED))
    assert killed_in(process, source, tmp_path) >= KILLS_MIN


def test_the_broker_is_killed(source: Path, tmp_path: Path) -> None:
    """Workers wait for it, and what was not acked comes again."""
    with running() as server:
        process = started(server, source, tmp_path, "--rows-per-chunk", "5")
        try:
            until(lambda: any(tmp_path.glob("state-*/workers/filter-0/journal")), "a filter works")
            server.let_write()
            assert process.poll() is None
            server.restart()
            assert killed_in(process, source, tmp_path) == 0
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def test_the_program_of_the_page_runs_as_written(
    server: RabbitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what the page says, after a crash and again."""
    monkeypatch.setenv("HOLDFAST_AMQP_PASSWORD", PASSWORD)
    url = f"amqp://holdfast@127.0.0.1:{server.port}/"
    name, (promised, _) = "count_rabbit.py", answers()
    crash = "crash_after_two_chunks"
    assert end(start(tmp_path, name, crash, url)) == (-signal.SIGKILL, "")
    for _ in range(2):
        assert end(start(tmp_path, name, "", url)) == (0, promised)


def test_what_is_no_message_is_a_dead_letter(server: RabbitServer) -> None:
    """It blocks nobody, and what was not acked comes again to the next one."""
    with Broker(server.url()) as broker:
        queue = broker.queue(f"w-{fresh_token()}")
        queue.publish(Message(b"no message"))
        chunk = Chunk("ada", "t", "s", 1, b"x")
        QueueOutbox(queue).send([chunk, chunk])
        inbox = QueueInbox(queue, timeout_s=10)
        found = [one for _ in range(2) for one in inbox.receive(1)]
        assert [one.message for one in found] == [chunk, chunk]
        inbox.ack(found[:1])
        until(lambda: len(queue.dead_letters()) == 1, "the dead letter is there")
        assert queue.dead_letters()[0].code == "DAMAGED"
        inbox.close()
        again = QueueInbox(queue, timeout_s=10)
        (left,) = again.receive(5)
        again.ack([left])
        assert encode(left.message) == encode(chunk)
        again.close()
