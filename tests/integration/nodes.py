"""Machines for tests: network namespaces on a switch of their own, whose cables can be pulled.

Nothing of it is in the network of this machine: the switch has a namespace too, and so no test sees
another's. What is pulled is the cable at the switch: connections stay open on both sides and hear
nothing, as they do when a line breaks somewhere. The disk is one for all.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast._base.ids import fresh_token

ROOT = Path(__file__).parents[2]
NETWORK = "192.0.2"
"""Kept for examples: no machine anywhere has an address in it."""
_CLONE_NEWNET = 0x40000000


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


class Node:
    """One machine: an address, processes, a cable."""

    def __init__(self, name: str, number: int, switch: str) -> None:
        self.name, self.address = name, f"{NETWORK}.{number}"
        self._switch, self._port = switch, f"port{number}"
        self._processes: list[subprocess.Popen[Any]] = []
        _ip("netns", "add", name)
        _ip("-n", switch, "link", "add", self._port, *("type", "veth", "peer", "name", "eth0"))
        _ip("-n", switch, "link", "set", "eth0", "netns", name)
        _ip("-n", name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", name, "link", "set", device, "up")
        _ip("-n", switch, "link", "set", self._port, "up")
        self.heal()

    def cut(self) -> None:
        """Pull the cable at the switch."""
        _ip("-n", self._switch, "link", "set", self._port, "nomaster")

    def heal(self) -> None:
        """Put the cable back."""
        _ip("-n", self._switch, "link", "set", self._port, "master", "switch")

    def is_stuck(self) -> bool:
        """Tell whether something was sent from here that nobody answers, or a call is not taken."""
        lines = self.output("ss", "--tcp", "--no-header").splitlines()
        return any(line.split()[0] == "SYN-SENT" or int(line.split()[2]) > 0 for line in lines)

    def inside(self, command: list[str]) -> list[str]:
        """Return a command that runs another one here. The process is the same."""
        return ["nsenter", f"--net=/run/netns/{self.name}", *command]

    def output(self, *command: str) -> str:
        return subprocess.run(
            self.inside([*command]), capture_output=True, text=True, check=True
        ).stdout

    def start(
        self, *command: str, environment: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a process here. It ends with the node."""
        variables = {**os.environ, **(environment or {})}
        process = subprocess.Popen(
            self.inside([*command]), cwd=ROOT, env=variables, text=True, **options
        )
        self._processes.append(process)
        return process

    def die(self) -> None:
        """Lose power: no cable, and no process that could say anything."""
        self.cut()
        self.end_processes()

    def end_processes(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make connections of this thread, and of threads that it starts, from here."""
        with Path("/proc/thread-self/ns/net").open() as home:
            _enter(Path(f"/run/netns/{self.name}"))
            try:
                yield
            finally:
                _enter(Path(f"/proc/self/fd/{home.fileno()}"))


def _enter(namespace: Path) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    with namespace.open() as file:
        if library.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


@contextmanager
def network(count: int) -> Iterator[list[Node]]:
    """Have `count` nodes on a switch for a block; afterwards nothing is left of them."""
    token = fresh_token()[:8]
    switch, nodes = f"hf-{token}-switch", list[Node]()
    _ip("netns", "add", switch)
    try:
        _ip("-n", switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", switch, "link", "set", "switch", "up")
        for number in range(1, count + 1):
            nodes.append(Node(f"hf-{token}-{number}", number, switch))
        yield nodes
    finally:
        for node in nodes:
            node.end_processes()
            _ip("netns", "del", node.name)
        _ip("netns", "del", switch)
