"""What `holdfast doctor` makes of the facts it gathered: pure, a finding for each.

A red finding says what to do; so does a note, which stops nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from holdfast.cli.words import size_of
from holdfast.config import MIB
from holdfast.spark.java import Java
from holdfast.spark.settings import Machine, driver_memory_mib

PYTHON_OLDEST = (3, 11)
SQLITE_OLDEST = (3, 51, 3)
FREE_LEAST_BYTES = 1024 * MIB
"""Less: a run of the default batch size may not finish one batch and its shuffle files."""
FREE_ROOMY_BYTES = 10 * 1024 * MIB
MEMORY_LEAST_BYTES = 2 * 1024 * MIB
"""Less: the driver's smallest heap (1 GiB) leaves nothing for Python and the page cache."""
FSYNC_SLOW_MS = 100.0
"""A spinning disk takes about 10 ms. Each commit waits for a few of them."""

NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "9p", "afs", "lustre", "gpfs", "beegfs"),
        *("ceph", "glusterfs", "fuse.ceph", "fuse.glusterfs", "fuse.sshfs", "fuse.s3fs"),
        *("fuse.rclone", "fuse.gcsfuse", "fuse.juicefs"),
    )
)
IN_MEMORY = frozenset(("tmpfs", "ramfs"))

SPARK_EXTRA = "pip install 'holdfast[spark]'"


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    RED = "red"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's. `remedy` is empty where there is nothing to do."""

    name: str
    level: Level
    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was seen on this machine. None: it is not there, or could not be found out."""

    python: tuple[int, int, int]
    executable: str
    packages: Mapping[str, str | None]
    sqlite: str | None
    java: Java | None
    java_problem: str
    archive: Path | None
    directory: Path
    """Where the state is to be, or the nearest directory above it that is there."""
    free_bytes: int
    fsync_ms: float | None
    fsync_problem: str
    file_system: str | None
    machine: Machine
    settings_problem: str
    """Why the settings are refused; empty if they are not."""


def findings_of(facts: Facts) -> list[Finding]:
    """Return what is to be said of these facts."""
    return [
        _python(facts),
        _java(facts),
        _package(facts, "pyspark", (4, 3), (4, 4)),
        _package(facts, "pandas", (2, 2), (3,)),
        _sqlite(facts),
        _room(facts),
        _fsync(facts),
        _file_system(facts),
        _memory(facts),
        _archive(facts),
        _settings(facts),
    ]


def version_of(text: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def file_system_of(path: Path, mountinfo: str) -> str | None:
    """Return the type of the file system that `path` is on, by the kernel's list of mounts."""
    best, found = -1, None
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        if len(left.split()) < 5 or not right:
            continue
        # The kernel writes blanks in names as octal numbers.
        name = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), left.split()[4])
        # Of two mounts on one place the later hides the earlier.
        if path.is_relative_to(name) and len(name) >= best:
            best, found = len(name), right.split()[0]
    return found


def _python(facts: Facts) -> Finding:
    what = f"{'.'.join(map(str, facts.python))} at {facts.executable}"
    if facts.python >= PYTHON_OLDEST:
        return Finding("python", Level.OK, what)
    return Finding("python", Level.RED, what, "Install Python 3.11 or newer.")


def _java(facts: Facts) -> Finding:
    if facts.java is None:
        remedy = "Set JAVA_HOME to a Java 17 or newer, or: pip install 'holdfast[java]'"
        return Finding("java", Level.RED, facts.java_problem, remedy)
    java = facts.java
    return Finding("java", Level.OK, f"{java.version} at {java.home} (by {java.origin})")


def _package(facts: Facts, name: str, least: tuple[int, ...], below: tuple[int, ...]) -> Finding:
    found = facts.packages.get(name)
    if found is None:
        return Finding(name, Level.RED, "not installed", SPARK_EXTRA)
    if least <= version_of(found) < below:
        return Finding(name, Level.OK, found)
    wanted = f">={'.'.join(map(str, least))},<{'.'.join(map(str, below))}"
    return Finding(name, Level.RED, f"{found} does not fit", f"pip install '{name}{wanted}'")


def _sqlite(facts: Facts) -> Finding:
    wanted = ".".join(map(str, SQLITE_OLDEST))
    remedy = f"pip install 'apsw>={wanted}.0'"
    if facts.sqlite is None:
        return Finding("sqlite", Level.RED, "apsw is not installed", remedy)
    what = f"{facts.sqlite} (apsw {facts.packages.get('apsw')})"
    if version_of(facts.sqlite) >= SQLITE_OLDEST:
        return Finding("sqlite", Level.OK, what)
    return Finding("sqlite", Level.RED, f"{what} can lose committed data", remedy)


def _room(facts: Facts) -> Finding:
    what = f"{size_of(facts.free_bytes)} free in {facts.directory}"
    if facts.free_bytes < FREE_LEAST_BYTES:
        remedy = "Make room, or give --state on another disk."
        return Finding("disk", Level.RED, what, remedy)
    if facts.free_bytes < FREE_ROOMY_BYTES:
        remedy = "A run writes about as much as it reads: see that this is enough."
        return Finding("disk", Level.NOTE, what, remedy)
    return Finding("disk", Level.OK, what)


def _fsync(facts: Facts) -> Finding:
    if facts.fsync_ms is None:
        remedy = "Give --state in a directory of a local disk that you may write to."
        return Finding("fsync", Level.RED, facts.fsync_problem, remedy)
    what = f"{facts.fsync_ms:.2f} ms for 4 KB in {facts.directory}"
    if facts.fsync_ms > FSYNC_SLOW_MS:
        remedy = "Each commit waits for a few of these: a quicker disk makes quicker runs."
        return Finding("fsync", Level.NOTE, what, remedy)
    return Finding("fsync", Level.OK, what)


def _file_system(facts: Facts) -> Finding:
    kind = facts.file_system
    if kind is None:
        remedy = "See that it is a local disk: locks and SQLite's log do not work over a network."
        return Finding("file system", Level.NOTE, "not in the kernel's list of mounts", remedy)
    if kind in NETWORK:
        what = f"{kind}, a network file system: locks and SQLite's log do not work on it"
        return Finding("file system", Level.RED, what, "Give --state on a local disk.")
    if kind in IN_MEMORY:
        remedy = "Give --state on a disk, unless the work may be lost."
        return Finding("file system", Level.NOTE, f"{kind}: a power cut takes it", remedy)
    return Finding("file system", Level.OK, f"{kind}, local")


def _memory(facts: Facts) -> Finding:
    machine = facts.machine
    driver = size_of(driver_memory_mib(machine) * MIB)
    what = f"{size_of(machine.memory_bytes)}, {driver} of it for Spark's driver by default"
    if machine.memory_bytes < MEMORY_LEAST_BYTES:
        remedy = "Spark needs 2 GiB: give this machine, or this container, more."
        return Finding("memory", Level.RED, what, remedy)
    return Finding("memory", Level.OK, what)


def _archive(facts: Facts) -> Finding:
    if facts.archive is not None:
        return Finding("class archive", Level.OK, str(facts.archive))
    what = "none: short runs start in twice the time"
    if facts.java is None or facts.packages.get("pyspark") is None:
        return Finding("class archive", Level.NOTE, what, "First correct java and pyspark.")
    remedy = f"Make it once: {facts.executable} -m holdfast.spark.archive"
    return Finding("class archive", Level.NOTE, what, remedy)


def _settings(facts: Facts) -> Finding:
    if not facts.settings_problem:
        return Finding("settings", Level.OK, "every one is known and in range")
    what, _, remedy = facts.settings_problem.partition(". ")
    return Finding("settings", Level.RED, what, remedy)
