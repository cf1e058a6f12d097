"""The parts of a service as processes of the test's own: killed at chosen points, started again.

`holdfast up` would hand a crash point to every part, and to each again after it died of it; here
one incarnation of one part is armed, and its successor is not, or with another point.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.service.coffee_clients import Points
from tests.service.processes import Process, children_of, until

from holdfast._base.crashpoint import recorded


def free_port() -> int:
    """Return a port that is free now, the same for every incarnation of a gateway."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Part:
    """One part of a service."""

    def __init__(self, name: str, *arguments: str, record: Path | None = None) -> None:
        self.name, self._arguments = name, arguments
        self.points, self._record = Points(), record
        self.deaths = 0
        self.process: Process | None = None
        self._point: str | None = None
        self.may_end_with = ""
        """The code of an error that may end it too, with exit code 1."""

    def start(self) -> None:
        self._point = self.points.take()
        environment = {"HOLDFAST_CRASH": self._point} if self._point else {}
        if self._record is not None:
            environment["HOLDFAST_CRASH_RECORD"] = str(self._record)
        self.process = Process("holdfast.cli", self.name, *self._arguments, **environment)

    def tend(self) -> None:
        """Start it again if it was killed."""
        assert self.process is not None
        code = self.process.poll()
        if code is None:
            return
        self.process.end()
        text = self.process.text
        is_told = code == 1 and bool(self.may_end_with) and self.may_end_with in text
        assert code == -signal.SIGKILL or is_told, f"{self.name} ended with {code}:\n{text}"
        self.deaths += 1
        if self._point is not None:
            self.points.died(self._point)
        self.start()

    @property
    def is_settled(self) -> bool:
        """Tell whether no point is left to be tried."""
        return not self.points.waiting and self._point is None

    def kill(self) -> None:
        assert self.process is not None
        self.process.signal(signal.SIGKILL)

    def try_points(self, draw: random.Random) -> list[str]:
        """End the recording, and arm every point that was passed, one incarnation each.

        Returns them.
        """
        assert self._record is not None
        passed, self._record = recorded(self._record), None
        self.points.waiting = shuffled(passed, draw)
        self.kill()
        return sorted(passed)


class Spark:
    """Spark's processes below an engine: the child that drives it, and its JVM."""

    def __init__(self, engine: Part, draw: random.Random) -> None:
        self._engine, self._draw = engine, draw
        # Killed before it has looked at the pipeline, it ends the engine, which `up` starts again.
        engine.may_end_with = "[SPARK_"

    def kill(self) -> bool:
        """Kill one of them. False: there is none at this moment."""
        assert self._engine.process is not None
        found = [pid for pid in children_of(self._engine.process.pid) if _drives(pid)]
        if not found:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._draw.choice(found), signal.SIGKILL)
        return True


def _drives(pid: int) -> bool:
    """Tell it from the workers, whose death Spark itself sees to."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return words[0].endswith(b"java") or b"holdfast.spark.child" in words


class Parts:
    """All parts of one service on one state, tended by a thread."""

    def __init__(self, state: Path, *, record: Path | None = None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        common = ("--state", str(state))

        def kept(name: str) -> Path | None:
            return record / name if record is not None else None

        pipeline = ("--pipeline", "coffee")
        listen = ("--listen", f"127.0.0.1:{self.port}")
        self.gateway = Part("gateway", *pipeline, *common, *listen, record=kept("gateway"))
        self.engine = Part("engine", *pipeline, *common, record=kept("engine"))
        self.delivery = Part("delivery", *common, record=kept("delivery"))
        self.all: Sequence[Part] = (self.gateway, self.engine, self.delivery)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tend, daemon=True)
        self.error: Exception | None = None

    def start(self) -> None:
        for part in self.all:
            part.start()
        self._thread.start()
        until("the gateway listens", self._listens)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _tend(self) -> None:
        while not self._over.wait(0.02):
            try:
                for part in self.all:
                    part.tend()
            except Exception as error:  # the test's own thread raises it
                self.error = error
                return

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Ask every part to end, and see that it does and leaves nothing behind."""
        self._over.set()
        self._thread.join()
        for part in self.all:
            assert part.process is not None
            part.process.signal(signal.SIGTERM)
        for part in self.all:
            assert part.process is not None
            assert part.process.wait(60) == 0, part.process.text

    def end(self) -> None:
        """End everything now."""
        self._over.set()
        self._thread.join()
        for part in self.all:
            if part.process is not None:
                part.process.end()


def seed_of(name: str) -> int:
    """Return the seed of a random test: given, or fresh; printed, so that it can be given."""
    seed = int(os.environ.get("HOLDFAST_SEED", time.time_ns() % 1_000_000))
    print(f"\nseed of {name}: {seed} (again: HOLDFAST_SEED={seed})")
    return seed


def shuffled(points: Mapping[str, int], draw: random.Random, hits_max: int = 3) -> list[str]:
    """Return every point once, in any order, each at one of its first passes."""
    order = sorted(points)
    draw.shuffle(order)
    return [f"{name}:{draw.randint(1, min(hits_max, points[name]))}" for name in order]
