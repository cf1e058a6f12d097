"""Two results are told apart only where they differ by more than they vary themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench.compare import Change, beside, changes
from bench.harness import read_result, tree_watched, write_result

from holdfast.cli.measure import Figure

ROOT = Path(__file__).parents[2]


def figure(*values: float, name: str = "f", unit: str = "s", better: Any = "lower") -> Figure:
    return Figure(name, unit, values, better)


@pytest.mark.parametrize(
    ("old", "new", "better", "regressed"),
    [
        ((10, 10, 10), (10.9, 10.9, 10.9), "lower", False),  # within a tenth: nothing
        ((10, 10, 10), (11.1, 11.1, 11.1), "lower", True),
        ((10, 10, 10), (5, 5, 5), "lower", False),
        ((8, 10, 12), (13, 13, 13), "lower", False),  # the old run varied by 40 %
        ((10, 10, 10), (9, 13, 14), "lower", False),  # the new one by 38 %
        ((8, 10, 12), (15, 15, 15), "lower", True),
        ((10, 10, 10), (9.2, 9.2, 9.2), "higher", False),
        ((10, 10, 10), (8.9, 8.9, 8.9), "higher", True),
        ((10, 10, 10), (20, 20, 20), "higher", False),
        ((10, 10, 10), (0, 0, 0), "higher", True),
        ((0, 0, 0), (5, 5, 5), "lower", False),
        ((10,), (30, 30, 30), "lower", False),  # measured once: nobody knows how it varies
        ((10, 10, 10), (30,), "lower", False),
    ],
)
def test_a_regression_is_what_exceeds_the_noise(
    old: tuple[float, ...], new: tuple[float, ...], better: str, regressed: bool
) -> None:
    change = Change(figure(*old, better=better), figure(*new, better=better))
    assert change.regressed is regressed


def test_figures_are_paired_by_name_and_only_ratios_between_machines() -> None:
    old = [figure(1.0, name="a"), figure(1.0, name="b", unit="x"), figure(1.0, name="gone")]
    new = [figure(2.0, name="b", unit="x"), figure(3.0, name="a"), figure(1.0, name="new")]
    assert [one.new.name for one in changes(old, new, ratios_only=False)] == ["b", "a"]
    assert [one.new.name for one in changes(old, new, ratios_only=True)] == ["b"]


def test_side_by_side_only_twice_as_bad_is_a_failure() -> None:
    old = [
        figure(1.0, name="worse", unit="x"),
        figure(1.0, name="bad", unit="x"),
        figure(1.0, name="rate", unit="x", better="higher"),
        figure(1.0, name="seconds"),
        figure(0.5, 1.0, 2.0, name="wild", unit="x"),
    ]
    new = [
        figure(1.9, name="worse", unit="x"),
        figure(2.1, name="bad", unit="x"),
        figure(0.4, name="rate", unit="x", better="higher"),
        figure(9.0, name="seconds"),
        figure(2.4, name="wild", unit="x"),
    ]
    lines, failed = beside(old, new)
    assert failed == ["bad", "rate"]
    assert lines[0] == "worse: 1.90 now, 1.00 committed"
    assert len(lines) == 4


def write(directory: Path, *figures: Figure, size: str = "quick") -> Path:
    return write_result("some", figures, {"size": size, "rounds": 3}, load=0.5, to=directory)


def compare(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.compare", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_the_command_fails_on_a_regression_and_names_it(tmp_path: Path) -> None:
    old = write(tmp_path / "old", figure(1.0, 1.0, name="quick one"), figure(1.0, name="same"))
    write(tmp_path / "new", figure(1.5, 1.5, name="quick one"), figure(1.0, name="same"))
    done = compare(tmp_path / "old", tmp_path / "new")
    assert done.returncode == 1, done.stderr
    assert "quick one: 1.00 -> 1.50 s (50% worse, noise 10%) WORSE" in done.stdout
    assert "same: 1.00 -> 1.00 s (0% better, measured once: not judged)" in done.stdout
    assert "2 figures compared, 1 worse beyond noise" in done.stdout
    same = compare(old, old)
    assert same.returncode == 0, same.stderr
    assert compare(tmp_path / "old", tmp_path / "none").returncode == 2


def test_seconds_of_another_machine_are_not_compared(tmp_path: Path) -> None:
    figures = (figure(1.0, name="seconds"), figure(1.0, name="ratio", unit="x"))
    old = write(tmp_path / "old", *figures)
    content = json.loads(old.read_text())
    content["machine"]["cpu"] = "another"
    old.write_text(json.dumps(content))
    write(tmp_path / "new", figure(9.0, name="seconds"), figure(1.0, name="ratio", unit="x"))
    done = compare(tmp_path / "old", tmp_path / "new")
    assert done.returncode == 0, done.stdout
    assert "only ratios are compared" in done.stdout
    assert "seconds" not in done.stdout


def test_a_result_file_keeps_machine_settings_and_all_values(tmp_path: Path) -> None:
    figures = [figure(1.0, 2.0, 4.0)]
    facts, found = read_result(write(tmp_path, *figures))
    assert found == figures
    assert facts["settings"] == {"size": "quick", "rounds": 3}
    assert facts["machine"]["load_1m"] == 0.5
    assert facts["machine"]["cores"] >= 1


def test_a_watched_tree_counts_its_children(tmp_path: Path) -> None:
    """CPU time and bytes of a child that has ended count, and its memory while it ran."""
    work = "import os;b=b'x'*(1<<22);f=open('f','wb');f.write(b);f.flush();os.fsync(f.fileno())"
    with tree_watched() as tree:
        subprocess.run([sys.executable, "-c", work], check=True, cwd=tmp_path)
    assert tree.cpu_s > 0.005
    assert tree.peak_mib["bench"] > 5
    assert tree.peak_mib["all processes"] >= tree.peak_mib["bench"]
    if tmp_path.stat().st_dev != Path("/dev/shm").stat().st_dev:
        assert tree.written_bytes >= 1 << 22
