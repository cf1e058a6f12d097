"""Tries a crash at every crash point, and a second crash during the recovery from the first.

A workload is a function of a directory that does all its work and returns; called again after
a crash, it recovers and completes. Each call runs in a forked child, which is killed with SIGKILL
at the armed point: no handler, no flush. The check runs in another child, so that no connection
crosses a fork.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from holdfast._base import crashpoint

Workload = Callable[[Path], None]
Choose = Callable[[Sequence["Hit"]], Iterable["Hit"]]
"""Given all passes in their order, returns those to crash at."""
Check = Callable[[Path], None]
"""Raises AssertionError with one of the words lost, duplicated, wrong, early in its text."""

VERDICTS = ("lost", "duplicated", "wrong", "early")


@dataclass(frozen=True, slots=True, order=True)
class Hit:
    """The n-th pass of a crash point."""

    name: str
    number: int

    def __str__(self) -> str:
        """Write it as HOLDFAST_CRASH takes it."""
        return f"{self.name}:{self.number}"


@dataclass(slots=True)
class Tally:
    """What a crash loop did and found."""

    points: set[str] = field(default_factory=set)
    cases: int = 0
    pairs: int = 0
    found: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Take in what another loop found."""
        self.points |= other.points
        self.cases += other.cases
        self.pairs += other.pairs
        self.found.update(other.found)
        self.problems += other.problems

    def __str__(self) -> str:
        """Say it in one line."""
        verdicts = ", ".join(f"{self.found[word]} {word}" for word in VERDICTS)
        return f"{len(self.points)} points, {self.cases} cases, {self.pairs} pairs: {verdicts}"


class CrashLoop:
    """Runs one workload under every crash.

    `settle` is checked at any moment, also right after a crash; `final` after recovery.
    """

    def __init__(self, workload: Workload, *, settle: Check, final: Check) -> None:
        """Keep states below a directory in memory where there is one: no fsync to wait for."""
        self._workload, self._settle, self._final = workload, settle, final
        self.tally = Tally()

    def passes(self) -> Counter[str]:
        """Return how often an undisturbed call on a fresh state passes each point."""
        with _scratch() as scratch:
            return Counter(hit.name for hit in self._passes(scratch / "state"))

    def _passes(self, state: Path) -> list[Hit]:
        record = state.parent / "passes"
        status = _forked(lambda: self._recorded(state, record))
        if status != 0:
            raise AssertionError(f"wrong: an undisturbed run failed with status {status}")
        self._judge("undisturbed", self._final, state)
        seen: Counter[str] = Counter()
        hits = []
        for name in crashpoint.in_order(record):
            seen[name] += 1
            hits.append(Hit(name, seen[name]))
        return hits

    def _recorded(self, state: Path, record: Path) -> None:
        crashpoint.record(record)
        self._workload(state)

    def singles(self, keep: Callable[[Hit], bool] = lambda _: True) -> Iterator[Hit]:
        """Crash at every pass of every point, recover, check. Yields what was tried."""
        for hit in filter(keep, _hits(self.passes())):
            with _scratch() as scratch:
                if self._crash(scratch / "state", hit):
                    self.tally.cases += 1
                    self._recover(scratch / "state", str(hit))
            yield hit

    def pairs(
        self,
        first: Hit,
        keep: Callable[[Hit], bool] = lambda _: True,
        *,
        choose: Choose | None = None,
    ) -> None:
        """Crash at `first`, then at every pass of the recovery, recover again, check.

        Not at every pass: at those that `keep` keeps, or `choose` chooses by what is around them.
        The state after the first crash is put back at the same path before each second one.
        """
        with _scratch() as scratch:
            state, saved = scratch / "state", scratch / "saved"
            if not self._crash(state, first):
                return
            state.mkdir(exist_ok=True)
            shutil.copytree(state, saved)
            passes = self._passes(state)
            kept = filter(keep, _hits(Counter(hit.name for hit in passes)))
            for second in kept if choose is None else choose(passes):
                shutil.rmtree(state)
                shutil.copytree(saved, state)
                if self._crash(state, second):
                    self.tally.pairs += 1
                    self._recover(state, f"{first} then {second}")

    def _crash(self, state: Path, hit: Hit) -> bool:
        """Run until the armed crash. False: the run ended before it."""

        def armed() -> None:
            crashpoint.arm(hit.name, hit.number)
            self._workload(state)

        status = _forked(armed)
        if status == 0:
            return False
        if status != -signal.SIGKILL:
            self.tally.found["wrong"] += 1
            self.tally.problems.append(f"{hit}: the run failed with status {status}")
        self.tally.points.add(hit.name)
        self._judge(f"right after {hit}", self._settle, state)
        return True

    def _recover(self, state: Path, what: str) -> None:
        status = _forked(lambda: self._workload(state))
        if status != 0:
            self.tally.found["wrong"] += 1
            self.tally.problems.append(f"{what}: recovery failed with status {status}")
            return
        self._judge(what, self._final, state)

    def _judge(self, what: str, check: Check, state: Path) -> None:
        """Run a check in a child; its verdict comes back through a file."""
        verdict = state.parent / "verdict"
        verdict.unlink(missing_ok=True)

        def checked() -> None:
            try:
                check(state)
            except AssertionError as error:
                verdict.write_text(str(error) or "wrong")

        status = _forked(checked)
        text = verdict.read_text() if verdict.exists() else ""
        if status != 0:
            text = text or f"wrong: the check ended with status {status}"
        if text:
            word = next((word for word in VERDICTS if word in text), "wrong")
            self.tally.found[word] += 1
            self.tally.problems.append(f"{what}: {text}")


def _hits(passes: Counter[str]) -> list[Hit]:
    return [Hit(name, number) for name, n in passes.items() for number in range(1, n + 1)]


@contextmanager
def _scratch() -> Iterator[Path]:
    """Give a new directory, in memory where there is one."""
    memory = Path("/dev/shm")  # noqa: S108 - a private directory below it is made by mkdtemp
    base = memory if os.access(memory, os.W_OK) else None
    scratch = Path(tempfile.mkdtemp(prefix="holdfast-crash-", dir=base))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _forked(work: Callable[[], None]) -> int:
    """Run `work` in a forked child; returns its exit code, or minus the signal that ended it."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            crashpoint.disarm()
            work()
            code = 0
        except BaseException:  # the child must not return into the parent's stack
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)
