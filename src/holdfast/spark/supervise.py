"""The executor of the command line: Spark in a child process that can be killed and replaced.

A dead JVM is one failed attempt, not a dead run: the next call starts another child.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from json import loads
from pathlib import Path
from typing import Any, BinaryIO

from holdfast._base.files import make_directories, os_errors
from holdfast.engine.executor import BatchWork, Outcome, SeriesWork
from holdfast.errors import HoldfastError, InvariantViolated, RunStopped, SparkLost
from holdfast.spark.load import search_path
from holdfast.spark.receipts import Mark
from holdfast.spark.wire import Start, line, pack, unpack_error, unpack_outcome, unpack_result


class ChildExecutor:
    """Hands works to a Spark process, starting one when it has none."""

    replaceable = True

    def __init__(self, start: Start, output: int) -> None:
        """Start a child at once, so that Spark comes up while inputs are being hashed.

        What stages print goes to the descriptor `output`.
        """
        self._start, self._output = start, output
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._ready = self._working = self._stopped = False
        self.marks: dict[tuple[str, int], Mark] = {}
        """The first mark of every paid step that a child has used."""
        self._spawn()

    def stop(self) -> None:
        """Begin no other work; end Spark now unless it is at one. For a signal handler: it only
        sets a flag and kills. Whoever waits for Spark, or asks it, gets RunStopped.
        """
        self._stopped = True
        if not self._working:
            self.kill()

    def kill(self) -> None:
        """End the child and everything it started, whatever it is doing. Waits for nothing."""
        # A session of its own: child, JVM and Python workers are one group.
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def check(self) -> None:
        """Have the child build every result on no rows."""
        self._do(check=True)

    def run_batch(self, work: BatchWork) -> Outcome:
        """Do a batch in the child."""
        return unpack_outcome(self._do(batch=pack(work))["outcome"])

    def run_series(self, works: Sequence[SeriesWork]) -> list[Outcome | HoldfastError]:
        """Compute some series in the child. If it dies, all of them are lost with it."""
        try:
            answer = self._do(series=[pack(work) for work in works])
        except SparkLost as error:
            return [error for _ in works]
        results = [unpack_result(one) for one in answer["outcomes"]]
        if any(isinstance(one, SparkLost) for one in results):
            self.close()
        return results

    def close(self) -> None:
        """End the child and everything it started."""
        if self._process is None:
            return
        self.kill()
        self._process.wait()
        self._process = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _do(self, **request: Any) -> dict[str, Any]:
        try:
            return self._ask(request)
        except SparkLost as error:
            self.close()
            if self._stopped and not self._working:
                raise _stopped() from error
            raise
        except HoldfastError as error:
            if isinstance(error, InvariantViolated) or not self._ready:
                self.close()
            raise
        finally:
            self._working = False

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._process is None and not self._stopped:
            self._spawn()
        if not self._ready:
            self._receive()
            self._ready = True
        # From here on `stop` waits for the work. Before, it has ended Spark: nothing was begun.
        self._working = "check" not in request
        if self._stopped:
            self._working = False
            raise _stopped()
        self._send(request)
        answer = self._receive()
        for mark in map(Mark.from_wire, answer["paid"]):
            self.marks.setdefault((mark.ledger, mark.step), mark)
        return answer

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        environment = dict(os.environ)
        if directory := search_path(self._start.pipeline):
            known = environment.get("PYTHONPATH")
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [directory, known]))
        with theirs, _opened(Path(self._start.log)) as errors:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [
                    sys.executable,
                    "-P",  # the working directory may hold another file of the pipeline's name
                    "-m",
                    "holdfast.spark.child",
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=self._output,  # what stages print must not mix with our answers
                stderr=errors,  # what PySpark says of a dying JVM is not for people
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=environment,
            )
        self._channel, self._ready = ours, False
        self._send({"start": asdict(self._start)})

    def _send(self, request: dict[str, Any]) -> None:
        if self._channel is None:
            raise SparkLost(error="it was ended")
        try:
            self._channel.sendall(line(**request))
        except OSError as error:
            raise SparkLost(error=self._ending()) from error

    def _receive(self) -> dict[str, Any]:
        if self._channel is None:
            raise SparkLost(error="it was ended")
        data = b""
        while not data.endswith(b"\n"):
            try:
                piece = self._channel.recv(1 << 16)
            except OSError as error:
                raise SparkLost(error=self._ending()) from error
            if not piece:
                raise SparkLost(error=self._ending())
            data += piece
        answer: dict[str, Any] = loads(data)
        if "error" in answer:
            raise unpack_error(answer)
        return answer

    def _ending(self) -> str:
        code = self._process.wait() if self._process else 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"its process ended with {how}"


def _stopped() -> RunStopped:
    return RunStopped(what="stopped before Spark began a batch", resume="Run again.")


def _opened(log: Path) -> BinaryIO:
    with os_errors(log):
        make_directories(log.parent)
        return log.open("ab")
