"""A state directory with one finished run and garbage of every kind, and `gc` on it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from tests.crash.workloads import SMALL, check_answers, run_uploads

from holdfast._base.ids import START
from holdfast.blobs.local import LocalBlobs
from holdfast.engine.finish import finish
from holdfast.engine.garbage import Garbage, find_garbage, remove_garbage
from holdfast.engine.state import StateDirectory, hold, look
from holdfast.intake.upload import CHUNKS
from holdfast.log.embedded import EmbeddedBackend
from holdfast.log.relayed import RelayedBackend
from holdfast.queries import verify
from holdfast.store.sqlite import SqliteStore

ELSEWHERE = "elsewhere.db"
KINDS = ("orphans", "temporary", "uploads", "records")


def make_littered(root: Path) -> None:
    """Run the toy pipeline to DONE below `root`, and litter its state."""
    run_uploads(root)
    directory = StateDirectory(root / "state")
    with look(directory.root) as (_, store):
        (run,) = store.list_runs()
        work = store.list_work(run.run_id)[0].plan.work_id
    for place in (
        directory.runs_of(run.run_id) / "segment-1" / work / "1-7" / "large",
        directory.runs_of(run.run_id) / "results" / "never-planned" / "1-1" / "report",
        directory.inputs_of(run.run_id) / "sales" / "1",
        directory.runs / "another-run" / "segment-1" / "w" / "1-1" / "large",
    ):
        place.mkdir(parents=True)
        (place / "part-0").write_bytes(b"x" * 100)
    (directory.blobs / (".tmp-" + "0" * 32)).write_bytes(b"half")
    blobs = LocalBlobs(directory.blobs)
    for owner in (run.run_id, "another-run"):
        blobs.create(f"{CHUNKS}{owner}/sales/s/1-lost", [b"nobody binds this"])


def leave_elsewhere(root: Path) -> None:
    """Let the references of the run lie on another log, as after a crash before it was told."""
    remote = EmbeddedBackend(root / ELSEWHERE)
    remote.start()
    with look(root / "state") as (_, store):
        log = RelayedBackend(store, remote, name=store.store_id())
        for topic in store.list_topics():
            log.fetch_batch(topic, START, count=1000)
    remote.stop()
    assert held_on(root / ELSEWHERE) > 0


def held_on(path: Path) -> int:
    """Return how many records a log in a file holds, in all of its topics."""
    store = SqliteStore.open(path)
    try:
        bounds = [store.topic_bounds(topic, 0) for topic in store.list_topics()]
        assert bounds
        return sum(free - first for first, free in bounds)
    finally:
        store.close()


def run_gc(template: Path, root: Path) -> None:
    """Copy the littered state, once, and collect its garbage."""
    if not root.exists():
        copy = root.with_name("copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(template, copy)
        copy.rename(root)
    config = replace(SMALL, log=(root / ELSEWHERE).as_uri())
    with hold(root / "state", config) as held:
        remove_garbage(held, find_garbage(held.directory, held.store), config)


def garbage_in(root: Path) -> Garbage:
    with look(root / "state") as (directory, store):
        return find_garbage(directory, store)


def check_intact(root: Path) -> None:
    """Whatever was removed, what the run committed is there."""
    if root.exists():
        findings = verify(root / "state", root / "out").findings
        assert not findings, f"lost: {findings}"


def check_collected_everywhere(root: Path) -> None:
    """Nor is anything left on the other log."""
    check_collected(root)
    left = held_on(root / ELSEWHERE)
    assert not left, f"wrong: {left} references left over elsewhere"


def check_collected(root: Path) -> None:
    """No garbage is left, and a lost export can still be restored."""
    check_intact(root)
    left = {kind: getattr(garbage_in(root), kind) for kind in KINDS}
    assert not any(left.values()), f"wrong: left over {left}"
    shutil.rmtree(root / "out")
    with hold(root / "state", SMALL) as held:
        (run,) = held.store.list_runs()
        finish(held, run.run_id, root / "out")
    check_answers(root)
