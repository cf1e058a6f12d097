"""The doctor: what it makes of facts, without the machine; and that it gathers real ones."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.doctor import doctor_command, gather
from holdfast.cli.findings import (
    Facts,
    Finding,
    Level,
    file_system_of,
    findings_of,
    version_of,
)
from holdfast.spark.java import Java
from holdfast.spark.settings import Machine

GIB = 1 << 30
GOOD = Facts(
    python=(3, 12, 1),
    executable="/venv/bin/python",
    packages={"pyspark": "4.3.0", "pandas": "2.3.3", "apsw": "3.54.1.0"},
    sqlite="3.54.1",
    java=Java(Path("/jdk"), "17.0.1", "PATH"),
    java_problem="",
    archive=Path("/cache/a.jsa"),
    directory=Path("/data"),
    free_bytes=100 * GIB,
    fsync_ms=1.0,
    fsync_problem="",
    file_system="ext4",
    machine=Machine(cores=4, memory_bytes=16 * GIB),
    settings_problem="",
)


def changed(name: str, **facts: Any) -> Finding:
    """Return the one finding that differs when these facts are otherwise than good."""
    before, after = findings_of(GOOD), findings_of(replace(GOOD, **facts))
    (finding,) = [new for old, new in zip(before, after, strict=True) if old != new]
    assert finding.name == name
    return finding


def test_a_good_machine_has_nothing_to_do() -> None:
    findings = findings_of(GOOD)
    assert {finding.level for finding in findings} == {Level.OK}
    assert {finding.remedy for finding in findings} == {""}
    assert len({finding.name for finding in findings}) == len(findings)


@pytest.mark.parametrize(
    ("name", "facts", "says", "remedy"),
    [
        ("python", {"python": (3, 10, 9)}, "3.10.9", "3.11"),
        ("pyspark", {"packages": {**GOOD.packages, "pyspark": "4.4.0"}}, "4.4.0", "<4.4"),
        ("pyspark", {"packages": {**GOOD.packages, "pyspark": "4.2.9"}}, "4.2.9", ">=4.3"),
        ("pandas", {"packages": {**GOOD.packages, "pandas": "3.0.0"}}, "3.0.0", "<3"),
        ("pandas", {"packages": {**GOOD.packages, "pandas": None}}, "not installed", "[spark]"),
        ("sqlite", {"sqlite": "3.51.2"}, "can lose committed data", "apsw>=3.51.3"),
        ("sqlite", {"sqlite": None}, "not installed", "apsw>=3.51.3"),
        ("disk", {"free_bytes": GIB - 1}, "in /data", "room"),
        ("fsync", {"fsync_ms": None, "fsync_problem": "no"}, "no", "--state"),
        ("file system", {"file_system": "nfs4"}, "nfs4", "local disk"),
        ("file system", {"file_system": "fuse.sshfs"}, "network", "local disk"),
        ("memory", {"machine": Machine(2, 2 * GIB - 1)}, "2.1 GB", "2 GiB"),
        ("settings", {"settings_problem": "a = 1 is wrong. Do b. Or c."}, "a = 1", "Do b. Or c."),
    ],
)
def test_what_does_not_work_is_red_and_says_what_to_do(
    name: str, facts: dict[str, Any], says: str, remedy: str
) -> None:
    finding = changed(name, **facts)
    assert finding.level is Level.RED
    assert says in finding.what
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("name", "facts", "remedy"),
    [
        ("disk", {"free_bytes": 2 * GIB}, "enough"),
        ("fsync", {"fsync_ms": 250.0}, "disk"),
        ("file system", {"file_system": "tmpfs"}, "lost"),
        ("file system", {"file_system": None}, "local disk"),
        ("class archive", {"archive": None}, "/venv/bin/python -m holdfast.spark.archive"),
    ],
)
def test_what_only_hurts_is_a_note(name: str, facts: dict[str, Any], remedy: str) -> None:
    finding = changed(name, **facts)
    assert finding.level is Level.NOTE
    assert remedy in finding.remedy


def test_without_java_there_is_one_red_line_and_no_advice_that_cannot_work() -> None:
    findings = findings_of(replace(GOOD, java=None, java_problem="found none", archive=None))
    told = {finding.name: finding for finding in findings if finding.level is not Level.OK}
    assert told["java"].level is Level.RED
    assert "JAVA_HOME" in told["java"].remedy
    assert told.pop("class archive").remedy == "First correct java and pyspark."
    assert set(told) == {"java"}


@pytest.mark.parametrize("file_system", ["ext4", "xfs", "btrfs", "overlay", "zfs", "fuseblk"])
def test_local_file_systems_are_good(file_system: str) -> None:
    found = findings_of(replace(GOOD, file_system=file_system))
    assert {finding.level for finding in found} == {Level.OK}


MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 0:40 / /home rw - nfs4 server:/home rw
31 27 0:41 / /home/me/my\\040disk rw - xfs /dev/vdb rw
32 27 0:42 / /mnt rw - ext4 /dev/vdc rw
33 32 0:43 / /mnt rw - cifs //server/x rw
not a mount
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/state", "ext4"),
        ("/home/me/state", "nfs4"),
        ("/homestead", "ext4"),
        ("/home/me/my disk/state", "xfs"),
        ("/mnt/x", "cifs"),
        ("/", "ext4"),
    ],
)
def test_the_nearest_mount_tells_the_file_system(path: str, kind: str) -> None:
    assert file_system_of(Path(path), MOUNTS) == kind
    assert file_system_of(Path(path), "") is None


def test_versions_are_read_as_far_as_they_are_numbers() -> None:
    assert version_of("2.3.0rc1") == (2, 3, 0)
    assert version_of("4.3.0.dev1") == (4, 3, 0)
    assert version_of("unknown") == ()


def test_the_facts_of_this_machine_are_real(tmp_path: Path) -> None:
    facts = gather(tmp_path / "not" / "yet", "")
    assert facts.directory == tmp_path.resolve()
    assert facts.fsync_ms is not None
    assert 0 < facts.fsync_ms < 60_000
    assert facts.free_bytes > 0
    assert facts.file_system
    assert facts.packages["pyspark"]
    assert facts.sqlite
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_red() -> None:
    """/proc is one that nobody can write to, root included."""
    facts = gather(Path("/proc"), "")
    assert facts.fsync_ms is None
    (finding,) = [found for found in findings_of(facts) if found.name == "fsync"]
    assert finding.level is Level.RED
    assert "/proc" in finding.what


def told(capsys: pytest.CaptureFixture[str], *, as_json: bool) -> tuple[int, str]:
    code = 0
    try:
        doctor_command(Path(), None, as_json=as_json)
    except SystemExit as ended:
        code = int(str(ended.code))
    return code, capsys.readouterr().out


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_doctor_says_where_each_setting_came_from(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "holdfast.toml").write_text(
        'batch_bytes = "4KiB"\n[spark]\nui.enabled = true\n[stages.priced]\nbatch_size = 7\n'
    )
    monkeypatch.setenv("HOLDFAST_ATTEMPTS_MAX", "5")
    _, out = told(capsys, as_json=True)
    answer = json.loads(out)
    ours = {line["name"]: (line["value"], line["origin"]) for line in answer["settings"]}
    assert ours["batch_bytes"] == ("4KiB", "holdfast.toml:1")
    assert ours["attempts_max"] == ("5", "HOLDFAST_ATTEMPTS_MAX")
    assert ours["chunk_bytes"] == ("32MiB", "default")
    assert ours["stages.priced.batch_size"] == ("7", "holdfast.toml:5")
    assert "stages.priced.log" not in ours
    spark = {line["name"]: line for line in answer["spark"]}
    assert spark["spark.ui.enabled"]["value"] == "true"
    assert spark["spark.ui.enabled"]["origin"] == "holdfast.toml:3"
    assert spark["spark.driver.memory"]["origin"] == "chosen by holdfast"
    assert all(line["reason"] for line in answer["spark"])
    assert answer["ok"] is not any(found["level"] == "red" for found in answer["findings"])
    _, text = told(capsys, as_json=False)
    assert "batch_bytes" in text
    assert "(holdfast.toml:1)" in text
    assert text.splitlines()[-1].startswith("next: ")


def test_settings_that_are_refused_are_one_red_line_and_exit_code_one(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "holdfast.toml").write_text("batch_byte = 1\n")
    code, out = told(capsys, as_json=False)
    assert code == 1
    (line,) = [line for line in out.splitlines() if line.startswith("RED")]
    assert "holdfast.toml:1: there is no setting batch_byte -> Did you mean batch_bytes?" in line
    assert out.splitlines()[-1].startswith("next: 1 red line")
