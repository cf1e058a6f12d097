"""Files of format 1 of a file ledger, as they were written once: today's code reads them.

`tests/golden/ledger-v1` was made by `make` below and is never made again: a change that cannot
read it needs a new format number. `make` also shows that today's code still writes the same.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import apsw
import pyarrow.parquet as pq
import pytest

from holdfast.ledger import compact, file_ledger, owner
from holdfast.ledger.contract import DeadLetter, Outcome, Slot, Status, Step, inputs_hash, slot_hash
from holdfast.ledger.database import COLUMNS
from holdfast.ledger.file_ledger import FileLedger
from holdfast.testing.clock import VirtualClock
from holdfast.testing.ledgers import claim

GOLDEN = Path(__file__).parents[1] / "golden" / "ledger-v1"
STEP = Step(1, "ask", 0)
FINGERPRINT = {"model": "m-1", "prompt": "p-1"}
LARGE = b"large answer " * 10
WALL_MS = 1_700_000_000_000


def slot(key: str) -> Slot:
    return Slot(slot_hash(STEP.id, key), STEP.id, key, inputs_hash(key.encode()))


def outcome(key: str, status: Status, answer: bytes | None = None, **more: Any) -> Outcome:
    return Outcome(slot(key), status, answer, recorded_ms=WALL_MS, **more)


SETTLED = [
    outcome("settled", Status.BOUGHT, b"\x00 answer \xff", cost_micros=2000),
    outcome("k\u00e9y", Status.BOUGHT, LARGE, cost_micros=3000),
    outcome("parked", Status.PARKED, reason="unknown outcome"),
    outcome("bad", Status.FAILED, reason="refused", dead_letter=True),
]
"""Compacted into Parquet, one answer in a blob."""
RECORDED = [
    outcome("recorded", Status.BOUGHT, b"in a segment", attempts=2, cost_micros=5),
    outcome("recorded large", Status.BOUGHT, LARGE[:-1]),
    outcome("recorded parked", Status.PARKED, reason="unknown"),
    outcome("recorded bad", Status.FAILED, reason="never", dead_letter=True),
]
"""In the segment of an owner that died, and that SQLite does not know yet."""
IN_DOUBT = ["open"]
"""Claimed by it, and nothing more."""


def make(path: Path) -> None:
    """Write the ledger, the same each time: tokens, times and the pid are given."""
    clock = VirtualClock(wall_ms=WALL_MS)
    ledger = FileLedger(f"file://{path}", clock=clock)
    assert ledger.step("ask", FINGERPRINT, on_change="refuse") == STEP
    claim(ledger, [one.slot for one in SETTLED])
    ledger.settle(SETTLED)
    ledger.close()
    ledger = FileLedger(f"file://{path}", clock=clock)
    ledger.compact()
    claim(ledger, [*(one.slot for one in RECORDED), slot("open")])
    ledger.settle(RECORDED)
    ledger.abandon()
    ledger._database.close()


def fix_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = (f"{number:032x}" for number in itertools.count(1))
    for module in (compact, owner):
        monkeypatch.setattr(module, "fresh_token", lambda: next(tokens))
    monkeypatch.setattr("holdfast.ledger.database.fresh_token", lambda: "f" * 32)
    monkeypatch.setattr(os, "getpid", lambda: 4242)
    monkeypatch.setattr(file_ledger, "BLOB_BYTES", 100)


def contents(path: Path) -> dict[str, Any]:
    """Read the database without Holdfast: its tables and their rows, all but what Parquet's
    version decides."""
    connection = apsw.Connection(str(path / "ledger.sqlite"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        found: dict[str, Any] = {
            "schema": connection.execute(
                "SELECT name, sql FROM sqlite_schema ORDER BY 1"
            ).fetchall()
        }
        found["version"] = (connection.pragma("user_version"), connection.pragma("application_id"))
        for table, columns in COLUMNS.items():
            chosen = [
                c
                for c in columns
                if (table, c) not in (("settled", "bytes"), ("settled", "layout"))
            ]
            if table != "settled":
                chosen.append("crc")
            query = f"SELECT {', '.join(chosen)} FROM {table} ORDER BY 1"
            found[table] = connection.execute(query).fetchall()
        return found
    finally:
        connection.close()


def files(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())


def test_today_reads_format_1(tmp_path: Path) -> None:
    """As a job does: open, verify, read out the dead owner, look up, compact, look up again."""
    shutil.copytree(GOLDEN, tmp_path / "ledger")
    ledger = FileLedger(f"file://{tmp_path}/ledger", create=False, expected_id="f" * 32)
    ledger.verify()
    ledger.tidy()
    assert ledger.step("ask", FINGERPRINT, on_change="refuse") == STEP
    wanted = {one.slot.hash: one for one in [*SETTLED, *RECORDED]}
    hashes = [*wanted, *(slot(key).hash for key in IN_DOUBT)]
    for _ in range(2):
        view = ledger.lookup(hashes)
        assert view.outcomes == wanted
        assert {hash_: known.owner for hash_, known in view.open.items()} == {
            slot(key).hash: None for key in IN_DOUBT
        }
        ledger.compact()
    totals = ledger.totals(STEP.id)
    assert (totals.calls, totals.spent_micros, totals.in_doubt) == (9, 5005, 1)
    assert totals.settled == {Status.BOUGHT: 4, Status.PARKED: 2, Status.FAILED: 2}
    assert list(ledger.dead_letters(STEP.id)) == [
        DeadLetter(STEP.id, "bad", "refused", WALL_MS),
        DeadLetter(STEP.id, "recorded bad", "never", WALL_MS),
    ]
    assert claim(ledger, [slot("open")]).attempts == {slot("open").hash: 2}
    ledger.close()


def test_today_writes_format_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments and blobs byte by byte; tables and Parquet row by row."""
    fix_chance(monkeypatch)
    make(tmp_path / "ledger")
    monkeypatch.undo()
    assert files(tmp_path / "ledger") == files(GOLDEN)
    for name in files(GOLDEN):
        made, golden = tmp_path / "ledger" / name, GOLDEN / name
        if name.endswith(".parquet"):
            assert pq.read_table(made).equals(pq.read_table(golden))
            assert pq.read_schema(made).equals(pq.read_schema(golden), check_metadata=True)
        elif not name.endswith(".sqlite"):
            assert made.read_bytes() == golden.read_bytes(), name
    shutil.copy(GOLDEN / "ledger.sqlite", tmp_path / "ledger.sqlite")
    assert contents(tmp_path / "ledger") == contents(tmp_path)


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        fix_chance(patch)
        make(Path(sys.argv[1]).absolute())
