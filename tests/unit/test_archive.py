from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.spark.archive import archive_option, archive_path, make_archive
from holdfast.spark.java import Java, cache_directory

JAVA = Java(Path("/jdk"), "17.0.15", "PATH")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)


def train(monkeypatch: pytest.MonkeyPatch, result: Any) -> list[Path]:
    """Put `result` in the place of the training session; returns where it was told to write."""
    told: list[Path] = []

    def run(command: list[str], **_: Any) -> None:
        told.append(Path(command[-1]))
        if isinstance(result, Exception):
            raise result
        if result is not None:
            told[-1].write_bytes(result)

    monkeypatch.setattr(subprocess, "run", run)
    return told


def test_there_is_no_option_until_an_archive_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    assert archive_option(JAVA) is None
    told = train(monkeypatch, b"classes")
    assert make_archive(JAVA)
    assert archive_option(JAVA) == f"-XX:SharedArchiveFile={archive_path(JAVA)}"
    assert archive_path(JAVA).read_bytes() == b"classes"
    assert make_archive(JAVA)
    assert len(told) == 1


def test_in_a_virtual_environment_it_lives_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    assert tmp_path / "venv" in archive_path(JAVA).parents


def test_another_java_has_another_archive() -> None:
    other = Java(JAVA.home, "17.0.16", JAVA.origin)
    assert archive_path(other) != archive_path(JAVA)


@pytest.mark.parametrize(
    "result",
    [
        None,
        OSError(28, "No space left on device"),
        subprocess.CalledProcessError(1, "java"),
        subprocess.TimeoutExpired("java", 1),
    ],
)
def test_a_failed_training_leaves_nothing_and_is_no_error(
    monkeypatch: pytest.MonkeyPatch, result: Exception | None
) -> None:
    train(monkeypatch, result)
    assert not make_archive(JAVA)
    assert archive_option(JAVA) is None
    assert list(archive_path(JAVA).parent.iterdir()) == []
    assert cache_directory() in archive_path(JAVA).parents
