"""The router as a process: what clients send reaches intake once, whatever dies meanwhile."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.integration.processes import KILLS
from tests.integration.rabbit_server import PASSWORD, RabbitServer, running
from tests.integration.router_work import (
    Place,
    RouterProcess,
    chunk_of,
    compute,
    end_of,
    figures_of,
    payload_of,
    routing,
    send,
)
from tests.integration.waiting import until
from tests.unit.plain_runs import Answers, answers_in, tiny_pipeline

from holdfast._base.ids import Ordinal, RunId
from holdfast.amqp.broker import Broker, Queue
from holdfast.amqp.contract import Message
from holdfast.amqp.names import client_queue, retry_queue
from holdfast.amqp.topology import RETRY_DELAY_S, QueueSpec
from holdfast.store.client_rows import Client, Quotas, Token


@pytest.fixture(scope="module")
def server() -> Iterator[RabbitServer]:
    with running() as one:
        yield one


@pytest.fixture
def broker(server: RabbitServer) -> Iterator[Broker]:
    with Broker(server.url(), patience_s=60) as one:
        yield one


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    one = Place(tmp_path / "state")
    yield one
    one.store.close()


@pytest.fixture
def client(request: pytest.FixtureRequest, broker: Broker) -> str:
    """A client of this test alone, whose queue is there."""
    name = re.sub(r"[^a-z]+", "-", request.node.name.removeprefix("test_")).strip("-")[-60:]
    broker.queue(QueueSpec(client_queue(name)))
    return name


def queue_of(broker: Broker, client: str) -> Queue:
    return broker.queue(QueueSpec(client_queue(client)))


def test_chunks_and_ends_reach_intake_and_are_acked(
    server: RabbitServer, broker: Broker, place: Place, client: str
) -> None:
    """In odd order, twice, two senders, END first; then nothing is left in the queue."""
    run = place.open_run(client, ["north", "south"])
    for sender in ("north", "south"):
        sent = [chunk_of(run, n, sender) for n in (3, 1, 2, 1)]
        send(broker, client, end_of(run, 3, sender), *sent, end_of(run, 3, sender))
    with routing(server, place, "--client", client, "--threads", "3") as router:
        until(lambda: place.is_whole(run, 3), "all is in intake")
        until(lambda: queue_of(broker, client).depth() == 0, "the queue is empty")
        assert router.stop() == 0
    assert place.payloads_are_right(run)
    assert queue_of(broker, client).depth() == 0
    assert queue_of(broker, client).dead_letters() == []
    assert PASSWORD not in router.log_path.read_text()


def test_what_can_never_be_taken_goes_to_the_dead_letters_with_its_reason(
    server: RabbitServer, broker: Broker, place: Place, client: str
) -> None:
    run = place.open_run(client)
    run_two = place.open_run(client, name="two")
    other = place.open_run("somebody-else")
    wrong = chunk_of(run, 2)
    parquet = (sha256(b"no parquet").hexdigest(), b"no parquet")
    send(broker, client, chunk_of(run, 1), end_of(run, 1))
    send(
        *(broker, client),
        chunk_of(run, 1, payload=b"shop,amount\nother,1\n"),
        type(wrong)(run_two, "sales", "", Ordinal(3), "csv", "00" * 32, wrong.payload),
        chunk_of(run, 1, sender="nobody"),
        chunk_of(other, 1),
        chunk_of(RunId("never-was"), 1),
        chunk_of(run_two, 1, payload=b"amount,shop\n1,swapped\n"),
        type(wrong)(run_two, "sales", "", wrong.ordinal, "parquet", *parquet),
        end_of(run, 2),
    )
    broker.publish(client_queue(client), [Message(b"hello", "no-frame")])
    with routing(server, place, "--client", client):
        queue = queue_of(broker, client)
        until(lambda: len(buried(queue)) >= 9, "all nine are buried")
        until(lambda: queue.depth() == 0, "the queue is empty")
    assert sorted(code for _, code in buried(queue)) == [
        "CHECKSUM_WRONG",
        "CHUNK_CONFLICT",
        "DAMAGED",
        "DOCUMENT_REFUSED",
        "DOCUMENT_REFUSED",
        "END_CONFLICT",
        "RUN_UNKNOWN",
        "RUN_UNKNOWN",
        "USAGE_INVALID",
    ]
    strangers = [
        letter.reason.replace(other, "RUN").replace("never-was", "RUN")
        for letter in queue_of(broker, client).dead_letters()
        if letter.code == "RUN_UNKNOWN"
    ]
    assert len(set(strangers)) == 1, "another client's run is one that never was"
    assert place.is_whole(run, 1)
    assert place.received(other) == {"": []}
    assert place.received(run_two) == {"": []}


def test_what_is_over_a_quota_for_good_is_a_dead_letter(
    server: RabbitServer, broker: Broker, place: Place, client: str
) -> None:
    """Too large, one too many of its run, more than the client may ever keep; others flow."""
    quotas = Quotas(chunk_bytes=60, run_chunks=2, stored_bytes=50)
    place.store.add_client(Client(client, quotas=quotas), Token("a" * 16, "0" * 64))
    run, other = place.open_run(client), place.open_run(client, name="other")
    long = [payload_of(1) + b"s,1\n" * n for n in (20, 10)]
    send(broker, client, *(chunk_of(run, n) for n in (1, 2, 3)))
    send(broker, client, *(chunk_of(other, n, payload=text) for n, text in enumerate(long, 1)))
    send(broker, client, end_of(run, 2))
    with routing(server, place, "--client", client):
        queue = queue_of(broker, client)
        until(lambda: len(buried(queue)) >= 3, "all three are buried")
        until(lambda: place.is_whole(run, 2), "the run is whole")
        until(lambda: queue.depth() == 0, "the queue is empty")
    codes = sorted(code for _, code in buried(queue))
    assert codes == ["BODY_TOO_LARGE", "QUOTA_REACHED", "QUOTA_REACHED"]
    assert place.received(other) == {"": []}


@pytest.mark.parametrize("crash", [None, "router.postpone.after:1", "router.postpone.after:2"])
def test_what_has_no_room_now_lets_others_pass_and_is_taken_later(
    server: RabbitServer, broker: Broker, place: Place, client: str, crash: str | None
) -> None:
    """A full backlog: ENDs behind the chunks are taken, the chunks once when there is room.

    Killed with a copy sent on and not acked, a message is there twice. Meanwhile each goes round
    at most once per stay at the broker: no busy loop. A kill may leave both of the chunks twice.
    """
    full, run, late = (place.open_run(client, name=name) for name in ("full", "run", "late"))
    large = chunk_of(full, 1, payload=payload_of(1) + b"s,1\n" * 20)
    options: dict[str, Any] = {"HOLDFAST_BACKLOG_BYTES": "60"}

    def hand_in() -> None:
        send(broker, client, large)
        until(lambda: place.received(full) == {"": [1]}, "the backlog is full")
        send(broker, client, chunk_of(run, 1), chunk_of(run, 2), end_of(run, 2))

    if crash is not None:
        with routing(server, place, "--client", client, crash=crash, **options) as first:
            hand_in()
            until(first.died_by_crash, "it died at its point")
    with routing(server, place, "--client", client, "--metrics-port", "0", **options) as router:
        if crash is None:
            hand_in()
        until(lambda: place.announced(run) == {"": 2}, "the END behind them is in")
        copies = 2 if crash is None else 4
        began_s, before = time.monotonic(), turns_at(router)
        until(lambda: turns_at(router) >= before + 8, "they go round")
        rounds = (turns_at(router) - before) / copies
        assert rounds <= (time.monotonic() - began_s) / RETRY_DELAY_S + 1
        assert router.said("postponed") <= copies, "said once of each, not at every turn"
        send(broker, client, end_of(late, 0))
        until(lambda: place.announced(late) == {"": 0}, "one that comes late passes too")
        assert (place.received(run), place.received(full)) == ({"": []}, {"": [1]})
        place.store.cancel_run(client, full)
        until(lambda: place.is_whole(run, 2), "both are in")
        until(lambda: not waiting_at(broker, client), "no copy is left")
        assert router.stop() == 0
    while waiting_at(broker, client):  # a copy that was not acked yet when it stopped
        with routing(server, place, "--client", client, **options):
            until(lambda: not waiting_at(broker, client), "the next router takes it")
    assert place.payloads_are_right(run)
    assert queue_of(broker, client).dead_letters() == []


def turns_at(router: RouterProcess) -> float:
    return figures_of(router.ready())["postponed_total"]


def waiting_at(broker: Broker, client: str) -> int:
    """How many messages of a client wait at the broker, those between two turns included."""
    names = (client_queue(client), retry_queue(client_queue(client)))
    return sum(broker.loop.call(broker.link.depth(name)) or 0 for name in names)


def test_no_room_and_no_place_to_wait_is_mended(
    server: RabbitServer, broker: Broker, place: Place, client: str
) -> None:
    """Somebody deletes the queue in which postponed messages wait: it is made again."""
    full, run = place.open_run(client, name="full"), place.open_run(client)
    with routing(server, place, "--client", client, HOLDFAST_BACKLOG_BYTES="10") as router:
        send(broker, client, chunk_of(full, 1))
        until(lambda: place.received(full) == {"": [1]}, "the backlog is full")
        broker.loop.call(broker.link.delete(retry_queue(client_queue(client))))
        send(broker, client, chunk_of(run, 1))
        until(lambda: router.said("not postponed"), "it says so")
        until(lambda: router.said("postponed"), "and goes on")
        place.store.cancel_run(client, full)
        until(lambda: place.received(run) == {"": [1]}, "it is in")
        assert router.stop() == 0


def buried(queue: Queue) -> set[tuple[str, str]]:
    """What is buried, by name and code. Sent again for a lost confirm, it may be there twice."""
    return {(letter.message.message_id, letter.code) for letter in queue.dead_letters()}


@pytest.mark.parametrize(
    "point", ["intake.blob.after", "intake.chunk.after", "intake.end.after", "queue.bury.after"]
)
def test_killed_between_a_commit_and_its_ack(
    server: RabbitServer, broker: Broker, place: Place, client: str, point: str
) -> None:
    """The message comes again to the next router, and counts once."""
    run = place.open_run(client)
    sent = [chunk_of(run, n) for n in (1, 2, 3)]
    send(broker, client, *sent, end_of(run, 3))
    broker.publish(client_queue(client), [Message(b"bad", "bad")])
    hit = 2 if "chunk" in point or "blob" in point else 1
    with routing(server, place, "--client", client, crash=f"{point}:{hit}") as first:
        until(first.died_by_crash, "it died at its point")
    with routing(server, place, "--client", client):
        until(lambda: place.is_whole(run, 3), "all is in intake")
        until(lambda: queue_of(broker, client).depth() == 0, "the queue is empty")
        until(queue_of(broker, client).dead_letters, "the bad one is buried")
    assert place.payloads_are_right(run)


def test_several_routers_share_clients(
    server: RabbitServer, broker: Broker, place: Place, client: str
) -> None:
    """Two serve one queue; one is killed in the middle."""
    run = place.open_run(client)
    options = ("--client", client, "--prefetch", "4")
    with routing(server, place, *options) as one, routing(server, place, *options) as two:
        one.ready(), two.ready()
        send(broker, client, *[chunk_of(run, n) for n in range(1, 101)])
        until(lambda: len(place.received(run)[""]) > 20, "some are in")
        one.kill()
        send(broker, client, end_of(run, 100))
        until(lambda: place.is_whole(run, 100), "the other takes all")
        until(lambda: queue_of(broker, client).depth() == 0, "the queue is empty")
        assert two.stop() == 0


def test_a_client_that_is_added_is_served_and_a_revoked_one_left(
    server: RabbitServer, broker: Broker, place: Place
) -> None:
    names = [f"added-{place.root.parent.name}", f"later-{place.root.parent.name}"]
    place.store.add_client(Client(names[0]), Token("a" * 16, "0" * 64))
    with routing(server, place) as router:
        router.ready()
        place.store.add_client(Client(names[1]), Token("b" * 16, "0" * 64))
        until(lambda: router.said("serving", client=names[1]) == 1, "the new one is served")
        run = place.open_run(names[1])
        send(broker, names[1], chunk_of(run, 1), end_of(run, 1))
        until(lambda: place.is_whole(run, 1), "its run is whole")
        place.store.revoke_client(names[0])
        until(lambda: router.said("client left", client=names[0]) == 1, "the revoked one is left")
        assert router.stop() == 0


def test_bad_options_and_refusals_are_one_line(
    server: RabbitServer, place: Place, client: str
) -> None:
    url = f"amqp://holdfast@127.0.0.1:{server.port}/"
    cases = [
        ((*("--shard", "x"),), url, "USAGE_INVALID", 2),
        ((), server.url(), "USAGE_INVALID", 2),
        ((), f"amqp://nobody@127.0.0.1:{server.port}/", "BROKER_REFUSED", 1),
        ((*("--delayed-ack", "--prefetch", "1"),), url, "USAGE_INVALID", 2),
    ]
    for options, address, code, exit_code in cases:
        with routing(server, place, "--client", client, *options, url=address) as router:
            assert router.process.wait(60) == exit_code
            (line,) = [one for one in router.log_path.read_text().splitlines() if one]
            assert line.startswith(f"holdfast: [{code}] "), line
            assert PASSWORD not in line


def test_the_broker_is_killed_twenty_times(tmp_path: Path) -> None:
    """While clients send and a router takes: all that was confirmed is there, once, and the runs
    that come of it have the oracle's answers.
    """
    pipeline = tiny_pipeline()
    place = Place(tmp_path / "state", pipeline)
    clients = ["ada", "bob"]
    runs = {client: place.open_run(client) for client in clients}
    counts = dict.fromkeys(clients, 0)
    ended = threading.Event()
    failures: list[BaseException] = []

    def keep_sending(server: RabbitServer, client: str) -> None:
        try:
            with Broker(server.url(), patience_s=120) as broker:
                broker.queue(QueueSpec(client_queue(client)))
                while not ended.is_set():
                    send(broker, client, chunk_of(runs[client], counts[client] + 1))
                    counts[client] += 1
                send(broker, client, end_of(runs[client], counts[client]))
        except BaseException as error:
            failures.append(error)
            raise

    options = [part for client in clients for part in ("--client", client)]
    taken_by = {"pipeline": "tests.integration.tiny:pipe"}
    with running() as server, routing(server, place, *options, **taken_by) as router:
        router.ready()
        threads = [
            threading.Thread(target=keep_sending, args=[server, client]) for client in clients
        ]
        for thread in threads:
            thread.start()
        _both_get_on(counts)
        server.settle()
        for _ in range(KILLS):
            _both_get_on(counts)
            server.restart()
        ended.set()
        for thread in threads:
            thread.join(120)
        assert failures == []
        until(
            lambda: all(place.is_whole(run, counts[client]) for client, run in runs.items()),
            "all is in",
            timeout_s=90,
        )
        assert all(place.payloads_are_right(run) for run in runs.values())
        assert router.process.poll() is None, "the router outlived every kill"
        with Broker(server.url()) as broker:
            queues = [queue_of(broker, client) for client in clients]
            until(lambda: all(queue.depth() == 0 for queue in queues), "queues are empty")
            assert [queue.dead_letters() for queue in queues] == [[], []]
        assert router.stop() == 0
    place.store.close()
    for client, run in runs.items():
        compute(place.root, pipeline, run, tmp_path / client)
        assert answers_in(tmp_path / client) == answers_to(counts[client])


def answers_to(count: int) -> Answers:
    """What the tiny pipeline must answer to the first chunks, by their numbers alone."""
    shops = {n: f"s{n % 3}" for n in range(1, count + 1)}
    sums = {one: sum(n for n, shop in shops.items() if shop == one) for one in shops.values()}
    return {
        "all_sales": Counter((shop, str(n)) for n, shop in shops.items()),
        "report": Counter((shop, str(total)) for shop, total in sums.items()),
    }


def _both_get_on(counts: dict[str, int]) -> None:
    before = dict(counts)
    until(
        lambda: all(counts[client] >= before[client] + 3 for client in counts),
        "both clients got on",
        timeout_s=90,
    )


def test_a_full_disk_is_waited_for(server: RabbitServer, broker: Broker, place: Place) -> None:
    """The blobs' directory cannot be written: nothing is acked or buried; then all is in."""
    client = "full-disk"
    queue = queue_of(broker, client)
    run = place.open_run(client)
    blobs = place.root / "blobs"
    blobs.mkdir(exist_ok=True)
    with routing(server, place, "--client", client) as router:
        router.ready()
        moved = place.root / "blobs-away"
        blobs.rename(moved)
        blobs.write_text("in the way")
        send(broker, client, chunk_of(run, 1))
        until(lambda: router.said("waiting") > 0, "it waits")
        assert place.received(run) == {"": []}
        blobs.unlink()
        moved.rename(blobs)
        send(broker, client, end_of(run, 1))
        until(lambda: place.is_whole(run, 1), "it goes on")
    assert queue.dead_letters() == []
