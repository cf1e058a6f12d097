"""The coffee example's workers in one process, from the first chunk to the last answer."""

from __future__ import annotations

from pathlib import Path

from examples.workers.on_log import Client, Host
from examples.workers.plan import GROUPS

from holdfast._base.clock import pause
from holdfast.apps.coffee.generator import generate
from holdfast.apps.coffee.oracle import answers, write_answers
from holdfast.worker.persistence import PersistenceService

SCALE, SEED = 0.0001, 3
ROWS_PER_CHUNK = 40
CLIENT = "coffee"
NAMES = ("q1", "q2_quantity", "q2_profit", "q3", "q4")


def prepare(directory: Path) -> None:
    """Write the data, in hard mode, and the right answers."""
    generate(directory / "data", scale=SCALE, seed=SEED, hard=True)
    write_answers(answers(scale=SCALE, seed=SEED, hard=True), directory / "right")


def run(source: Path, root: Path) -> None:
    """Send everything, let every worker work until all is through, write the answers."""
    root.mkdir(parents=True, exist_ok=True)
    client = Client(root, CLIENT)
    client.send(source / "data", rows_per_chunk=ROWS_PER_CHUNK)
    host = Host(root, GROUPS, patience_s=2.0)
    while not client.look() or any_open(root):
        if not host.step():
            pause(0.001)
    client.answers.write(root / "out")
    host.close()
    client.close()


def any_open(root: Path) -> bool:
    """Tell whether a worker still has something of a client to finish."""
    return len(finished(root)) < sum(group.workers for group in GROUPS.values())


def finished(root: Path) -> list[str]:
    """Return the workers whose journal holds nothing but the name of the finished client."""
    found = []
    for name, group in GROUPS.items():
        for partition in range(group.workers):
            journals = (root / "workers" / name).glob(f"*/partition-{partition}/epoch-*/journal")
            if any(b'"finished":true' in path.read_bytes() for path in journals):
                found.append(f"{name}-{partition}")
    return found


def check_any_moment(source: Path, root: Path) -> None:
    """What is there of the answers is right; answers() raises for two chunks of one name."""
    client = Client(root, CLIENT)
    if client.look():
        client.answers.write(root / "seen")
        compare(source, root / "seen")
    client.close()


def check_final(source: Path, root: Path) -> None:
    compare(source, root / "out")
    for name, group in GROUPS.items():
        for partition in range(group.workers):
            (home,) = (root / "workers" / name).glob(f"*/partition-{partition}/epoch-*")
            books = PersistenceService(home, f"{home.parents[1].name}-{partition}")
            assert books.clients() == [], f"wrong: {name} keeps the state of a finished client"
            books.close()


def compare(source: Path, out: Path) -> None:
    for name in NAMES:
        right, found = ((at / f"{name}.csv").read_bytes() for at in (source / "right", out))
        lines = right.splitlines(), found.splitlines()
        word = "lost" if len(lines[1]) < len(lines[0]) else "duplicated"
        word = "wrong" if len(lines[0]) == len(lines[1]) else word
        assert right == found, f"{word}: {name} has {len(lines[1])} lines, not {len(lines[0])}"
