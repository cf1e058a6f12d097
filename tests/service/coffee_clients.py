"""Coffee shops that hand in their data as real processes, and know their right answers.

Data and answers come from the generator and the oracle; nothing here asks Holdfast what is right.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from tests.service.processes import Process

from holdfast.apps.coffee.generator import generate
from holdfast.apps.coffee.oracle import answers, write_answers

SCALE = 0.0002
"""82 files, 0.7 MB: all the edge cases of hard mode, and five of them in a few seconds."""


@dataclass
class Shop:
    """A client: its data, its right answers, its token."""

    name: str
    data: Path
    right: Path
    token: Path

    def check(self, out: Path) -> None:
        """Every answer is the oracle's, to the byte, and there is nothing else."""
        for path in sorted(self.right.iterdir()):
            assert (out / path.name).read_bytes() == path.read_bytes(), f"{self.name}: {path.name}"
        assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in self.right.iterdir())


def make_shops(root: Path, count: int) -> list[Shop]:
    """Write data and answers of shops with different seeds, hard mode; they have no token yet."""
    shops = []
    for seed in range(1, count + 1):
        home = root / f"shop-{seed}"
        generate(home / "data", scale=SCALE, seed=seed, hard=True)
        write_answers(answers(scale=SCALE, seed=seed, hard=True), home / "right")
        shops.append(Shop(f"shop-{seed}", home / "data", home / "right", home / "token"))
    return shops


def add_client(state: Path, shop: Shop, *more: str) -> None:
    """Make the shop a client of a state, as an operator does."""
    command = [sys.executable, "-m", "holdfast.cli", "client", "add", shop.name]
    command += ["--state", str(state), "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    shop.token.write_text(json.loads(done.stdout)["token"] + "\n")


@dataclass
class Points:
    """Crash points to be tried, and those that were: one at a time is in use."""

    waiting: list[str] = field(default_factory=list)
    died_at: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> str | None:
        """Return the next point to arm, if one is left."""
        with self._lock:
            return self.waiting.pop(0) if self.waiting else None

    def died(self, point: str) -> None:
        """Note that a process died at its point."""
        with self._lock:
            self.died_at.append(point)

    def give_back(self, point: str) -> None:
        """Note that a process ended without reaching its point."""
        with self._lock:
            self.waiting.append(point)


class Visit:
    """One shop hands in everything under a key and fetches its answers, started again if killed."""

    def __init__(self, shop: Shop, key: str, url: str, out: Path, points: Points) -> None:
        self.shop, self._key, self._url, self._out, self._points = shop, key, url, out, points
        self.starts = 0
        self.run = ""
        self.error: Exception | None = None
        self._process: Process | None = None
        self._thread = threading.Thread(target=self._go, daemon=True)

    def start(self) -> None:
        shutil.rmtree(self._out, ignore_errors=True)
        self._thread.start()

    def join(self, wait_s: float) -> None:
        self._thread.join(wait_s)
        if self._thread.is_alive() and self._process is not None:
            text = self._process.text
            self._process.end()
            raise AssertionError(f"{self.shop.name} is not served:\n{text}")
        if self.error is not None:
            raise self.error

    def kill(self) -> None:
        """End the process that is under way, if there is one."""
        if self._process is not None and self._process.poll() is None:
            self._process.signal(signal.SIGKILL)

    def _go(self) -> None:
        try:
            while not self._once():
                pass
            self.shop.check(self._out)
        except Exception as error:  # the test's own thread raises it
            self.error = error

    def _once(self) -> bool:
        self.starts += 1
        assert self.starts < 40, "it never ends"
        point = self._points.take()
        armed = {"HOLDFAST_CRASH": point} if point else {}
        self._process = Process(
            *("holdfast.cli", "submit", str(self.shop.data), "--url", self._url),
            *("--token-file", str(self.shop.token), "--key", self._key, "--json"),
            *("--out", str(self._out), "--chunk-bytes", "10KiB"),
            **armed,
        )
        code = self._process.wait(900)
        self._process.end()
        if point is not None:
            if code == -signal.SIGKILL:
                self._points.died(point)
            else:
                self._points.give_back(point)
        assert code in (0, -signal.SIGKILL), self._process.text
        if code == 0:
            self.run = json.loads(self._process.lines[-1])["run"]
        return code == 0
