"""Bits flipped in the store in the middle of a run: a named error or the right answer."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.crash.workloads import SMALL, expected, write_inputs
from tests.mounts import small_disk
from tests.unit.plain_runs import answers_in, run_toy

from holdfast.engine.executor import BatchWork, SeriesWork
from holdfast.errors import Damaged, StorageFailed
from holdfast.store.sqlite.connection import Database

FLIPS = 120
SEED = 20261116


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Return a directory in memory: hundreds of runs would wait for the disk otherwise."""
    with small_disk(tmp_path / "memory", 32 * 1024) as disk:
        yield disk.path


@pytest.fixture
def halted(place: Path) -> Path:
    """Return the directory of a run that stopped after some committed batches."""
    root = place / "halted"
    write_inputs(root / "in")
    begun: list[str] = []

    def stop_at_the_fifth(work: BatchWork | SeriesWork) -> None:
        begun.append(work.directory)
        if len(begun) == 5:
            raise StorageFailed(path="", error="stopped here")

    with pytest.raises(StorageFailed, match="stopped here"):
        run_toy(root, before=stop_at_the_fifth)
    database = Database.file(root / "state" / "store.sqlite3", SMALL)
    database.gather()
    database.close()
    return root


def test_no_flipped_bit_in_the_store_gives_a_wrong_answer(halted: Path, place: Path) -> None:
    """Without checksums one in forty of these runs ended DONE with rows missing or doubled."""
    sound = (halted / "state" / "store.sqlite3").read_bytes()
    used = [position for position, value in enumerate(sound) if value]
    draw = random.Random(SEED)
    finished = 0
    for number in range(FLIPS):
        byte, bit = draw.choice(used), 1 << draw.randrange(8)
        root = place / str(number)
        shutil.copytree(halted / "state", root / "state")
        data = bytearray(sound)
        data[byte] ^= bit
        (root / "state" / "store.sqlite3").write_bytes(data)
        files = {name: [halted / "in" / f"{name}.csv"] for name in ("sales", "notes", "shops")}
        with suppress(Damaged):
            run_toy(root, files=files)
            assert answers_in(root / "out") == expected(), f"byte {byte}, bit {bit}"
            finished += 1
        shutil.rmtree(root)
    # A bit in a page that nobody needs again is harmless; most are not.
    assert finished < FLIPS // 2
