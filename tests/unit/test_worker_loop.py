"""The loop: what is sent, when, and what a restart goes on with. On a log in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from tests.crash import worker_work
from tests.crash.worker_work import KeepLarge, SumByName, Totals

from holdfast._base.ids import START, digest
from holdfast.errors import ChunkConflict, EndConflict, StorageFailed, UsageInvalid
from holdfast.log.contract import Record
from holdfast.log.memory import MemoryBackend
from holdfast.worker import persistence
from holdfast.worker.crashes import CRASH_VARIABLE
from holdfast.worker.loop import Worker
from holdfast.worker.messages import Chunk, ChunkId, End, Message, QueryEnd, decode, encode
from holdfast.worker.persistence import PersistenceService, WorkingState
from holdfast.worker.ports import Delivery, LogInbox, LogOutbox
from holdfast.worker.roles import Numbered, RawState

SENDERS = {"large": ["a", "b"], "names": ["menu"]}


def rows(ordinal: int, sender: str, *pairs: tuple[str, int]) -> Chunk:
    return Chunk("ada", "large", sender, ordinal, json.dumps(pairs).encode())


NAME = Chunk("ada", "names", "menu", 1, b'{"0": "tea"}')
NAMES_END = End("ada", "names", 1, "menu")


class Bench:
    """A worker on a log in memory and a journal on disk."""

    def __init__(
        self,
        directory: Path,
        log: MemoryBackend | None = None,
        kind: type[PersistenceService] = PersistenceService,
    ) -> None:
        self.directory, self.log = directory, log or MemoryBackend("bench")
        self.log.start()
        for topic in ("in", "out"):
            self.log.create_topic(topic)
        self.service = kind(directory, "sum")
        inbox, outboxes = LogInbox(self.log, "in", "sum"), {"out": LogOutbox(self.log, "out")}
        self.worker: Worker[Totals] = Worker(
            "sum", SumByName(), self.service, inbox, outboxes, senders=SENDERS
        )

    def feed(self, *messages: Message) -> list[Message]:
        """Give messages to the worker; return all that it sent so far."""
        for message in messages:
            self.log.produce("in", Record(encode(message)))
        self.worker.run_until_idle()
        return self.sent()

    def sent(self) -> list[Message]:
        found = self.log.fetch_batch("out", START, count=1000)
        return [decode(one.record.value) for one in found]

    def restarted(self) -> Bench:
        self.service.close()
        return Bench(self.directory, self.log)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def answer(total: int) -> list[Message]:
    payload = json.dumps(["tea", total]).encode()
    return [Chunk("ada", "totals", "sum", 1, payload), End("ada", "totals", 1, "sum")]


def test_results_go_out_when_every_sender_is_complete(bench: Bench) -> None:
    assert bench.feed(NAME, NAMES_END, rows(1, "a", ("0", 5)), End("ada", "large", 1, "a")) == []
    assert bench.feed(End("ada", "large", 0, "b")) == answer(5)
    assert bench.service.clients() == []


def test_chunks_after_their_end_are_in_the_results(bench: Bench) -> None:
    ends = End("ada", "large", 2, "a"), End("ada", "large", 0, "b"), NAMES_END
    assert bench.feed(*ends, rows(2, "a", ("0", 5)), rows(1, "a", ("0", 1))) == []
    assert bench.service.recover_buffered_chunks("ada") != []
    assert bench.feed(NAME) == answer(6)


def test_a_message_that_comes_twice_counts_once(bench: Bench) -> None:
    """Also after the client is finished."""
    story: list[Message] = [NAME, NAMES_END, rows(1, "a", ("0", 5)), End("ada", "large", 1, "a")]
    twice = [one for message in story for one in (message, message)]
    assert bench.feed(*twice, End("ada", "large", 0, "b")) == answer(5)
    assert bench.feed(*twice, End("ada", "large", 0, "b")) == answer(5)
    assert bench.service.clients() == []


@pytest.mark.parametrize(
    "message", [rows(2, "a", ("0", 5)), rows(1, "b", ("0", 5)), End("ada", "large", 2, "a")]
)
def test_what_contradicts_a_finished_client_ends_the_worker(bench: Bench, message: Message) -> None:
    """It is not acked, and met again."""
    ends = End("ada", "large", 1, "a"), End("ada", "large", 0, "b")
    assert bench.feed(NAME, NAMES_END, rows(1, "a", ("0", 5)), *ends) == answer(5)
    acked = bench.log.get_committed_offset("in", "sum")
    for _ in range(2):
        with pytest.raises((ChunkConflict, EndConflict)):
            bench.feed(message)
        bench = bench.restarted()
    assert bench.log.get_committed_offset("in", "sum") == acked


def test_two_clients_do_not_meet(bench: Bench) -> None:
    bench.feed(Chunk("bob", "large", "a", 1, b'[["0", 100]]'))
    ends = NAMES_END, End("ada", "large", 1, "a"), End("ada", "large", 0, "b")
    assert bench.feed(NAME, rows(1, "a", ("0", 5)), *ends) == answer(5)
    assert bench.service.clients() == ["bob"]


@pytest.mark.parametrize(
    "message",
    [
        Chunk("ada", "other", "a", 1, b""),
        Chunk("ada", "large", "stranger", 1, b""),
        End("ada", "other", 0, "a"),
        QueryEnd("ada", "q1", "a"),
    ],
)
def test_what_is_not_declared_is_refused_and_not_acked(bench: Bench, message: Message) -> None:
    with pytest.raises(UsageInvalid):
        bench.feed(message)
    assert bench.log.get_committed_offset("in", "sum") == START
    assert bench.service.clients() == []


def test_a_restart_goes_on(bench: Bench) -> None:
    bench.feed(NAME, rows(1, "a", ("0", 5)))
    bench = bench.restarted()
    bench.feed(NAMES_END, rows(2, "a", ("0", 1)))
    bench = bench.restarted()
    ends = End("ada", "large", 2, "a"), End("ada", "large", 0, "b")
    assert bench.feed(*ends) == answer(6)


def test_a_restart_applies_every_uncounted_chunk_again(bench: Bench) -> None:
    bench.feed(NAME, NAMES_END, *(rows(n, "a", ("0", 10**n)) for n in (1, 2, 3)))
    bench = bench.restarted()
    assert bench.log.get_committed_offset("in", "sum") == bench.log.bounds("in")[1]
    ends = End("ada", "large", 3, "a"), End("ada", "large", 0, "b")
    assert bench.feed(*ends) == answer(1110)


class Order(list[str]):
    """Notes in which order a worker commits, acks and sends."""

    def receive_from(self, messages: Iterable[Message]) -> None:
        self.left = [Delivery(message, n) for n, message in enumerate(messages)]

    def receive(self, count: int) -> list[Delivery]:
        found, self.left = self.left[:count], self.left[count:]
        return found

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self.extend(f"ack {type(delivery.message).__name__}" for delivery in deliveries)

    def send(self, messages: Sequence[Message]) -> None:
        self.extend(f"send {type(message).__name__}" for message in messages)


class Noting(PersistenceService):
    """Notes the commits."""

    order: Order

    def commit_processing_chunk(self, chunk: Chunk) -> None:
        super().commit_processing_chunk(chunk)
        self.order.append("data commit")

    def commit_end(self, end: End) -> None:
        super().commit_end(end)
        self.order.append("END commit")

    def commit_working_state(
        self, state: WorkingState, last_processed_id: ChunkId, *, forget_sends: bool = False
    ) -> None:
        super().commit_working_state(state, last_processed_id, forget_sends=forget_sends)
        self.order.append("state commit")

    def commit_send_ack(self, client_id: str, *message_ids: str) -> None:
        super().commit_send_ack(client_id, *message_ids)
        self.order.append("send commit")

    def finish(self, client_id: str) -> None:
        super().finish(client_id)
        self.order.append("finish")


@pytest.mark.parametrize("batch_size", [1, 10])
def test_the_order_is_the_promise(tmp_path: Path, batch_size: int) -> None:
    """No ack before its commit, no END before `results_sent`, no deletion before both flags."""
    order = Order()
    order.receive_from([Chunk("ada", "sales", "a", 1, b"[]"), End("ada", "sales", 1, "a")])
    service = Noting(tmp_path, "filter")
    service.order = order
    senders, outboxes = {"sales": ["a"]}, {"sum": order}
    worker = Worker(
        "filter", KeepLarge(), service, order, outboxes, senders=senders, batch_size=batch_size
    )
    worker.run_until_idle()
    first = ["ack Chunk", "send Chunk", "send commit"]
    came = ["data commit", *first, "END commit", "ack End"]
    if batch_size > 1:
        came = ["data commit", "END commit", "ack Chunk", "ack End", *first[1:]]
    assert order == [
        *came,
        *("state commit", "send commit"),
        *("send End", "send commit", "send commit", "finish"),
    ]


def test_the_journal_of_a_worker_that_sends_does_not_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What went out for counted chunks is forgotten, long before the client is finished."""
    monkeypatch.setattr(persistence, "COMPACT_BYTES_MIN", 4096)
    order, service = Order(), PersistenceService(tmp_path, "filter")
    order.receive_from(Chunk("ada", "sales", "a", n, b"[]") for n in range(1, 401))
    Worker(
        "filter", KeepLarge(), service, order, {"sum": order}, senders={"sales": ["a"]}
    ).run_until_idle()
    assert order.count("send Chunk") == 400
    assert (tmp_path / "journal").stat().st_size < 4096 + 2000
    service.close()
    service, again = PersistenceService(tmp_path, "filter"), Order()
    again.receive_from([End("ada", "sales", 400, "a")])
    Worker(
        "filter", KeepLarge(), service, again, {"sum": again}, senders={"sales": ["a"]}
    ).run_until_idle()
    assert again == ["ack End", "send End"]


def test_only_the_end_is_sent_again_when_the_results_are_out(tmp_path: Path) -> None:
    """A worker killed between its two flags: `results_sent` alone keeps the results back."""
    order, service = Order(), PersistenceService(tmp_path, "w")
    for message in (NAME, rows(1, "a", ("0", 5))):
        service.commit_processing_chunk(message)
    for end in (NAMES_END, End("ada", "large", 1, "a"), End("ada", "large", 0, "b")):
        service.commit_end(end)
    totals = Totals()
    totals.sums["tea"] = 5
    state = RawState(Numbered(totals).to_bytes())
    service.commit_working_state(state, rows(1, "a").id, forget_sends=True)
    service.commit_send_ack("ada", digest("results_sent", "ada"))
    Worker("w", SumByName(), service, order, {"out": order}, senders=SENDERS)
    assert order == ["send End"]
    assert service.clients() == []


class Interrupting(PersistenceService):
    """Ctrl-C at a commit, as a signal's handler raises it."""

    commits_left = -1

    def commit_processing_chunk(self, chunk: Chunk) -> None:
        super().commit_processing_chunk(chunk)
        self._interrupt()

    def append_chunk_to_buffer(self, chunk: Chunk) -> None:
        super().append_chunk_to_buffer(chunk)
        self._interrupt()

    def _interrupt(self) -> None:
        self.commits_left -= 1
        if self.commits_left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("commits", [1, 2, 3])
def test_an_interrupted_batch_ends_the_worker_and_comes_again(tmp_path: Path, commits: int) -> None:
    """Whoever goes on with the same worker would ack chunks that were never applied."""
    bench = Bench(tmp_path, kind=Interrupting)
    assert isinstance(bench.service, Interrupting)
    bench.service.commits_left = commits
    large = (rows(n, "a", ("0", 10**n)) for n in (1, 2))
    ends = End("ada", "large", 2, "a"), End("ada", "large", 0, "b")
    with pytest.raises(KeyboardInterrupt):
        bench.feed(*large, NAME, NAMES_END, *ends)
    with pytest.raises(UsageInvalid, match="Make it again"):
        bench.worker.run_until_idle()
    with pytest.raises(StorageFailed, match="open it again"):
        bench.service.commit_end(NAMES_END)
    assert bench.log.get_committed_offset("in", "sum") == START
    assert bench.restarted().feed() == answer(110)


def test_an_interrupt_while_messages_are_received_ends_the_worker(tmp_path: Path) -> None:
    """The inbox may have passed over them: the next ack would cover them."""

    class Torn(Order):
        def receive(self, count: int) -> list[Delivery]:
            super().receive(1)
            raise KeyboardInterrupt

    order = Torn()
    order.receive_from([NAME, NAMES_END])
    service = PersistenceService(tmp_path, "w")
    worker = Worker("w", SumByName(), service, order, {"out": order}, senders=SENDERS)
    with pytest.raises(KeyboardInterrupt):
        worker.handle_batch()
    with pytest.raises(UsageInvalid, match="Make it again"):
        worker.handle_batch()


def test_an_apply_that_raises_stops_every_start_until_it_is_corrected(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chunk is committed and acked: left out, it would make a wrong answer."""
    bench.feed(NAME, NAMES_END)
    outboxes = {"out": LogOutbox(bench.log, "out")}
    with monkeypatch.context() as patched:
        patched.setattr(SumByName, "apply", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            bench.feed(rows(1, "a", ("0", 5)))
        assert bench.log.get_committed_offset("in", "sum") == 3
        bench.service.close()
        for _ in range(2):
            service = PersistenceService(bench.directory, "sum")
            inbox = LogInbox(bench.log, "in", "sum")
            with pytest.raises(ZeroDivisionError):
                Worker("sum", SumByName(), service, inbox, outboxes, senders=SENDERS)
            service.close()
    corrected = Bench(bench.directory, bench.log)
    assert corrected.feed(End("ada", "large", 1, "a"), End("ada", "large", 0, "b")) == answer(5)


def test_a_worker_that_cannot_be_is_refused(tmp_path: Path) -> None:
    order, service = Order(), PersistenceService(tmp_path, "w")
    with pytest.raises(UsageInvalid, match="no outbox for"):
        Worker("w", KeepLarge(), service, order, {"other": order}, senders={"sales": ["a"]})
    with pytest.raises(UsageInvalid, match="waits for table names"):
        Worker("w", SumByName(), service, order, {"out": order}, senders={"large": ["a"]})


@pytest.mark.parametrize("crash", ["crash_after_two_chunks", "crash_after_end_processed"])
def test_the_armed_crashes_kill_and_nothing_is_lost(tmp_path: Path, crash: str) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.crash import worker_work\n"
        "worker_work.run(worker_work.CLIENTS, Path(sys.argv[1]))"
    )
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, CRASH_VARIABLE: crash}
    state = tmp_path / "state"
    killed = subprocess.run([sys.executable, "-c", code, state], env=environment, check=False)
    assert killed.returncode == -9
    with pytest.raises(AssertionError, match="lost"):
        worker_work.check_final(worker_work.CLIENTS, state)
    worker_work.run(worker_work.CLIENTS, state)
    worker_work.check_final(worker_work.CLIENTS, state)
