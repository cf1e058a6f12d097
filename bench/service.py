"""The service on one machine: uploads over HTTP until the last result, one client and many.

    .venv/bin/python -m bench.service [--size quick] [--out bench/results]

One `holdfast up` with its own Spark, warm; the plain batch runs in the session of this process, in
turn with it. Clients are threads of this process that do what `holdfast submit --out` does. Every
answer is compared with the oracle.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psutil

from bench.harness import Size, alone, say, session
from holdfast import Client
from holdfast.apps.coffee.compare import compare
from holdfast.apps.coffee.generator import generate
from holdfast.apps.coffee.oracle import Answers, answers
from holdfast.cli.coffee_race import CoffeeRace
from holdfast.cli.measure import Figure, in_turn, ratio, stopwatch
from holdfast.client.submit import Plan, submit

REACH_BATCH = {0.1: 1.4}
"""Times the plain batch on the same files, by scale."""
REACH_MANY = 3.0
"""Times as many solo runs one after the other."""
REACH_BESIDE_S = 30.0
"""Of the small client beside the large one: seconds, with room for a slow machine, because alone it
takes seven. Whether it waited behind the other's size is told by what is left of the large one."""
REACH_MIB = 100.0
SMALL_SCALE = 0.001
TINY_SCALE = 0.0001
MANY = {"quick": 8, "normal": 50, "full": 50}
TINY = {"quick": 8, "normal": 40, "full": 40}
CHUNK_BYTES = 1 << 20
"""Of the large client beside the small one: small, so that its batches can be cut."""
SEEDS = 5
"""Different data among the many clients."""
_NUMBERS = count(1)


@dataclass(frozen=True, slots=True)
class Shop:
    """A client: its data, its right answers, its token."""

    data: Path
    right: Answers
    token: Path


class Served:
    """One `holdfast up`, and its clients."""

    def __init__(self, root: Path) -> None:
        self.root, self.state = root, root / "served"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator[psutil.Process]:
        """Run it; yields its process."""
        arguments = ["--state", str(self.state), "--listen", f"127.0.0.1:{self.port}"]
        command = [sys.executable, "-m", "holdfast.cli", "up", "--pipeline", "coffee", *arguments]
        with (self.root / "up.log").open("wb") as log:
            up = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield psutil.Process(up.pid)
        finally:
            up.send_signal(signal.SIGTERM)
            up.wait(60)

    def add(self, data: Path, right: Answers) -> Shop:
        """Make another client, with its data and right answers."""
        name = f"client-{next(_NUMBERS)}"
        token = self.root / f"{name}.token"
        command = [sys.executable, "-m", "holdfast.cli", "client", "add", name, "--json"]
        command += ["--state", str(self.state), "--token-file", str(token)]
        command += ["--open-runs", "1000", "--request-rate", "100000"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert json.loads(done.stdout)["client"] == name
        return Shop(data, right, token)

    def serve(self, shop: Shop) -> float:
        """Hand in, wait, fetch, compare; returns the seconds up to the last file."""
        out = self.root / f"out-{next(_NUMBERS)}"
        took = stopwatch(lambda: self._once(shop, out))
        wrong = [one.name for one in compare(out, shop.right) if not one.equal]
        assert not wrong, f"wrong answers: {wrong}"
        shutil.rmtree(out)
        return took

    def _once(self, shop: Shop, out: Path) -> None:
        with Client(self.url, token_file=shop.token) as client:
            plan = Plan(shop.data, key=f"run-{next(_NUMBERS)}")
            run = submit(client, plan, lambda _: None).info.run
            client.wait(run)
            client.download(run, out)

    def at_once(self, shops: list[Shop]) -> float:
        """Serve clients at the same time; returns the seconds until the last one has all."""
        with ThreadPoolExecutor(len(shops)) as pool:
            return stopwatch(lambda: list(pool.map(self.serve, shops)))


def figures(size: Size, root: Path) -> list[Figure]:
    """Return all figures of the service."""
    served = Served(root)
    made: list[Figure] = []
    with session(root) as spark, served.running() as up:
        race = CoffeeRace(spark, root, scale=size.scale)
        made += _against_batch(served, race, size.scale, size.rounds)
        made += _many(served, up, size)
        made += _beside(served, race)
    return made


def _against_batch(served: Served, race: CoffeeRace, scale: float, rounds: int) -> list[Figure]:
    shop = served.add(race.data, race.right)
    say(f"service: scale {scale:g}, {race.bytes / 1e6:,.0f} MB; warming up both sides")
    sides = {"service": lambda: served.serve(shop), "plain typed": race.typed}
    for side in sides.values():
        side()
    seconds = in_turn(sides, rounds, say)
    name = f"service {scale:g}"
    made = [Figure(f"{name}: {side}", "s", tuple(took)) for side, took in seconds.items()]
    reach = REACH_BATCH.get(scale)
    above, below = seconds["service"], seconds["plain typed"]
    return [*made, ratio(f"{name}: upload to last result / plain typed", above, below, reach=reach)]


def _many(served: Served, up: psutil.Process, size: Size) -> list[Figure]:
    clients, tiny = MANY[size.name], TINY[size.name]
    small = _shops(served, SMALL_SCALE, clients)
    say(f"service: one client of scale {SMALL_SCALE:g}, then {clients} at once")
    served.serve(small[0])
    solo = [served.serve(small[0]) for _ in range(3)]
    peaks: dict[str, float] = {}
    with _resident(up, peaks):
        last = served.at_once(small)
    say(f"  solo {min(solo):.2f} to {max(solo):.2f} s; the last of {clients} after {last:.1f} s")
    middle = sorted(solo)[1]
    tinies = _shops(served, TINY_SCALE, tiny)
    rate = tiny / served.at_once(tinies)
    return [
        Figure("service: one small client alone", "s", tuple(solo)),
        Figure(f"service: {clients} small clients at once, the last", "s", (last,)),
        ratio(
            f"service: the last of {clients} / {clients} x one alone",
            [last],
            [clients * middle],
            reach=REACH_MANY if clients == 50 else None,
        ),
        Figure(f"service: tiny runs, {tiny} at once", "runs/s", (rate,), better="higher"),
        *(
            Figure(f"service: peak memory of {name}", "MiB", (peak,), reach=REACH_MIB)
            for name, peak in sorted(peaks.items())
        ),
    ]


def _beside(served: Served, race: CoffeeRace) -> list[Figure]:
    """A small client that comes when a large one is at work: how long it takes, and how much of the
    large one is left then.
    """
    large, small = served.add(race.data, race.right), _shops(served, SMALL_SCALE, 1)[0]
    times = race.bytes / sum(path.stat().st_size for path in small.data.iterdir())
    say(f"service: a small client beside one with {times:,.0f} times its bytes")
    with Client(served.url, token_file=large.token) as client, ThreadPoolExecutor(1) as pool:
        plan = Plan(large.data, key=f"run-{next(_NUMBERS)}", chunk_bytes=CHUNK_BYTES)
        run = submit(client, plan, lambda _: None).info.run
        whole = pool.submit(lambda: stopwatch(lambda: client.wait(run)))
        took = served.serve(small)
        tables = client.state(run).tables
        after = whole.result()
    announced = sum(one.announced or 0 for one in tables)
    share = 1 - sum(one.applied for one in tables) / announced
    say(f"  {took:.1f} s; {share:.0%} of the large one's chunks were left, it took {after:.1f} s")
    return [
        Figure("service: one small client beside a large one", "s", (took,), reach=REACH_BESIDE_S),
        Figure("service: left of the large one then", "%", (100 * share,), better="higher"),
    ]


def _shops(served: Served, scale: float, number: int) -> list[Shop]:
    made = []
    for seed in range(1, SEEDS + 1):
        data = served.root / f"small-{scale:g}-{seed}"
        if not data.exists():
            generate(data, scale=scale, seed=seed)
        made.append((data, answers(scale=scale, seed=seed)))
    return [served.add(*made[place % SEEDS]) for place in range(number)]


@contextmanager
def _resident(up: psutil.Process, peaks: dict[str, float]) -> Iterator[None]:
    """Note the largest resident size of gateway and delivery, as the kernel kept it, at the end."""
    yield
    for process in up.children():
        words = process.cmdline()
        for name in ("gateway", "delivery"):
            if name in words:
                status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
                (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
                peaks[name] = int(line.split()[1]) / 1024


if __name__ == "__main__":
    alone("service", figures)
