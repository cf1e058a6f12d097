"""Removes what interrupted attempts left behind. Readers never saw it: no manifest names it."""

from __future__ import annotations

import shutil
from pathlib import Path

from holdfast._base.crashpoint import crashpoint
from holdfast._base.ids import Epoch, RunId
from holdfast.engine.state import Held, StateDirectory, epoch_of
from holdfast.store.contract import Store


def orphans(
    directory: StateDirectory, store: Store, run_id: RunId, epoch: Epoch | None = None
) -> list[Path]:
    """Return what attempts of a run wrote that no manifest names, and frames no chunk binds.

    `epoch`: only those of that grant of the lease or an earlier one. A successor's are not ours.
    """
    kept = set()
    for work in store.list_work(run_id, committed=True):
        for file in store.read_work_files(work.plan.work_id):
            kept.add((directory.root / file.path).parents[1])
    # A frame's files are bound by absolute path, which a moved or linked state spells otherwise:
    # what counts is the table and the epoch, the last two parts of it.
    inputs = directory.inputs_of(run_id)
    for chunk in store.list_chunks(run_id):
        kept.add(inputs.joinpath(*Path(chunk.location).parent.parts[-2:]))
    written = [*directory.runs_of(run_id).glob("*/*/*"), *directory.inputs_of(run_id).glob("*/*")]
    return [
        path
        for path in sorted(written)
        if path.is_dir() and path not in kept and (epoch is None or epoch_of(path) <= epoch)
    ]


def sweep(held: Held, run_id: RunId) -> int:
    """Remove the orphans of a run; returns how many. Only the holder of the lease may call it,
    and only while none of its own attempts is under way. A former holder that wakes up finds only
    what is older than itself.

    A crash in the middle leaves orphans, and so does a JVM that dies a moment after its driver and
    still writes: the next sweep finds them again.
    """
    found = orphans(held.directory, held.store, run_id, held.fence.epoch)
    if found:
        crashpoint("engine.sweep.before")
    for path in found:
        shutil.rmtree(path, ignore_errors=True)
        crashpoint("engine.sweep.each")
    return len(found)
