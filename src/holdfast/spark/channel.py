"""One Spark process: its start, its end, and the requests under way in it.

A thread reads its answers and gives each to whoever waits for it. When the process ends, however
it ends, everybody who waits hears of it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from dataclasses import asdict
from json import loads
from pathlib import Path
from typing import Any, BinaryIO

from holdfast._base.files import make_directories, os_errors
from holdfast.errors import SparkLost
from holdfast.spark.load import search_path
from holdfast.spark.wire import Start, line, unpack_error

COMMAND = (
    sys.executable,
    "-P",  # the working directory may hold another file of the pipeline's name
    "-m",
    "holdfast.spark.child",
)
_Answer = dict[str, Any]


class EndedBefore(Exception):
    """The process had ended before a request was sent. Never seen by callers of the executor."""


class SparkProcess:
    """A child process that answers requests, several at a time."""

    def __init__(self, start: Start, output: int) -> None:
        """Start it. What stages print goes to the descriptor `output`."""
        ours, theirs = socket.socketpair()
        with theirs, _opened(Path(start.log)) as errors:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [*COMMAND, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output,  # what stages print must not mix with our answers
                stderr=errors,  # what PySpark says of a dying JVM is not for people
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=_environment(start),
            )
        self._channel = ours
        self._guard = threading.Lock()
        self._sending = threading.Lock()
        self._ids = itertools.count()
        self._waiting: dict[int, Future[_Answer]] = {}
        self._lost_at_once = 0
        self._ended: str | None = None
        self._reader = threading.Thread(target=self._read, name="spark answers", daemon=True)
        self._ready = self._send({"start": asdict(start)})
        self._reader.start()

    @property
    def is_ready(self) -> bool:
        """Whether Spark has come up."""
        return self._ready.done() and self._ready.exception() is None

    def wait_until_ready(self) -> None:
        """Wait until Spark has come up. Raises what keeps it from doing so."""
        self._ready.result()

    def ask(self, request: dict[str, Any]) -> _Answer:
        """Return the answer to a request.

        Raises:
            SparkLost: the process ended.
            EndedBefore: it had ended before.
            HoldfastError: that was the answer.
        """
        return self._send(request).result()

    def kill(self) -> None:
        """End it and everything it started. Waits for nothing."""
        if self._ended is not None:
            return  # and its group with it: the number may be somebody else's by now
        # A session of its own: child, JVM and Python workers are one group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> int:
        """End it and wait for it. Returns how many requests it took with it: whoever noticed that
        Spark is lost before the process ended is one of them.
        """
        has_ended = self._ended is not None
        self.kill()
        self._reader.join()
        self._channel.close()
        return self._lost_at_once + (not has_ended)

    def _send(self, request: dict[str, Any]) -> Future[_Answer]:
        answer: Future[_Answer] = Future()
        with self._guard:
            if self._ended is not None:
                raise EndedBefore(self._ended)
            number = next(self._ids)
            self._waiting[number] = answer
        try:
            with self._sending:
                self._channel.sendall(line(id=number, **request))
        except OSError:
            # It has ended, or is ending: the reader tells everybody who waits.
            self.kill()
        return answer

    def _read(self) -> None:
        with self._channel.makefile("rb") as answers, contextlib.suppress(OSError):
            for text in answers:
                if text.endswith(b"\n"):
                    self._give(loads(text))
        self.kill()
        code = self._process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self._lose(f"its process ended with {how}")

    def _give(self, answer: _Answer) -> None:
        with self._guard:
            waiting = self._waiting.pop(answer["id"])
        if "error" in answer:
            waiting.set_exception(unpack_error(answer))
        else:
            waiting.set_result(answer)

    def _lose(self, why: str) -> None:
        with self._guard:
            self._ended = why
            lost = list(self._waiting.values())
            self._waiting.clear()
            self._lost_at_once = len(lost)
        for waiting in lost:
            waiting.set_exception(SparkLost(error=why))


def _environment(start: Start) -> dict[str, str]:
    environment = dict(os.environ)
    if directory := search_path(start.pipeline):
        known = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [directory, known]))
    return environment


def _opened(log: Path) -> BinaryIO:
    with os_errors(log):
        make_directories(log.parent)
        return log.open("ab")
