"""Server processes of tests: own directory, own ports, output in a file, ended by pid."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

KILLS = 20
"""How often each real server is killed while it is used."""
READY_S = 90.0
"""How long a server may take to answer. Two cores that others use too are slow."""


def free_ports(count: int) -> list[int]:
    """Return ports that nobody uses now, all different."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def cache() -> Path:
    """Return where what was downloaded or built is kept: outside the tree, for all checkouts."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "holdfast"


class ServerProcess:
    """One server that can be killed and started again on what it left on its disk."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        ready: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self._command, self._log, self._ready, self._cwd = list(command), log, ready, cwd
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and return when it answers."""
        assert self._process is None or self._process.poll() is not None
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._cwd,
                env=self._environment,
                start_new_session=True,
            )
        try:
            self._await_ready(self._process)
        except BaseException:  # whatever it was: in a session of its own, nobody else would end it
            self.kill()
            raise

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise AssertionError(f"{self._command[0]} ended:\n{self.tail()}")
            if self._ready():
                return
        raise AssertionError(f"{self._command[0]} does not answer:\n{self.tail()}")

    def tail(self) -> str:
        """Return the end of what it said."""
        return self._log.read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        """End it at once: SIGKILL, no flush, no farewell."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Let it stand still, with its connections open."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self, patience_s: float = 10.0) -> None:
        """Ask it to end, and end it if it does not."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.kill()


def answers(port: int, host: str = "127.0.0.1") -> bool:
    """Tell whether somebody accepts connections on a port; waits a moment if nobody does."""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        time.sleep(0.05)
        return False
