"""Real processes for tests: started, watched line by line, and ended by their own id."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0
DRAINED_S = 10.0
"""In which a service is over after SIGTERM, as docs/operating.md says."""
BUSY_S = 2.0
"""On top, until the process itself has ended: other tests load the machine."""


def until(what: str, holds: Callable[[], bool], wait_s: float = WAIT_S) -> None:
    """Wait until something holds. Only what is broken takes the whole time."""
    deadline = time.monotonic() + wait_s
    while not holds():
        assert time.monotonic() < deadline, f"waited {wait_s} s until {what}"
        time.sleep(0.01)


class Process:
    """A Python module as a process of its own, and the lines it writes."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            env={**os.environ, "PYTHONPATH": path, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)

    def said(self, *words: str) -> bool:
        return any(all(word in line for word in words) for line in list(self.lines))

    def until_said(self, *words: str, wait_s: float = WAIT_S) -> None:
        def holds() -> bool:
            # The last lines may be read a moment after the end.
            if self._process.poll() is not None:
                self._reader.join(1.0)
                assert self.said(*words), f"ended without saying {words}:\n{self.text}"
            return self.said(*words)

        until(f"it says {words}", holds, wait_s)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, wait_s: float = WAIT_S) -> int:
        code = self._process.wait(wait_s)
        self._reader.join(5.0)
        return code

    def end(self) -> None:
        """End it now, whatever it does, and all of its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(5.0)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()


def drain_s(up: Process) -> float:
    """Return how long a supervisor says that it took to end."""
    found = re.search(r"stopped, ([0-9.]+) s after it was asked to", up.text)
    assert found, up.text
    return float(found[1])


def is_there(pid: int) -> bool:
    """Tell whether a process runs; one that ended and was not waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def all_gone(pids: list[int]) -> bool:
    """Tell whether none of these processes runs any more."""
    return not any(map(is_there, pids))


def children_of(pid: int) -> list[int]:
    """Return all processes that a process started, and those they started."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        direct = [int(one) for task in tasks for one in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [one for child in direct for one in (child, *children_of(child))]
