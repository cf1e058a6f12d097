"""What all benchmarks share: machine facts, process trees, result files.

A result file is `bench/results/NAME.json`: machine, settings, figures with all their values
(`holdfast.cli.measure.Figure`). Nothing here knows what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from holdfast.cli.measure import Figure, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESULTS = Path(__file__).parent / "results"
MIB = 1 << 20
POLL_S = 0.5
"""How often memory is looked at: a shorter peak may be missed. A look costs 10 ms of a core, which
at ten looks a second would be part of what is measured."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured. Figures of two sizes are never compared."""

    name: str
    rounds: int
    scale: float
    log_records: tuple[int, ...]
    resume_records: tuple[int, int]
    chunks: tuple[int, ...]
    spark_chunks: tuple[int, ...]
    stage_chunks: int
    peers: bool = True
    """Whether others than plain PySpark take part."""


QUICK = Size("quick", 3, 0.005, (10_000,), (1_000, 20_000), (1, 10, 100), (1, 10), 16, peers=False)
"""Two minutes: what a change did to the ratios."""
NORMAL = Size(
    "normal",
    5,
    0.1,
    (10_000, 100_000, 1_000_000),
    (10_000, 1_000_000),
    (1, 10, 100, 1000),
    (1, 10, 100),
    40,
)
LARGE = replace(NORMAL, name="large", scale=1.0, peers=False)
"""Of the race alone: a round takes six minutes."""
SIZES = {size.name: size for size in (QUICK, NORMAL, LARGE)}


@dataclass(slots=True)
class Tree:
    """What this process and all below it used, between the start and the end of a `with`."""

    cpu_s: float = 0.0
    written_bytes: int = 0
    peak_mib: dict[str, float] = field(default_factory=dict)
    """The largest resident size seen of each kind of process; of several alike, their sum.

    Python workers share pages with the daemon they are forked from, which count once for each.
    """


@contextmanager
def tree_watched(pid: int | None = None) -> Iterator[Tree]:
    """Watch a process, by default this one, and all below it: CPU, bytes written, memory.

    Of another process that ends meanwhile, only memory is known.
    """
    tree, ended = Tree(), threading.Event()
    cpu, written = _cpu_s(pid), _written_bytes(pid)

    def watch() -> None:
        while not ended.wait(POLL_S):
            _look_at_memory(tree, pid)

    thread = threading.Thread(target=watch, daemon=True)
    _look_at_memory(tree, pid)
    thread.start()
    try:
        yield tree
    finally:
        ended.set()
        thread.join()
        tree.cpu_s = _cpu_s(pid) - cpu
        tree.written_bytes = _written_bytes(pid) - written


def _processes(pid: int | None) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    return []


def _cpu_s(pid: int | None) -> float:
    """Return the CPU time of the tree; children that have ended count with their parents."""
    total = 0.0
    for process in _processes(pid):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


JVM = "JVM"
_KINDS = {
    "holdfast.cli": "engine",
    "holdfast.spark.child": "Spark driver",
    "pyspark.daemon": "Python workers",
    "--multiprocessing-fork": "engine",
    "/java": JVM,
}
"""What a process is to us, by a word of its command line."""


def _kind(process: psutil.Process) -> str | None:
    if process.pid == os.getpid():
        return "bench"
    words = process.cmdline()
    # The end of a word: of a path, or of a module's name.
    found = [kind for end, kind in _KINDS.items() if any(word.endswith(end) for word in words)]
    return found[0] if found else None


def _look_at_memory(tree: Tree, pid: int | None) -> None:
    sizes: dict[str, float] = {}
    for process in _processes(pid):
        with suppress(psutil.Error):
            kind, size = _kind(process), process.memory_info().rss / MIB
            if kind == JVM:
                # A child of the JVM that is about to run chmod has, for a moment, all its pages.
                sizes[kind] = max(sizes.get(kind, 0.0), size)
            elif kind is not None:
                sizes[kind] = sizes.get(kind, 0.0) + size
    for kind, size in {**sizes, "all processes": sum(sizes.values())}.items():
        tree.peak_mib[kind] = max(tree.peak_mib.get(kind, 0.0), size)


def _written_bytes(pid: int | None) -> int:
    """Return what the tree handed to the disk; children that have ended count with their parents.

    A file that is deleted before the kernel wrote it out counts as well.
    """
    total = 0
    for process in _processes(pid):
        with suppress(psutil.Error, OSError):
            text = Path(f"/proc/{process.pid}/io").read_text(encoding="ascii")
            facts = dict(line.split(": ") for line in text.splitlines())
            total += int(facts["write_bytes"])
    return total


def machine() -> dict[str, Any]:
    """Return what a reader needs to judge the figures by."""
    cpu = ""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def write_result(
    name: str,
    figures: Sequence[Figure],
    settings: dict[str, Any],
    *,
    load: float,
    to: Path = RESULTS,
) -> Path:
    """Write a result file; `load` is the machine's load before the benchmark itself loaded it."""
    to.mkdir(parents=True, exist_ok=True)
    path = to / f"{name}.json"
    content = {
        "name": name,
        "machine": {**machine(), "load_1m": round(load, 2)},
        "settings": settings,
        "figures": [one.as_json() for one in figures],
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="ascii")
    return path


def read_result(path: Path) -> tuple[dict[str, Any], list[Figure]]:
    """Return a result file's facts and its figures."""
    content = json.loads(path.read_text(encoding="ascii"))
    return content, [Figure.from_json(one) for one in content.pop("figures")]


@contextmanager
def workspace(at: Path | None = None, *, keep: Path | None = None) -> Iterator[Path]:
    """Yield a directory for one benchmark, removed at its end unless it is to be kept."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.absolute()
        return
    path = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=at))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def session(root: Path, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Yield the session that `holdfast run` would build for a long run."""
    from holdfast.spark.session import build_session

    spark = build_session(
        master=None,
        app_name="holdfast bench",
        conf=conf or {},
        log_file=root / "spark.log",
        short=False,
    )
    try:
        yield spark
    finally:
        spark.stop()


Measure = Callable[[Size, Path], list[Figure]]


def measured(name: str, measure: Measure, size: Size, *, at: Path | None, to: Path) -> Path:
    """Run one benchmark, print its table and write its result file."""
    load = os.getloadavg()[0]
    with workspace(at) as root:
        figures = measure(size, root)
    say("")
    say_table(figures)
    path = write_result(name, figures, {"size": size.name, "rounds": size.rounds}, load=load, to=to)
    say(f"wrote {path}\n")
    return path


def alone(name: str, measure: Measure) -> None:
    """Run one benchmark by itself, as `python -m bench.NAME`."""
    parser = argparse.ArgumentParser(prog=f"bench.{name}")
    parser.add_argument("--size", choices=SIZES, default="normal")
    parser.add_argument("--rounds", type=int, help="instead of the size's own number")
    parser.add_argument("--dir", type=Path, help="a directory on the disk to measure")
    parser.add_argument("--out", type=Path, help="where the result file goes; none: nowhere")
    options = parser.parse_args()
    size = SIZES[options.size]
    size = replace(size, rounds=options.rounds or size.rounds)
    if options.out:
        measured(name, measure, size, at=options.dir, to=options.out)
        return
    with workspace(options.dir) as root:
        say_table(measure(size, root))


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say_table(figures: Sequence[Figure]) -> None:
    """Print figures as a table."""
    for line in table(figures):
        say(line)
