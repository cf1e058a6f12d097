"""A full disk, at any write: one named error, nothing lost, and room makes the run go on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.crash.workloads import expected, write_inputs
from tests.mounts import small_disk
from tests.unit.plain_runs import answers_in, run_toy

from holdfast.errors import DiskFull
from holdfast.queries import verify

SIZES_KIB = [*range(4, 44, 8), *range(44, 3300, 100)]
"""From a disk that holds no store to one that holds a whole run."""


def full_at(root: Path) -> str:
    """Run below `root`; returns the name of the place that was full, if one was."""
    try:
        run_toy(root)
    except DiskFull as error:
        return str(Path(error.path).relative_to(root))
    return "done"


def test_a_full_disk_at_any_write_is_named_and_the_run_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    """State and results on disks of many sizes: each fills up at another write of the run."""
    write_inputs(tmp_path / "in")
    ended: Counter[str] = Counter()
    for kib in SIZES_KIB:
        with small_disk(tmp_path / str(kib), kib) as disk:
            (disk.path / "in").symlink_to(tmp_path / "in")
            ended[full_at(disk.path)] += 1
            disk.resize(8192)
            run_toy(disk.path)
            assert answers_in(disk.path / "out") == expected(), kib
            assert verify(disk.path / "state", disk.path / "out").findings == ()
    # The sizes are of use only while they reach from the first write to the last.
    assert ended["state/store.sqlite3"] >= 10
    assert ended["done"] >= 1


def test_each_try_on_a_full_disk_leaves_as_much_room_as_the_one_before(tmp_path: Path) -> None:
    write_inputs(tmp_path / "in")
    with small_disk(tmp_path / "disk", 200) as disk:
        (disk.path / "in").symlink_to(tmp_path / "in")
        for _ in range(2):
            with pytest.raises(DiskFull):
                run_toy(disk.path)
            assert [path.name for path in (disk.path / "state").iterdir()] == ["holdfast.lock"]


@pytest.mark.parametrize("place", ["partials", "export"])
def test_the_place_that_is_full_is_named(tmp_path: Path, place: str) -> None:
    """Only what the executor writes, or only the results, on the small disk."""
    write_inputs(tmp_path / "in")
    small = tmp_path / ("state/runs" if place == "partials" else "out")
    with small_disk(small, 4) as disk:
        (disk.path / "ballast").write_bytes(bytes(4096))
        with pytest.raises(DiskFull) as caught:
            run_toy(tmp_path)
        assert caught.value.path.startswith(str(small))
        disk.resize(1024)
        run_toy(tmp_path)
        assert answers_in(tmp_path / "out") == expected()
