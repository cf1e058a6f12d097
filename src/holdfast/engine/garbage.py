"""What a state directory holds that no committed row refers to, and its removal: `holdfast gc`.

Runs sweep their own orphans when they begin and end; this does the same for all of them at once,
finished and failed ones too, and for uploads and log records, which no run looks at again.

Crash points: `gc.orphan.each`, `gc.temporary.after`, `gc.upload.each`, `gc.record.each`.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from holdfast._base.clock import SystemClock
from holdfast._base.crashpoint import crashpoint
from holdfast._base.files import TEMPORARY_PREFIX, os_errors
from holdfast._base.ids import Offset, RunId
from holdfast.blobs.local import LocalBlobs
from holdfast.config import DEFAULT, Config
from holdfast.delivery.log_queues import LogQueues
from holdfast.delivery.sweep import Homes, Sweeper, due_for_sweep, queues_elsewhere
from holdfast.delivery.troubles import Troubles
from holdfast.engine.state import Held, StateDirectory
from holdfast.engine.sweep import orphans
from holdfast.intake.upload import CHUNKS, sweep_uploads
from holdfast.log.contract import Capability
from holdfast.log.embedded import EmbeddedBackend
from holdfast.log.open import open_backend
from holdfast.log.relayed import Route, open_logs
from holdfast.store.contract import Store, ingress_topic
from holdfast.store.leases import DELIVERY_RESOURCE
from holdfast.store.rows import CLOSED_STATES, ChunkKind, Run, RunState


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Things that nobody needs: how many, and the bytes they hold on disk."""

    count: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class Garbage:
    """What no committed row refers to."""

    orphans: tuple[Path, ...]
    """Directories of attempts, frames, or runs that the store does not know."""
    temporary: tuple[Path, ...]
    """Uploads that never got their name."""
    uploads: tuple[Path, ...]
    """Blobs that no chunk binds."""
    swept: tuple[Run, ...]
    """Runs whose time is over: their bytes and rows go, a tombstone stays."""
    records: tuple[tuple[str, int], ...]
    """Topics of closed runs, and how many records that everybody has read each of them holds."""
    left: tuple[Run, ...] = ()
    """Swept runs whose queues may be on a broker, which only delivery knows."""


def find_garbage(directory: StateDirectory, store: Store, config: Config = DEFAULT) -> Garbage:
    """Return what may go. Changes nothing; true only while nobody works in the directory."""
    runs = store.list_runs()
    elsewhere = queues_elsewhere(store)
    swept = [
        run
        for run in due_for_sweep(store, config)
        if run.state != RunState.SWEPT or run.run_id not in elsewhere
    ]
    left = tuple(run for run in swept if run.run_id in elsewhere)
    with os_errors(directory.root):
        found = [*_strangers(directory, runs)]
        found += [path for run in runs for path in orphans(directory, store, run.run_id)]
        temporary = sorted(directory.blobs.glob(f"{TEMPORARY_PREFIX}*"))
    topics = [(topic, count) for topic, count in _spent(store, runs) if count]
    uploads = _unbound(directory, store, runs)
    return Garbage(
        tuple(found), tuple(temporary), tuple(uploads), tuple(swept), tuple(topics), left
    )


def _strangers(directory: StateDirectory, runs: list[Run]) -> list[Path]:
    """Return what belongs to runs that this store never heard of."""
    known = {run.run_id for run in runs}
    homes = (directory.runs, directory.inputs)
    return [path for home in homes for path in _entries(home) if path.name not in known]


def _entries(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _unbound(directory: StateDirectory, store: Store, runs: list[Run]) -> list[Path]:
    if not directory.blobs.is_dir():
        return []
    chunks = [chunk for run in runs for chunk in store.list_chunks(run.run_id)]
    bound = {chunk.location for chunk in chunks if chunk.kind is ChunkKind.BLOB}
    blobs = LocalBlobs(directory.blobs)
    return [Path(blobs.location(name)) for name in blobs.names(CHUNKS) if name not in bound]


def _spent(store: Store, runs: list[Run]) -> list[tuple[str, int]]:
    """Return the topics of closed runs, with how many records every group has passed."""
    found = []
    known = store.list_topics()
    for run in runs:
        if run.state not in CLOSED_STATES:
            continue
        for segment in range(1, run.segments + 1):
            topic = ingress_topic(run.run_id, segment)
            if topic not in known:
                continue  # delivery drops the topics of a run that is DONE
            first, _ = store.topic_bounds(topic, 0)
            least = min(store.list_offsets(topic, 0).values(), default=first)
            found.append((topic, max(0, least - first)))
    return found


def weigh(paths: tuple[Path, ...]) -> Leftovers:
    """Return how many these are, and what they hold; one that is gone by now holds nothing."""
    size = 0
    for path in paths:
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        size += sum(file.lstat().st_size for file in files if file.exists())
    return Leftovers(len(paths), size)


def remove_garbage(held: Held, garbage: Garbage, config: Config = DEFAULT) -> None:
    """Remove what `find_garbage` found under the same lock. Each step may be done again: a crash
    anywhere leaves less garbage, nothing else, and the next call finds the rest.

    1. Orphan directories go. Crash in the middle of one: what is left of it is an orphan.
    2. Uploads without a name go.
    3. Unbound uploads go: condemned in a transaction that sees no row, then deleted. Crash in
       between: condemned, and found again.
    4. Runs whose time is over are swept, under the lease of delivery (`holdfast.delivery.sweep`).
       Queues that may be on a broker are left to delivery, which finds the run uncleared.
    5. Records of closed runs go that every group has passed, a topic at a time: on the logs that
       the settings name before the store, whose own records are the reason to look there again.

    Raises:
        LogUnreachable: a log that the settings name does not answer. The rest was removed.
    """
    for path in garbage.orphans:
        with os_errors(path):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        crashpoint("gc.orphan.each")
    if garbage.temporary or garbage.uploads:
        blobs = LocalBlobs(held.directory.blobs)
        blobs.sweep_temporary()
        crashpoint("gc.temporary.after")
        for run_id in sorted({_run_of(held.directory, path) for path in garbage.uploads}):
            sweep_uploads(held.store, blobs, run_id)
            crashpoint("gc.upload.each")
    if garbage.swept:
        _sweep(held, garbage)
    if garbage.records:
        _truncate(held.store, [topic for topic, _ in garbage.records], config)


def _truncate(store: Store, topics: list[str], config: Config) -> None:
    urls = {config.log, *(stage.log for stage in config.stages.values())}
    able = [url for url in urls if url and Capability.TRUNCATE in open_backend(url).capabilities]
    routes = {number: Route(url) for number, url in enumerate(sorted(able))}
    known = store.list_topics()
    with open_logs(store, routes) as logs:
        for topic in topics:
            if topic not in known:
                continue  # it went with its run
            _, free = store.topic_bounds(topic, 0)
            for log in logs.values():
                log.release(topic)
            store.truncate_records(topic, 0, Offset(free))
            crashpoint("gc.record.each")


def _sweep(held: Held, garbage: Garbage) -> None:
    """Sweep runs as delivery would. Nobody else works here: the lock is held alone."""
    fence = held.store.take_lease(DELIVERY_RESOURCE, "gc")
    directory, clock = held.directory, SystemClock()
    sweeper = Sweeper(
        held.store,
        LocalBlobs(directory.blobs),
        LogQueues(EmbeddedBackend(held.store), held.store),
        Homes((directory.runs, directory.inputs), directory.blobs),
        fence,
        DEFAULT,
        Troubles(clock),
        clock,
    )
    for run in garbage.swept:
        for _ in sweeper.sweep(run, with_queues=run not in garbage.left):
            pass  # nobody waits: all at once


def _run_of(directory: StateDirectory, upload: Path) -> RunId:
    """Return the run that an upload was for, by its name: chunks/<run>/..."""
    return RunId(upload.relative_to(directory.blobs.resolve()).parts[1])
