"""Crash points: idle in production, deadly where armed, each declared and used once."""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast._base import crashpoint

SOURCE = Path(holdfast.__file__).parent
NAME = "store.transaction.before"


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    crashpoint.disarm()


def test_nothing_happens_unless_armed() -> None:
    crashpoint.crashpoint(NAME)
    crashpoint.crashpoint("no such point: production does not look it up")


def test_the_chosen_pass_dies() -> None:
    deaths: list[int] = []
    crashpoint.arm(NAME, 2, die=lambda: deaths.append(1))
    crashpoint.crashpoint(NAME)
    crashpoint.crashpoint("store.transaction.after")
    assert deaths == []
    crashpoint.crashpoint(NAME)
    assert deaths == [1]
    crashpoint.crashpoint(NAME)
    assert deaths == [1]


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="no crash point"):
        crashpoint.arm("no.such.point", 1)


def test_passes_are_recorded(tmp_path: Path) -> None:
    record = tmp_path / "passes"
    assert crashpoint.recorded(record) == Counter()
    crashpoint.record(record)
    for name in ("b", "a", "b"):
        crashpoint.crashpoint(name)
    assert list(crashpoint.recorded(record).items()) == [("b", 2), ("a", 1)]


def test_the_environment_arms_a_child(tmp_path: Path) -> None:
    """The child ends by SIGKILL at the second pass: no handler, no flush."""
    code = (
        "from holdfast._base import crashpoint as c; c.arm_from_environment();"
        f"c.crashpoint('{NAME}'); print('one', flush=True); c.crashpoint('{NAME}'); print('two')"
    )

    def run(**variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    killed = run(**{crashpoint.ARM_VARIABLE: f"{NAME}:2"})
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "one\n")
    record = tmp_path / "passes"
    assert run(**{crashpoint.RECORD_VARIABLE: str(record)}).returncode == 0
    assert crashpoint.recorded(record) == Counter({NAME: 2})


def test_each_point_is_used_in_one_place() -> None:
    used = Counter(
        name
        for path in SOURCE.rglob("*.py")
        for name in re.findall(r"""(?<![\w.])crashpoint\(\s*["']([^"']+)["']""", path.read_text())
    )
    assert {name: count for name, count in used.items() if count > 1} == {}
    assert set(used) <= set(crashpoint.POINTS)
    for point in ("store.transaction.before", "store.transaction.after"):
        assert used[point] == 1
    for point in ("blobs.create.written", "blobs.create.linked"):
        assert used[point] == 1
