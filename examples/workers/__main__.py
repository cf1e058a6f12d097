"""python -m examples.workers DATA --out ANSWERS --state STATE [--broker URL] [--kill SEED]

Starts the workers as processes, sends the tables of DATA through them and writes the answers. A
worker that is killed is started again. With --kill, one is killed every second or so, the first few
in quick succession, as all may be done within seconds; with --crash, each kills itself once, at a
crash point (docs/internals/crash-points.md); with a second --crash, again there after its restart.
With --broker they speak over RabbitMQ; its password comes from the environment.

    python -m examples.workers --worker GROUP[,GROUP...] --state STATE

is one such process.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from examples.workers import on_log, on_rabbit
from examples.workers.rows import ROWS_PER_CHUNK

from holdfast._base.crashpoint import ARM_VARIABLE, arm_from_environment
from holdfast._base.processes import SUPERVISOR_VARIABLE, die_with_supervisor
from holdfast.errors import EnvironmentFailed, HoldfastError

PROCESSES = (
    *("filter", "filter", "aggregator", "aggregator", "coordinator", "coordinator"),
    *("maximizer,joiner-names", "joiner-users"),
)
"""Which groups each process is in. The second coordinator stands by."""
IDLE_S = 0.01
STOP_S = 10.0
QUICK_S, SLOW_S, QUICK_KILLS = (0.1, 0.4), (0.5, 1.5), 8
"""Between two kills, until there were so many and from then on."""
TRY_AGAIN = 75
"""The exit code of a worker whose surroundings failed it: a full disk, a broker that is away."""


def make_host(options: argparse.Namespace) -> on_log.Host | on_rabbit.Host:
    groups = options.worker.split(",")
    if options.broker is not None:
        return on_rabbit.Host(options.broker, options.state, groups)
    return on_log.Host(options.state, groups, patience_s=options.patience)


def make_client(options: argparse.Namespace) -> on_log.Client | on_rabbit.Client:
    if options.broker is not None:
        return on_rabbit.Client(options.broker, options.state, options.client)
    return on_log.Client(options.state, options.client)


def run_worker(options: argparse.Namespace) -> None:
    """Work until told to stop, or until the command that started this process has ended."""
    die_with_supervisor()
    arm_from_environment()
    host = make_host(options)
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    try:
        while not stopped:
            if not host.step():
                time.sleep(IDLE_S)
    finally:
        host.close()


class Processes:
    """The workers. Each that was killed is started again; one that failed ends everything.

    However this process ends, they end with it: else they would keep journals and partitions.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = ["--state", str(options.state), "--patience", str(options.patience)]
        if options.broker is not None:
            self._options += ["--broker", options.broker]
        self._crashes: list[str] = options.crash
        self._killed = [0] * len(PROCESSES)
        self._running: list[subprocess.Popen[bytes]] = []
        try:
            for place in range(len(PROCESSES)):
                self._running.append(self._start(place))
        except BaseException:  # raised again: those that were started must not go on alone
            self.stop()
            raise

    @property
    def kills(self) -> int:
        """How many workers were killed so far, by whomever."""
        return sum(self._killed)

    def _start(self, place: int) -> subprocess.Popen[bytes]:
        """Start a process, to crash where it is its turn to."""
        command = [sys.executable, "-m", "examples.workers", "--worker", PROCESSES[place]]
        environment = {**os.environ, SUPERVISOR_VARIABLE: str(os.getpid())}
        if self._killed[place] < len(self._crashes):
            environment[ARM_VARIABLE] = self._crashes[self._killed[place]]
        command += self._options
        return subprocess.Popen(command, cwd=Path(__file__).parents[2], env=environment)

    def look_after(self) -> None:
        for place, process in enumerate(self._running):
            code = process.poll()
            if code in (-signal.SIGKILL, TRY_AGAIN):
                self._killed[place] += code != TRY_AGAIN
                self._running[place] = self._start(place)
            elif code is not None:
                raise SystemExit(f"a worker of {PROCESSES[place]} ended with {code}; see above")

    def kill_one(self, draw: random.Random) -> None:
        victim = draw.choice(self._running)
        victim.kill()
        victim.wait()

    def stop(self) -> None:
        for process in self._running:
            process.terminate()
        deadline_s = time.monotonic() + STOP_S
        for process in self._running:
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _end_in_order(number: int, frame: object) -> None:
    """Let a signal to end the command pass through what stops the workers."""
    del frame
    sys.exit(128 + number)


def run_all(options: argparse.Namespace) -> str:
    """Return what is to be said at the end."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end_in_order)
    draw = random.Random(options.kill)
    client = make_client(options)
    processes = Processes(options)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(client.send, options.data, rows_per_chunk=options.rows_per_chunk)
        next_kill_s = time.monotonic() + draw.uniform(*QUICK_S)
        try:
            while not client.look() or not sending.done():
                processes.look_after()
                if options.kill is not None and time.monotonic() >= next_kill_s:
                    processes.kill_one(draw)
                    between_s = QUICK_S if processes.kills < QUICK_KILLS else SLOW_S
                    next_kill_s = time.monotonic() + draw.uniform(*between_s)
                if sending.done():
                    sending.result()
                time.sleep(IDLE_S)
            client.answers.write(options.out)
        finally:
            processes.stop()
            client.close()
    chunks = sending.result()
    return f"{chunks} chunks, 5 answers in {options.out}, {processes.kills} workers killed"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.workers")
    parser.add_argument("data", type=Path, nargs="?", help="directory with the CSV files")
    parser.add_argument("--out", type=Path, default=Path("answers"))
    parser.add_argument("--state", type=Path, default=Path("workers-state"))
    parser.add_argument("--client", default="coffee", help="name of the client; one state, many")
    parser.add_argument("--rows-per-chunk", type=int, default=ROWS_PER_CHUNK)
    parser.add_argument("--patience", type=float, default=10.0, help="seconds; see docs/worker.md")
    parser.add_argument("--broker", metavar="URL", help="RabbitMQ: amqp://user@host:port/")
    parser.add_argument(
        "--crash",
        metavar="POINT[:HIT]",
        action="append",
        default=[],
        help="kill each worker there, once; given again: there, when it was started again",
    )
    parser.add_argument("--kill", type=int, metavar="SEED", help="kill workers at random")
    parser.add_argument("--worker", metavar="GROUPS", help="be one worker process")
    options = parser.parse_args()
    for name in ("state", "out", "data"):
        if getattr(options, name) is not None:
            setattr(options, name, getattr(options, name).absolute())
    if options.worker is None and options.data is None:
        parser.error("give the directory with the data; make one with: holdfast coffee generate")
    try:
        if options.worker is not None:
            run_worker(options)
        else:
            print(run_all(options))
    except HoldfastError as error:
        print(error, file=sys.stderr)
        sys.exit(TRY_AGAIN if isinstance(error, EnvironmentFailed) else 1)


if __name__ == "__main__":
    main()
