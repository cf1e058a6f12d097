"""Workloads of delivery for the crash loop: external results, notices, every way to be swept.

The producer is the bundled one. The webhook's receiver is a process of its own, outside the loop:
what it counted is the judge. Time goes by only where nothing is left to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import sample_producer
from tests.receiver import Receiver

from holdfast._base.clock import pause
from holdfast._base.files import sha256_of
from holdfast._base.ids import START, Ordinal, RunId, digest
from holdfast.blobs.local import LocalBlobs
from holdfast.config import Config
from holdfast.delivery.log_queues import LogQueues
from holdfast.delivery.loop import Delivery, Means
from holdfast.delivery.messages import Request, decode, encode, payload_of
from holdfast.delivery.sweep import Homes
from holdfast.engine.barrier import is_complete
from holdfast.intake.upload import put_chunk
from holdfast.log.contract import Record
from holdfast.log.embedded import EmbeddedBackend
from holdfast.store.contract import Store, notice_topic
from holdfast.store.result_rows import NoticeState
from holdfast.store.rows import Chunk, ChunkKind, Fence, NewRun, SenderDecl
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.clock import VirtualClock

CLIENT, REQUESTS = "acme", "requests"
PRODUCER = sample_producer.load()
PATIENT = Config(notice_attempts_max=1000, notice_wait_s=0.1, notice_wait_max_s=0.1)
SWEEPING = Config(
    notice_attempts_max=1000,
    notice_wait_s=0.1,
    notice_wait_max_s=0.1,
    sweep_after_s=2,
    expire_after_s=2,
    abandon_after_s=2,
)
ROUNDS_MAX = 2000


def run_of(root: Path, name: str = "run") -> RunId:
    """Return the id of a run: another one in each case, for the receiver to tell them apart."""
    return RunId(digest(name, str(root)))


@dataclass
class Place:
    """A state in a directory, and its active delivery."""

    root: Path
    store: SqliteStore
    blobs: LocalBlobs
    log: EmbeddedBackend
    clock: VirtualClock
    delivery: Delivery
    fence: Fence


@contextmanager
def place(root: Path, config: Config) -> Iterator[Place]:
    """Open the state, take the lease, deliver."""
    state = root / "state"
    clock = VirtualClock()
    store = SqliteStore.open(state / "store.sqlite3", clock=clock)
    log, blobs = EmbeddedBackend(store), LocalBlobs(state / "blobs")
    fence = store.take_lease("delivery", "workload")
    means = Means(
        store=store,
        blobs=blobs,
        queues=LogQueues(EmbeddedBackend(store, fence=fence), store),
        homes=Homes((state / "runs", state / "inputs"), state / "blobs"),
        secrets=state / "secrets",
        config=config,
        clock=clock,
    )
    delivery = Delivery(means, fence)
    try:
        yield Place(root, store, blobs, log, clock, delivery, fence)
    finally:
        delivery.close()
        store.close()


def deliver(here: Place, is_over: Callable[[], bool], step: Callable[[], object]) -> None:
    """Deliver until it is over; `step` is what the world outside does in between."""
    for _ in range(ROUNDS_MAX):
        done = here.delivery.advance()
        while here.delivery.is_sending:
            pause(0.0005)
        outside = step()
        if is_over():
            return
        if not done and not outside:
            here.clock.advance(1.0)
    raise AssertionError("wrong: delivery came to no end")


def open_external(here: Place, receiver: Receiver, name: str = "run") -> RunId:
    """Create an external run of a client with a webhook, if it is not there."""
    run_id = run_of(here.root, name)
    here.store.set_webhook(CLIENT, receiver.url)
    here.store.create_run(NewRun(run_id, CLIENT, "p", {}, 1, (), 0, REQUESTS))
    return run_id


def is_told(store: Store) -> bool:
    notices = store.list_notices()
    return bool(notices) and all(one.state is NoticeState.SENT for one in notices)


def run_external(receiver: Receiver, root: Path) -> None:
    """Take the results of an external run to DONE, tell its client, let the queues go."""
    with place(root, PATIENT) as here:
        run_id = open_external(here, receiver)
        answered = root / "answered"

        def over() -> bool:
            run = here.store.read_run(run_id)
            queues = [one for one in here.store.list_topics() if run_id in one]
            return run is not None and run.state == "DONE" and is_told(here.store) and not queues

        deliver(here, over, lambda: PRODUCER.serve(here.log, REQUESTS, answered))


def run_contradiction(receiver: Receiver, root: Path) -> None:
    """A producer sends one ordinal with two contents: the run fails, is told, and swept."""
    with place(root, SWEEPING) as here:
        run_id = open_external(here, receiver)

        def contradict() -> bool:
            offset = here.log.get_committed_offset(REQUESTS, "p") if _asked(here) else None
            stored = here.log.fetch(REQUESTS, offset) if offset is not None else None
            if stored is None:
                return False
            request = decode(stored.record.value)
            assert isinstance(request, Request)
            for data in (b"one", b"two"):
                payload = payload_of(request.run, "letters", 1, 2, data)
                record = Record(encode(payload), record_id=payload.message_id)
                here.log.produce(request.payload_queue, record)
            here.log.commit_offset(REQUESTS, "p", type(stored.offset)(stored.offset + 1))
            return True

        deliver(here, lambda: _is_gone(here.store, run_id) and is_told(here.store), contradict)


def _asked(here: Place) -> bool:
    return REQUESTS in here.store.list_topics()


def _is_gone(store: Store, run_id: RunId) -> bool:
    run = store.read_run(run_id)
    watched = {one.run.run_id for one in store.list_watched()}
    return run is not None and run.state == "SWEPT" and run_id not in watched


NAMES = ("cancelled", "idle", "expired")


def run_sweeping(receiver: Receiver, root: Path) -> None:
    """Three runs come to their ends: one is cancelled, one idle, one DONE and out of date."""
    with place(root, SWEEPING) as here:
        expired = open_external(here, receiver, "expired")
        for name in ("cancelled", "idle"):
            run_id = run_of(root, name)
            senders = (SenderDecl("t", "", 1),)
            if here.store.create_run(NewRun(run_id, CLIENT, "p", {}, 1, senders, 0)):
                chunk = Chunk("t", "", Ordinal(1), ChunkKind.BLOB, "", 0, "")
                put_chunk(here.store, here.blobs, run_id, chunk, [b"x"], barrier=is_complete)
                here.blobs.create(f"chunks/{run_id}/t/s/2-lost", [b"nobody binds this"])
                for home in ("runs", "inputs"):
                    (root / "state" / home / run_id).mkdir(parents=True, exist_ok=True)
                    (root / "state" / home / run_id / "part").write_bytes(b"x")
        run = here.store.read_run(run_of(root, "cancelled"))
        if run is not None and run.state == "OPEN":
            here.store.cancel_run(CLIENT, run.run_id)
        answered = root / "answered"
        runs = [run_of(root, name) for name in NAMES]
        deliver(
            here,
            lambda: all(_is_gone(here.store, one) for one in runs) and is_told(here.store),
            lambda: PRODUCER.serve(here.log, REQUESTS, answered),
        )
        assert expired in runs


def expected(run_id: RunId) -> dict[str, list[bytes]]:
    """The results of the bundled producer, from its own function."""
    _, results = PRODUCER.results_of(run_id)
    return dict(results)


@contextmanager
def looking(root: Path) -> Iterator[tuple[Store, LocalBlobs] | None]:
    if not (root / "state" / "store.sqlite3").exists():
        yield None
        return
    store = SqliteStore.look(root / "state" / "store.sqlite3")
    try:
        yield store, LocalBlobs(root / "state" / "blobs")
    finally:
        store.close()


def check_settled(root: Path) -> None:
    """At any moment: what a row binds is there, whole; nothing is final before all is there."""
    with looking(root) as found:
        if found is None:
            return
        store, blobs = found
        store.check()
        for run in store.list_runs():
            for piece in store.list_external_pieces(run.run_id):
                if run.state == "SWEPT":
                    continue
                assert blobs.exists(piece.blob), f"lost: the blob of {piece}"
                assert sha256_of(blobs.read(piece.blob)) == piece.checksum, f"wrong: {piece}"
            if run.state in ("COMPLETING", "DONE"):
                check_pieces(store, blobs, run.run_id)
            for series in store.read_results(run.run_id):
                final = not series.provisional
                assert not final or run.state == "DONE", f"early: {series.series} is final"


def check_pieces(store: Store, blobs: LocalBlobs, run_id: RunId) -> None:
    """The results are exactly the producer's, and the blobs are exactly the rows."""
    results = {one.series: one for one in store.read_results(run_id)}
    wanted = expected(run_id)
    assert set(results) == set(wanted), f"lost: {set(wanted) - set(results)}"
    for name, pieces in wanted.items():
        got = [b"".join(blobs.read(piece.location)) for piece in results[name].pieces]
        assert got == pieces, f"wrong: {name} is {got}"
    rows = sorted(piece.blob for piece in store.list_external_pieces(run_id))
    names = list(blobs.names(f"external/{run_id}/"))
    assert rows == names, f"wrong: rows {rows}, blobs {names}"


def check_told(
    receiver: Receiver, store: Store, run_id: RunId, kind: str, *, is_pair: bool
) -> None:
    """The receiver saw this end, and no other, under one id and with one body.

    `is_pair`: one state is put back and crashed many times, so it saw more than one history.
    """
    seen = [one for one in receiver.seen() if json.loads(one["body"])["run"] == run_id]
    assert seen, f"lost: nobody was told of run {run_id}"
    assert len({one["id"] for one in seen}) == 1, "duplicated: a notice with two ids"
    assert len({one["body"] for one in seen}) == 1, "wrong: a notice with two bodies"
    assert json.loads(seen[0]["body"])["type"] == kind, f"wrong: {seen[0]}"
    [notice] = store.list_notices(run_id=run_id)
    assert is_pair or len(seen) <= notice.attempts, "duplicated: more notices than attempts"
    topic = store.read_records(notice_topic(CLIENT), 0, START, 100)
    named = [one for one in topic if one.record.record_id == notice.notice_id]
    assert len(named) <= 1, "duplicated: a notice stands twice on the topic"
    run = store.read_run(run_id)
    assert run is not None
    assert named or run.state == "SWEPT", "lost: a notice is not on the topic"


def check_done(receiver: Receiver, root: Path, *, is_pair: bool = False) -> None:
    check_settled(root)
    with looking(root) as found:
        assert found is not None
        store, blobs = found
        run_id = run_of(root)
        run = store.read_run(run_id)
        assert run is not None
        assert run.state == "DONE", f"wrong: the run is {run.state}"
        check_pieces(store, blobs, run_id)
        check_told(receiver, store, run_id, "run.done", is_pair=is_pair)


def check_nothing_left(root: Path, store: Store, blobs: LocalBlobs, run_id: RunId) -> None:
    state = root / "state"
    left = [str(path) for home in ("runs", "inputs") for path in (state / home).glob(run_id)]
    left += [name for name in blobs.names() if run_id in name.split("/")]
    left += [topic for topic in store.list_topics() if run_id in topic]
    left += [str(chunk) for chunk in store.list_chunks(run_id)]
    left += [str(piece) for piece in store.list_external_pieces(run_id)]
    assert not left, f"wrong: left over {left}"


def check_swept(
    receiver: Receiver, kinds: dict[str, str], root: Path, *, is_pair: bool = False
) -> None:
    """Only tombstones are left, and each end was told."""
    check_settled(root)
    with looking(root) as found:
        assert found is not None
        store, blobs = found
        for name, kind in kinds.items():
            run_id = run_of(root, name)
            run = store.read_run(run_id)
            assert run is not None, "lost: a tombstone"
            assert run.state == "SWEPT", f"wrong: the run is {run.state}"
            check_nothing_left(root, store, blobs, run_id)
            check_told(receiver, store, run_id, kind, is_pair=is_pair)
