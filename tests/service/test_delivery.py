"""`holdfast delivery` as a real process: killed at every crash point, stopped, asked to end.

The producer and the webhook's receiver are processes of their own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest
from tests import sample_producer
from tests.receiver import Receiver, receiving

from holdfast._base.clock import SystemClock, pause
from holdfast._base.crashpoint import ARM_VARIABLE, POINTS
from holdfast._base.ids import Ordinal, RunId
from holdfast.blobs.local import LocalBlobs
from holdfast.delivery.messages import encode, payload_of
from holdfast.delivery.ports import payload_queue
from holdfast.engine.barrier import is_complete
from holdfast.engine.state import Shared, share
from holdfast.intake.upload import put_chunk
from holdfast.log.contract import Record
from holdfast.store.contract import notice_topic
from holdfast.store.result_rows import NoticeState
from holdfast.store.rows import Chunk, ChunkKind, NewRun, SenderDecl

CLIENT, REQUESTS = "acme", "requests"
DONE, FAILED, IDLE = RunId("run-done"), RunId("run-failed"), RunId("run-idle")
WAIT_S = 60.0
"""Longest wait for a condition. Only something broken, or a very busy machine, needs it."""
SETTINGS = {
    "HOLDFAST_NOTICE_WAIT_S": "0.05",
    "HOLDFAST_NOTICE_WAIT_MAX_S": "0.1",
    "HOLDFAST_NOTICE_ATTEMPTS_MAX": "1000",
    "HOLDFAST_SWEEP_AFTER_S": "0.5",
    "HOLDFAST_ABANDON_AFTER_S": "0.5",
    "HOLDFAST_LEASE_PATIENCE_S": "1",
}
PATIENT = {**SETTINGS, "HOLDFAST_NOTICE_TIMEOUT_S": "60", "HOLDFAST_NOTICE_WAIT_MAX_S": "86400"}
"""Of one that waits for a receiver's answer, and as long as it asks for."""
OURS = sorted(
    name for name in POINTS if name.startswith(("closing.", "external.", "notice.", "sweep."))
)


def wait_for(what: str, is_so: Callable[[], bool]) -> None:
    """Wait for a condition, with a deadline."""
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + WAIT_S
    while not is_so():
        assert clock.monotonic_s() < deadline_s, f"never: {what}"
        pause(0.02)


class Deliverer:
    """A process of `holdfast delivery` that the test started."""

    def __init__(self, state: Path, settings: dict[str, str], crash: str, name: str) -> None:
        self.said = state.parent / f"{name}.log"
        environment = {**os.environ, **settings, **({ARM_VARIABLE: crash} if crash else {})}
        with self.said.open("a") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.cli", "delivery", "--state", str(state)],
                env=environment,
                stderr=file,
            )

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def said_that(self, words: str) -> bool:
        return words in self.said.read_text()

    def end(self) -> int:
        """Wait for its own end."""
        return self.process.wait(WAIT_S)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@contextmanager
def started(
    state: Path, *, settings: dict[str, str] = SETTINGS, crash: str = "", name: str = "delivery"
) -> Iterator[Deliverer]:
    deliverer = Deliverer(state, settings, crash, name)
    try:
        yield deliverer
    finally:
        deliverer.kill()


@pytest.fixture
def receiver(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Receiver]:
    """A receiver; a test may give its first answers."""
    with receiving(tmp_path / "receiver", *getattr(request, "param", ())) as found:
        yield found


@pytest.fixture
def shared(tmp_path: Path, receiver: Receiver) -> Iterator[Shared]:
    """A state with an external run, one that its producer will fail, and one that nobody ends."""
    with share(tmp_path / "state", part="test") as found:
        found.store.set_webhook(CLIENT, receiver.url)
        yield found


def open_done(shared: Shared) -> None:
    shared.store.create_run(NewRun(DONE, CLIENT, "p", {}, 1, (), 0, REQUESTS))


def open_idle(shared: Shared) -> None:
    """Open a run that says no END: it is abandoned, and swept with all it has."""
    shared.store.create_run(NewRun(IDLE, CLIENT, "p", {}, 1, (SenderDecl("t", "", 1),), 0))
    chunk = Chunk("t", "", Ordinal(1), ChunkKind.BLOB, "", 0, "")
    blobs = LocalBlobs(shared.directory.blobs)
    put_chunk(shared.store, blobs, IDLE, chunk, [b"x"], barrier=is_complete)
    for home in (shared.directory.runs, shared.directory.inputs):
        (home / IDLE).mkdir(parents=True)


def open_failing(shared: Shared) -> None:
    """Open a run whose producer has contradicted itself before it was asked."""
    shared.store.create_run(NewRun(FAILED, CLIENT, "p", {}, 1, (), 0, "nobody"))
    queue = payload_queue(FAILED)
    shared.store.create_topic(queue, 1)
    pieces = [payload_of(FAILED, "a", 1, 2, data) for data in (b"one", b"two")]
    shared.store.append_records(queue, 0, [Record(encode(piece)) for piece in pieces])


def state_of(shared: Shared, run_id: RunId) -> str:
    run = shared.store.read_run(run_id)
    assert run is not None
    return run.state


def is_cleared(shared: Shared, run_id: RunId) -> bool:
    watched = {one.run.run_id for one in shared.store.list_watched()}
    return state_of(shared, run_id) == "SWEPT" and run_id not in watched


def told(receiver: Receiver, run_id: RunId) -> list[str]:
    return [one["id"] for one in receiver.seen() if json.loads(one["body"])["run"] == run_id]


def check_done(shared: Shared, receiver: Receiver) -> None:
    """The results are the producer's, the blobs are the rows, the end was told under one id."""
    module = sample_producer.load()
    _, wanted = module.results_of(DONE)
    blobs = LocalBlobs(shared.directory.blobs)
    found = {one.series: one.pieces for one in shared.store.read_results(DONE)}
    got = {name: [b"".join(blobs.read(p.location)) for p in some] for name, some in found.items()}
    assert got == wanted
    rows = sorted(piece.blob for piece in shared.store.list_external_pieces(DONE))
    assert rows == list(blobs.names(f"external/{DONE}/"))
    assert len(set(told(receiver, DONE))) == 1
    assert [topic for topic in shared.store.list_topics() if DONE in topic] == []


def check_swept(shared: Shared, receiver: Receiver, run_id: RunId) -> None:
    blobs = LocalBlobs(shared.directory.blobs)
    assert [name for name in blobs.names() if run_id in name.split("/")] == []
    assert not (shared.directory.runs / run_id).exists()
    assert not (shared.directory.inputs / run_id).exists()
    assert [topic for topic in shared.store.list_topics() if run_id in topic] == []
    assert len(set(told(receiver, run_id))) == 1


def all_over(shared: Shared, receiver: Receiver) -> bool:
    runs = [run.run_id for run in shared.store.list_runs()]
    ended = state_of(shared, DONE) == "DONE"
    cleared = all(is_cleared(shared, run_id) for run_id in runs if run_id != DONE)
    queues = [topic for topic in shared.store.list_topics() if DONE in topic]
    return ended and cleared and not queues and all(told(receiver, run_id) for run_id in runs)


@pytest.mark.parametrize("point", OURS)
def test_killed_at_a_point_and_started_again(
    shared: Shared, receiver: Receiver, point: str
) -> None:
    """SIGKILL at the point; the next process does the rest, and nothing twice but a notice."""
    state = shared.directory.root
    for make in (open_done, open_idle, open_failing):
        make(shared)
    with sample_producer.producing(state, REQUESTS):
        with started(state, crash=f"{point}:1") as deliverer:
            assert deliverer.end() == -signal.SIGKILL
        with started(state):
            wait_for("all is over", lambda: all_over(shared, receiver))
    check_done(shared, receiver)
    check_swept(shared, receiver, IDLE)
    check_swept(shared, receiver, FAILED)
    for run_id in (DONE, IDLE, FAILED):
        assert len(told(receiver, run_id)) <= 2


def test_killed_again_and_again(shared: Shared, receiver: Receiver) -> None:
    """Many crashes in a row, wherever the work happens to be."""
    state = shared.directory.root
    open_done(shared)
    with sample_producer.producing(state, REQUESTS):
        for point in ("external.forward.sent", "external.upload.after", "external.piece.after") * 2:
            with started(state, crash=f"{point}:1") as deliverer:
                wait_for(
                    f"dead at {point}, or done",
                    lambda: (
                        deliverer.process.poll() is not None or state_of(shared, DONE) == "DONE"
                    ),
                )
        with started(state):
            wait_for("all is over", lambda: all_over(shared, receiver))
    check_done(shared, receiver)
    assert len(told(receiver, DONE)) <= 7


def test_one_is_active_and_a_dead_one_is_replaced_at_once(
    shared: Shared, receiver: Receiver
) -> None:
    state = shared.directory.root
    with started(state, name="first") as first:
        wait_for("the first is active", lambda: first.said_that("active, epoch 1"))
        with started(state, name="second") as second:
            wait_for("the second stands by", lambda: second.said_that("stands by"))
            open_done(shared)
            with sample_producer.producing(state, REQUESTS):
                wait_for("the first delivers", lambda: state_of(shared, DONE) == "DONE")
                assert not second.said_that("active")
                first.signal(signal.SIGKILL)
                wait_for("the second takes over", lambda: second.said_that("active, epoch 2"))
                wait_for("all is over", lambda: all_over(shared, receiver))
    check_done(shared, receiver)


def test_a_stopped_one_is_replaced_and_changes_nothing_when_it_wakes(
    shared: Shared, receiver: Receiver
) -> None:
    """SIGSTOP the active one; its successor does the work; SIGCONT: fenced, it stands by."""
    state = shared.directory.root
    with started(state, name="first") as first:
        wait_for("the first is active", lambda: first.said_that("active, epoch 1"))
        first.signal(signal.SIGSTOP)
        with sample_producer.producing(state, REQUESTS), started(state, name="second") as second:
            wait_for("the second takes over", lambda: second.said_that("active, epoch 2"))
            open_done(shared)
            wait_for("the second delivers", lambda: all_over(shared, receiver))
            before = facts(shared)
            notices = len(receiver.seen())
            first.signal(signal.SIGCONT)
            wait_for("the first is fenced", lambda: first.said_that("epoch 1 was replaced"))
            assert facts(shared) == before
            assert len(receiver.seen()) == notices
            lease = shared.store.read_lease("delivery")
            assert lease is not None
            assert lease.epoch == 2
    check_done(shared, receiver)


@pytest.mark.parametrize(
    "receiver",
    [("held 200", "500 86400"), ("held 500", "200")],
    indirect=True,
    ids=["taken-too-late", "refused-too-late"],
)
def test_one_that_is_stopped_within_a_notice_changes_nothing_when_it_wakes(
    shared: Shared, receiver: Receiver
) -> None:
    """SIGSTOP while the receiver holds its answer; the successor gets the other answer, and does
    the rest; SIGCONT: the answer that comes too late is recorded nowhere. The notice was repeated
    once, the same.
    """
    state = shared.directory.root
    open_done(shared)
    with (
        sample_producer.producing(state, REQUESTS),
        started(state, settings=PATIENT, name="first") as first,
    ):
        wait_for("the receiver has the notice", lambda: len(receiver.seen()) == 1)
        stop_outside_of_transactions(first, shared)
        [notice] = shared.store.list_notices()
        assert (notice.state, notice.attempts) == (NoticeState.WAITING, 1)
        with started(state, settings=PATIENT, name="second") as second:
            wait_for("the second takes over", lambda: second.said_that("active, epoch 2"))
            wait_for("the second delivers", lambda: all_over(shared, receiver))
            wait_for("it has its answer", lambda: has_answer(shared))
            before = facts(shared)
            receiver.release()
            first.signal(signal.SIGCONT)
            wait_for("the first is fenced", lambda: first.said_that("epoch 1 was replaced"))
            assert facts(shared) == before
    check_done(shared, receiver)
    once, again = receiver.seen()
    assert (once["id"], once["body"]) == (again["id"], again["body"])
    assert once["id"] == notice.notice_id


def stop_outside_of_transactions(deliverer: Deliverer, shared: Shared) -> None:
    """SIGSTOP, again if need be: one that stands still with the store's lock holds up everybody."""
    connection = apsw.Connection(str(shared.directory.store), flags=apsw.SQLITE_OPEN_READWRITE)

    def is_stopped() -> bool:
        deliverer.signal(signal.SIGSTOP)
        os.waitpid(deliverer.process.pid, os.WUNTRACED)
        try:
            connection.execute("BEGIN IMMEDIATE").connection.execute("ROLLBACK")
        except apsw.BusyError:
            deliverer.signal(signal.SIGCONT)
            return False
        return True

    try:
        wait_for("it is stopped outside of transactions", is_stopped)
    finally:
        connection.close()


def has_answer(shared: Shared) -> bool:
    [notice] = shared.store.list_notices()
    return notice.state is NoticeState.SENT or notice.failures > 0


def facts(shared: Shared) -> object:
    store = shared.store
    records = store.topic_bounds(notice_topic(CLIENT), 0)
    results = store.list_external_pieces(DONE), store.read_results(DONE)
    return store.list_runs(), results, store.list_notices(), records


def test_it_drains_on_sigterm(shared: Shared, receiver: Receiver) -> None:
    """Asked once, it ends by itself with exit code 0, and the next one goes on at once."""
    state = shared.directory.root
    open_done(shared)
    with started(state) as deliverer:
        wait_for("it is active", lambda: deliverer.said_that("active"))
        deliverer.signal(signal.SIGTERM)
        assert deliverer.end() == 0
        assert deliverer.said_that("delivery: stopped")
        assert "Traceback" not in deliverer.said.read_text()
    with sample_producer.producing(state, REQUESTS), started(state):
        wait_for("all is over", lambda: all_over(shared, receiver))
    check_done(shared, receiver)
