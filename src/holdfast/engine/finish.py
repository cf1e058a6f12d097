"""The last steps of a run: export, then DONE. And the same again for a run that is DONE."""

from __future__ import annotations

from pathlib import Path

from holdfast._base.crashpoint import crashpoint
from holdfast._base.ids import RunId
from holdfast.delivery.export import (
    clear_temporary,
    export_checksum,
    export_path,
    export_series,
    is_exported,
)
from holdfast.engine.events import Event, EventKind, Watcher, ignore
from holdfast.engine.state import Held
from holdfast.engine.sweep import sweep
from holdfast.store.rows import RunState


def finish(held: Held, run_id: RunId, out: Path | None, watch: Watcher = ignore) -> None:
    """Bring a run from COMPLETING to DONE, or restore the exports of one that is DONE.

    1. Each result is exported. Crash in between: the exports are written again, the same bytes.
    2. The run is DONE, with the checksums of its exports. Crash before: step 1 again.
       Crash after: the next call finds nothing to do.
    """
    run = held.store.read_run(run_id)
    if run is None or run.state not in (RunState.COMPLETING, RunState.DONE):
        return
    known = held.store.read_exports(run_id)
    exports: dict[str, str] = {}
    if out is not None:
        clear_temporary(out)
        for result in held.store.read_series(run_id):
            wanted = known.get(result.series) or export_checksum(held.directory.root, result)
            exports[result.series] = wanted
            if is_exported(out, result, wanted):
                continue
            export_series(held.directory.root, out, result)
            path = str(export_path(out, result.series, result.format))
            watch(Event(EventKind.EXPORTED, run_id, result.series, detail=path))
    if run.state == RunState.COMPLETING:
        crashpoint("delivery.done.before")
        held.store.finish_run(held.fence, run_id, exports)
        crashpoint("delivery.done.after")
        watch(Event(EventKind.DONE, run_id))
    sweep(held, run_id)
