"""Removes what interrupted attempts left behind. Readers never saw it: no manifest names it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from holdfast._base.crashpoint import crashpoint
from holdfast._base.ids import RunId
from holdfast.engine.state import StateDirectory
from holdfast.store.contract import Store


def orphans(directory: StateDirectory, store: Store, run_id: RunId) -> list[Path]:
    """Return the attempt directories of a run that no committed manifest names."""
    kept = set()
    for work in store.list_work(run_id, committed=True):
        for file in store.read_work_files(work.plan.work_id):
            kept.add((directory.root / file.path).parents[1])
    return [path for path in _attempts(directory.runs_of(run_id)) if path not in kept]


def _attempts(runs: Path) -> Iterator[Path]:
    if runs.is_dir():
        yield from (path for path in sorted(runs.glob("*/*/*")) if path.is_dir())


def sweep(directory: StateDirectory, store: Store, run_id: RunId) -> int:
    """Remove the orphans of a run; returns how many. Only the holder of the lease may call it,
    and only while none of its own attempts is under way.

    A crash in the middle leaves orphans, and so does a JVM that dies a moment after its driver and
    still writes: the next sweep finds them again.
    """
    found = orphans(directory, store, run_id)
    if found:
        crashpoint("engine.sweep.before")
    for path in found:
        shutil.rmtree(path, ignore_errors=True)
        crashpoint("engine.sweep.each")
    return len(found)
