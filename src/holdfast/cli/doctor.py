"""`holdfast doctor`: looks at the machine, and says what is wrong with it and what to do.

Gathers facts; what is made of them stands in `findings`. It changes nothing: the file it tries
fsync with is removed again.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from holdfast._base.clock import SystemClock
from holdfast._base.files import fsync_file, write_temporary
from holdfast.cli.findings import Facts, Finding, Level, file_system_of, findings_of
from holdfast.cli.settings import NAMES, Settings, load_settings, resolve
from holdfast.cli.sizes import exact_size
from holdfast.cli.words import counted
from holdfast.config import STAGE_OPTIONS
from holdfast.errors import JavaMissing, StorageFailed, UsageInvalid
from holdfast.spark.archive import archive_path
from holdfast.spark.java import Java, find_java
from holdfast.spark.settings import choices, java_options, measure, merged, session_choices

_FSYNCS = 5
_MOUNTS = Path("/proc/self/mountinfo")
_SECRET = re.compile(r"secret|password|token|access\.?key|credential", re.IGNORECASE)
"""Names of settings whose values nobody prints."""
_CHOSEN = "chosen by holdfast"


@dataclass(frozen=True, slots=True)
class Line:
    """One setting: its value, where it came from, and for Spark's why Holdfast chooses it."""

    name: str
    value: str
    origin: str
    reason: str = ""


def doctor_command(state: Path, config_file: Path | None, *, as_json: bool) -> None:
    """Print what was found; exit with 1 if anything is red."""
    settings, problem = _settings(config_file)
    facts = gather(state.absolute(), problem)
    findings = findings_of(facts)
    ours, spark = _our_lines(settings), _spark_lines(settings, facts.java)
    red = sum(finding.level is Level.RED for finding in findings)
    if as_json:
        told = {
            "ok": not red,
            "findings": [asdict(finding) for finding in findings],
            "settings": [asdict(line) for line in ours],
            "spark": [asdict(line) for line in spark],
        }
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        _tell(findings, ours, spark)
        verdict = f"{counted(red, 'red line')}: do what it says after the arrow, then ask again"
        run = "holdfast init shop, or holdfast run PIPELINE --input ... --out ... --state ..."
        sys.stdout.write(f"next: {verdict if red else run}\n")
    if red:
        sys.exit(1)


def gather(state: Path, settings_problem: str) -> Facts:
    """Look at the machine. `state` need not be there; nothing is made."""
    directory = next(path for path in (state, *state.parents) if path.is_dir()).resolve()
    java, java_problem = _java()
    fsync_ms, fsync_problem = _fsync(directory)
    packages = {name: _installed(name) for name in ("pyspark", "pandas", "apsw")}
    mounts = ""
    with suppress(OSError):
        mounts = _MOUNTS.read_text(errors="replace")
    return Facts(
        python=(sys.version_info.major, sys.version_info.minor, sys.version_info.micro),
        executable=sys.executable,
        packages=packages,
        sqlite=_sqlite(),
        java=java,
        java_problem=java_problem,
        archive=_archive(java, packages["pyspark"]),
        directory=directory,
        free_bytes=shutil.disk_usage(directory).free,
        fsync_ms=fsync_ms,
        fsync_problem=fsync_problem,
        file_system=file_system_of(directory, mounts),
        machine=measure(),
        settings_problem=settings_problem,
    )


def _java() -> tuple[Java | None, str]:
    try:
        return find_java(), ""
    except JavaMissing as error:
        return None, f"Spark needs Java 17 or newer, found {error.found}"


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _sqlite() -> str | None:
    try:
        from holdfast._base.sqlite import sqlite_version
    except ImportError:
        return None
    return sqlite_version()


def _archive(java: Java | None, pyspark: str | None) -> Path | None:
    if java is None or pyspark is None:
        return None
    path = archive_path(java)
    return path if path.is_file() else None


def _fsync(directory: Path) -> tuple[float | None, str]:
    """Return how long it takes to make a small file durable, as every commit does; or why not."""
    clock, times = SystemClock(), []
    try:
        for _ in range(_FSYNCS):
            start = clock.monotonic_s()
            temporary, _ = write_temporary(directory, [bytes(4096)])
            fsync_file(directory)
            times.append(clock.monotonic_s() - start)
            temporary.unlink()
    except OSError as error:
        return None, f"cannot write durably in {directory}: {error.strerror}"
    return statistics.median(times) * 1000, ""


def _settings(config_file: Path | None) -> tuple[Settings, str]:
    """Return the settings; where they are refused, the defaults, and why."""
    try:
        return load_settings(config_file, {}), ""
    except (UsageInvalid, StorageFailed) as error:
        return resolve(None, {}, {}), str(error).partition("] ")[2]


def _our_lines(settings: Settings) -> list[Line]:
    config, origins = settings.config, settings.origins
    values = {name: getattr(config, name) for name in NAMES}
    lines = [
        Line(name, exact_size(value) if name.endswith("_bytes") else str(value), origins[name])
        for name, value in values.items()
    ]
    options = [
        (f"stages.{stage}.{option}", getattr(given, option))
        for stage, given in config.stages.items()
        for option in STAGE_OPTIONS
    ]
    return lines + [
        Line(name, str(value), origins[name]) for name, value in options if value is not None
    ]


def _spark_lines(settings: Settings, java: Java | None) -> list[Line]:
    """Return the settings that a long run's session would have."""
    config = settings.config
    if config.master.startswith("sc://"):
        ours = session_choices()
    else:
        options = "" if java is None else java_options(java, short=False)
        ours = choices(config.master, measure(), options)
    reasons = {choice.name: choice.reason for choice in ours}
    return [
        Line(name, _shown(name, value), settings.origins.get(name, _CHOSEN), reasons.get(name, ""))
        for name, value in merged(ours, config.spark).items()
    ]


def _shown(name: str, value: str) -> str:
    return "(not shown)" if _SECRET.search(name) else value


def _tell(findings: Sequence[Finding], ours: Sequence[Line], spark: Sequence[Line]) -> None:
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        level = finding.level.upper() if finding.level is Level.RED else finding.level
        remedy = f" -> {finding.remedy}" if finding.remedy else ""
        sys.stdout.write(f"{level:<4}  {finding.name:<{width}}  {finding.what}{remedy}\n")
    for title, lines in (("settings", ours), ("Spark settings", spark)):
        sys.stdout.write(f"{title}\n")
        _table(lines)


def _table(lines: Iterable[Line]) -> None:
    rows = list(lines)
    width = max(len(line.name) for line in rows)
    for line in rows:
        sys.stdout.write(f"  {line.name:<{width}}  {line.value}  ({line.origin})\n")
