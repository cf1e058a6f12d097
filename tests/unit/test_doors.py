"""Paths as people give them: two files of one name, results beside inputs, a state that moved."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.plain_runs import run_toy

from holdfast._base.ids import Epoch, RunId
from holdfast.engine.state import look
from holdfast.engine.sweep import orphans
from holdfast.errors import UsageInvalid
from holdfast.queries import verify
from holdfast.store.contract import Store
from holdfast.store.rows import Chunk

PIPELINE = """
from holdfast import Pipeline
pipe = Pipeline("{name}")
pipe.input("t", schema="n int")
@pipe.result("all")
def everything(t):
    return t
"""


def test_the_file_that_was_named_is_loaded_not_its_namesake_in_the_working_directory(
    tmp_path: Path,
) -> None:
    """In a process whose working directory comes first, with the named one known already."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "ev.py").write_text(PIPELINE.format(name="wrong"))
    (tmp_path / "sub" / "ev.py").write_text(PIPELINE.format(name="right"))
    code = (
        "import sys; sys.path[:0] = ['', sys.argv[1]];"
        "from holdfast.spark.load import load_pipeline;"
        "print(load_pipeline('sub/ev.py').name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "sub")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "right"


def test_results_may_not_go_where_the_inputs_are(tmp_path: Path) -> None:
    with pytest.raises(UsageInvalid):
        run_toy(tmp_path, out=tmp_path / "in")
    assert sorted(path.name for path in (tmp_path / "in").glob("*.csv")) == [
        "notes.csv",
        "sales.csv",
        "shops.csv",
    ]


def test_an_export_that_stood_before_done_is_verified_like_any_other(tmp_path: Path) -> None:
    """Exported, DONE not reached, exported again: the second finds it standing, and notes it."""
    report = run_toy(tmp_path)
    with look(tmp_path / "state") as (_, store):
        kept = store.read_exports(report.run_id)
    assert set(kept) == {"large", "report", "texts"}
    shutil.rmtree(tmp_path / "state")
    run_toy(tmp_path)
    with look(tmp_path / "state") as (_, store):
        assert store.read_exports(report.run_id) == kept
    (tmp_path / "out" / "large.csv").unlink()
    found = verify(tmp_path / "state", tmp_path / "out").findings
    assert len(found) == 1
    assert "large.csv" in found[0].what


def test_a_state_that_was_moved_keeps_the_frames_that_its_chunks_name(tmp_path: Path) -> None:
    report = run_toy(tmp_path)
    with look(tmp_path / "state") as (directory, store):
        frames = directory.inputs_of(RunId(report.run_id)) / "sales"
        (frames / "1").mkdir(parents=True)
        (frames / "2").mkdir()
        named = [chunk for chunk in store.list_chunks(report.run_id) if chunk.table == "sales"]
        assert named
        # As if bound under another spelling of the state's path: only table and epoch agree.
        moved = Path("/elsewhere/inputs") / report.run_id / "sales" / "2" / "part-0.parquet"
        renamed = [replace(chunk, location=str(moved)) for chunk in named]
        found = orphans(directory, cast(Any, _WithChunks(store, renamed)), report.run_id, Epoch(9))
    assert found == [frames / "1"]


class _WithChunks:
    """A store that lists other chunks than it holds."""

    def __init__(self, store: Store, chunks: list[Chunk]) -> None:
        self._store, self._chunks = store, chunks

    def list_chunks(self, run_id: RunId) -> list[Chunk]:
        return self._chunks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
