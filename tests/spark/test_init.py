"""A project as `holdfast init` makes it: its README's commands, its test, a kill in the middle."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(sys.executable).parent
ENVIRONMENT = {
    **{key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")},
    "PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}",
}


def shell(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run one line as a reader would."""
    return subprocess.run(
        ["bash", "-c", command],
        cwd=cwd,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )


def commands_of(project: Path, heading: str) -> list[str]:
    """Return the commands below a heading of the project's README, a line each."""
    _, _, rest = (project / "README.md").read_text().partition(heading)
    (block, *_) = re.findall(r"^```bash\n(.*?)^```", rest, re.DOTALL | re.MULTILINE)
    return [str(line) for line in block.splitlines()]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("init")
    made = shell("holdfast init shop", root)
    assert made.returncode == 0, made.stderr
    return root / "shop"


def answers_of(project: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (project / "answers").iterdir()}


@pytest.fixture(scope="module")
def answers(project: Path) -> dict[str, bytes]:
    """What the first commands of the README lead to."""
    for command in commands_of(project, "# shop"):
        done = shell(command, project)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
    return answers_of(project)


def test_the_commands_of_its_readme_work(answers: dict[str, bytes]) -> None:
    assert set(answers) == {"large.csv", "by_city.csv"}
    assert answers["by_city.csv"].startswith(b"city,amount,sales\nBergen,")
    assert answers["large.csv"].count(b"\n") > 100


def test_killed_in_the_middle_and_run_again_it_resumes(
    project: Path, answers: dict[str, bytes]
) -> None:
    remove, kill, status, resume, verify = commands_of(project, "## Kill it")
    assert shell(remove, project).returncode == 0
    killed = shell(kill, project)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (project / "answers").exists()
    assert shell(status, project).returncode == 0
    resumed = shell(f"{resume} --json", project)
    assert resumed.returncode == 0, resumed.stderr
    # Five batches, two of them committed before the kill.
    assert '"batches": 3' in resumed.stdout, resumed.stdout
    assert shell(verify, project).returncode == 0
    assert answers_of(project) == answers


def test_its_test_passes_as_made(project: Path) -> None:
    tested = shell("pytest -q", project)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "1 passed" in tested.stdout
