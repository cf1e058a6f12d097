"""The wheel that is built here, apart from this checkout: it has all it needs, and works."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with nothing but what the wheel holds."""
    made, site = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(made)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = made.glob("holdfast-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    return site


def test_it_holds_every_file_of_the_packages(site: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "src"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    wanted = {line.removeprefix("src/") for line in listed.stdout.splitlines()}
    assert {path for path in wanted if not (site / path).is_file()} == set()
    found = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    assert {path for path in found - wanted if ".dist-info/" not in path} == set()


def test_a_new_project_runs_with_it(site: Path, tmp_path: Path) -> None:
    """From an empty directory; this checkout's own packages come after the wheel's."""
    environment = {**os.environ, "PYTHONPATH": str(site)}

    def run(*arguments: str, cwd: Path) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = run(
        "-c",
        "import holdfast, pyspark_holdfast as p; print(holdfast.__file__, p.__file__)",
        cwd=tmp_path,
    )
    assert [Path(name).is_relative_to(site) for name in where.split()] == [True, True]
    run("-m", "holdfast.cli", "init", "shop", cwd=tmp_path)
    shop = tmp_path / "shop"
    run(
        "-m",
        "holdfast.cli",
        "run",
        "pipeline.py",
        "--input",
        "data",
        "--state",
        "state",
        "--out",
        "answers",
        cwd=shop,
    )
    assert {path.name for path in (shop / "answers").iterdir()} == {"large.csv", "by_city.csv"}
