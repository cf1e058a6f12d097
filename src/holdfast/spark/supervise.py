"""The executor of the command line: Spark in a child process that can be killed and replaced.

A dead JVM is one failed attempt, not a dead run: the next call starts another child. Several
threads may hand in works of several runs, all to the same child.

Who was it? When a child dies with several works under way, each of them counts a failed attempt.
The next ones are then done one at a time, so that a work that kills Spark does so alone, and its
neighbours are not failed with it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from holdfast.engine.executor import BatchWork, Outcome, SeriesWork
from holdfast.errors import HoldfastError, InvariantViolated, RunStopped, SparkLost
from holdfast.spark.channel import EndedBefore, SparkProcess
from holdfast.spark.receipts import Mark
from holdfast.spark.wire import Start, pack, unpack_outcome, unpack_result


class ChildExecutor:
    """Hands works to a Spark process, starting one when it has none."""

    replaceable = True

    def __init__(self, start: Start, output: int) -> None:
        """Start a child at once, so that Spark comes up while inputs are being hashed.

        What stages print goes to the descriptor `output`.
        """
        self._start, self._output = start, output
        self._guard = threading.Lock()
        self._one_by_one = threading.Lock()
        self._suspects = 0
        """How many works are still to be done alone."""
        self._working = 0
        self._stopped = self._aborted = False
        self.marks: dict[tuple[str, int], Mark] = {}
        """The first mark of every paid step that a child has used."""
        self._process: SparkProcess | None = SparkProcess(start, output)

    def stop(self) -> None:
        """Begin no other work; end Spark now unless it is at one. For a signal handler: it only
        sets a flag and kills. Whoever waits for Spark, or asks it, gets RunStopped.
        """
        self._stopped = True
        if not self._working:
            self.kill()

    def abort(self) -> None:
        """End Spark now. Whoever waits for it gets RunStopped: an attempt that was interrupted."""
        self._stopped = self._aborted = True
        self.kill()

    def kill(self) -> None:
        """End the child and everything it started, whatever it is doing. Waits for nothing."""
        process = self._process
        if process is not None:
            process.kill()

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
        if self._process is not None:
            self._drop(self._process)

    def _do(self, **request: Any) -> dict[str, Any]:
        with self._alone_if_suspect():
            while True:
                process = self._living()
                try:
                    answer = self._ask(process, request)
                except EndedBefore:
                    # Another work took it down before this one was sent: no attempt of this one.
                    self._drop(process)
                    continue
                # Only an answer clears a suspect: one that kills Spark alone stays one.
                self._clear()
                break
        for mark in map(Mark.from_wire, answer["paid"]):
            self.marks.setdefault((mark.ledger, mark.step), mark)
        return answer

    def _ask(self, process: SparkProcess, request: dict[str, Any]) -> dict[str, Any]:
        is_work, begun = "check" not in request, False
        try:
            process.wait_until_ready()
            with self._at_work(counted=is_work):
                # `stop` ends Spark in the middle of a check: that is no lost attempt at anything.
                begun = is_work
                return process.ask(request)
        except SparkLost as error:
            self._drop(process)
            if self._aborted or (self._stopped and not begun):
                raise _stopped() from error
            raise
        except HoldfastError as error:
            if isinstance(error, InvariantViolated) or not process.is_ready:
                self._drop(process)
            raise

    def _living(self) -> SparkProcess:
        with self._guard:
            if self._process is None:
                if self._stopped:
                    raise _stopped()
                self._process = SparkProcess(self._start, self._output)
            return self._process

    def _drop(self, process: SparkProcess) -> None:
        with self._guard:
            if self._process is process:
                self._process = None
            lost = process.close()
            if lost > 1:
                self._suspects = max(self._suspects, lost)

    @contextmanager
    def _at_work(self, *, counted: bool) -> Iterator[None]:
        """From here on `stop` waits for the work. Before, it has ended Spark: nothing was begun."""
        with self._guard:
            self._working += counted
        try:
            if self._stopped:
                raise _stopped()
            yield
        finally:
            with self._guard:
                self._working -= counted

    @contextmanager
    def _alone_if_suspect(self) -> Iterator[None]:
        if not self._suspects:
            yield
            return
        with self._one_by_one:
            yield

    def _clear(self) -> None:
        with self._guard:
            self._suspects = max(0, self._suspects - 1)


def _stopped() -> RunStopped:
    return RunStopped(what="stopped before Spark began a batch", resume="Run again.")
