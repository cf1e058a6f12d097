"""Delayed ack with real processes: ENDs stay at the broker, and every death brings them back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.integration.rabbit_server import RabbitServer, running
from tests.integration.router_work import (
    Place,
    RouterProcess,
    chunk_of,
    drained,
    end_of,
    figures_of,
    payload_of,
    routing,
    send,
)
from tests.integration.waiting import until

from holdfast._base.ids import RunId, fresh_token
from holdfast.amqp.broker import Broker, Queue
from holdfast.amqp.names import client_queue
from holdfast.amqp.topology import QueueSpec
from holdfast.router.messages import ClientMessage
from holdfast.worker.messages import Chunk, End

CLIENTS_AT_ONCE = 50


@pytest.fixture(scope="module")
def server() -> Iterator[RabbitServer]:
    """A broker that lets nobody hold a message longer than three seconds."""
    with running(consumer_timeout_s=3) as one:
        yield one


class Case:
    """One client, two shards, and a state."""

    def __init__(self, server: RabbitServer, broker: Broker, root: Path) -> None:
        self.server, self.broker, self.place = server, broker, Place(root / "state")
        self.client = f"c-{fresh_token()}"
        self.queue = broker.queue(QueueSpec(client_queue(self.client)))
        self.shards = [broker.queue(f"shard-{n}-{self.client}") for n in (0, 1)]

    def routing(self, *options: str, **more: Any) -> Any:
        shards = [part for shard in self.shards for part in ("--shard", shard.name)]
        base = ("--client", self.client, "--delayed-ack", *shards)
        return routing(self.server, self.place, *base, *options, **more)

    def send(self, *messages: Any) -> None:
        send(self.broker, self.client, *messages)

    def is_settled(self) -> bool:
        """Nothing is left at the broker, held or waiting: consumers are gone when this is asked."""
        return self.queue.depth() == 0


def expected(run: RunId, count: int, sender: str = "") -> list[set[Any]]:
    """What each of two shards must have, by the numbers alone."""
    made: list[set[Any]] = [set(), set()]
    for ordinal in range(1, count + 1):
        shard, own = (ordinal - 1) % 2, (ordinal + 1) // 2
        made[shard].add(Chunk(run, "sales", sender, own, payload_of(ordinal)))
    for shard in (0, 1):
        total = len(made[shard])
        made[shard].add(End(run, "sales", total, sender))
    return made


@pytest.fixture
def case(server: RabbitServer, tmp_path: Path) -> Iterator[Case]:
    with Broker(server.url(), patience_s=60) as broker:
        one = Case(server, broker, tmp_path)
        yield one
        one.place.store.close()


def shards_have(case: Case, *runs: tuple[RunId, int, str]) -> None:
    """Each shard has every message at least once, and no other."""
    for number, shard in enumerate(case.shards):
        wanted: set[Any] = set().union(*(expected(*run)[number] for run in runs))
        assert set(drained(shard)) == wanted


def test_an_end_is_held_until_its_chunks_are_in_and_the_log_says_so(case: Case) -> None:
    run = case.place.open_run(case.client, ["north", "south"])
    with case.routing("--hold-alert-s", "0.2", "--metrics-port", "0") as router:
        router.ready()
        case.send(end_of(run, 3, "north"), end_of(run, 0, "south"))
        until(lambda: router.said("END deferred", sender="north", pending=3), "it is deferred")
        until(lambda: router.said("END acked", sender="south"), "the empty one went on")
        until(lambda: router.said("ALERT: END held too long", sender="north"), "the alert")
        assert figures_of(router)["ends_held"] == 1
        assert figures_of(router)["ends_overdue"] == 1
        assert case.place.announced(run) == {"north": None, "south": 0}
        assert router.said("END acked", sender="north") == 0
        case.send(*(chunk_of(run, n, "north") for n in (3, 1, 2)))
        until(lambda: router.said("END acked", sender="north"), "it is acked")
        assert router.said("END forwarded", sender="north", shards=2) == 1
        assert figures_of(router)["ends_held"] == 0
        assert router.stop() == 0
    assert case.is_settled()
    assert case.place.is_whole(run, 3) is False
    assert case.place.received(run) == {"north": [1, 2, 3], "south": []}
    assert case.place.announced(run) == {"north": 3, "south": 0}
    shards_have(case, (run, 3, "north"), (run, 0, "south"))


def told_of_ends(router: RouterProcess, sender: str) -> list[str]:
    """What a router said of one sender's END, in order."""
    return [
        line["event"]
        for line in router.lines()
        if line["event"].startswith("END ") and line["sender"] == sender
    ]


def test_the_log_tells_the_way_of_one_end_in_order(tmp_path: Path) -> None:
    """Whoever reads one sender's lines knows where its END is: nothing twice, nothing left out.

    The first router dies while it holds the ENDs of two. The broker lets them be held for long: it
    gives none back by itself.
    """
    with running() as server, Broker(server.url(), patience_s=60) as broker:
        case = Case(server, broker, tmp_path)
        run = case.place.open_run(case.client, ["north", "south"])
        case.send(end_of(run, 1, "north"), end_of(run, 1, "south"))
        with case.routing() as router:
            until(lambda: router.said("END deferred") == 2, "both are held")
            for sender in ("north", "south"):
                assert told_of_ends(router, sender) == ["END received", "END deferred"]
            router.kill()
        until(lambda: (case.queue.depth() or 0) >= 2, "the broker has them back")
        with case.routing() as router:
            until(lambda: router.said("END deferred") == 2, "both are held again")
            case.send(chunk_of(run, 1, "south"), chunk_of(run, 1, "north"))
            until(lambda: router.said("END acked") == 2, "both are let go")
            assert router.stop() == 0
            again = ["END received", "END redelivered, recovering state", "END deferred"]
            for sender in ("north", "south"):
                assert told_of_ends(router, sender) == [*again, "END forwarded", "END acked"]
        shards_have(case, (run, 1, "north"), (run, 1, "south"))
        case.place.store.close()


def test_killed_while_ends_are_held_three_times_in_a_row(case: Case) -> None:
    """Each successor is handed the same ENDs again, and builds up what is missing from intake."""
    run = case.place.open_run(case.client, ["a", "b", "c"])
    case.send(*(end_of(run, 2, sender) for sender in "abc"))
    for attempt in range(3):
        with case.routing() as router:
            until(lambda r=router: r.said("END deferred") >= 3, "all are held")  # type: ignore[misc]
            again = router.said("END redelivered, recovering state")
            assert again == (3 if attempt else 0)
            assert case.place.announced(run) == dict.fromkeys("abc")
            case.send(chunk_of(run, 1, "abc"[attempt]))
            until(lambda n=attempt: _received(case, run) == n + 1, "one chunk more")  # type: ignore[misc]
            router.kill()
        until(lambda: (case.queue.depth() or 0) >= 3, "the broker has them back")
    with case.routing() as router:
        case.send(*(chunk_of(run, 2, sender) for sender in "abc"))
        until(lambda: router.said("END acked") == 3, "all are let go")
        assert router.stop() == 0
    assert case.is_settled()
    assert case.place.is_whole(run, 2)
    shards_have(case, *((run, 2, sender) for sender in "abc"))


def _received(case: Case, run: RunId) -> int:
    return sum(len(found) for found in case.place.received(run).values())


@pytest.mark.parametrize("hits", [(1,), (2,), (1, 1, 1)])
def test_killed_between_two_shards_of_one_forward(case: Case, hits: tuple[int, ...]) -> None:
    """After the first shard, after the last one, and three routers in a row after the first."""
    run = case.place.open_run(case.client)
    case.send(chunk_of(run, 1), chunk_of(run, 2), end_of(run, 2))
    for hit in hits:
        with case.routing(crash=f"router.end.forwarded:{hit}") as router:
            until(router.died_by_crash, "it died between two shards")
        until(lambda: (case.queue.depth() or 0) >= 1, "the END is back")
    with case.routing() as router:
        until(lambda: router.said("END acked") == 1, "it is let go")
        assert router.said("END redelivered, recovering state") == 1
        assert router.stop() == 0
    assert case.is_settled()
    assert case.place.is_whole(run, 2)
    shards_have(case, (run, 2, ""))


@pytest.mark.parametrize("point", ["router.chunk.forwarded", "intake.end.after"])
def test_killed_between_a_commit_and_what_follows(case: Case, point: str) -> None:
    run = case.place.open_run(case.client)
    case.send(*(chunk_of(run, n) for n in (1, 2, 3)), end_of(run, 3))
    with case.routing(crash=f"{point}:1") as router:
        until(router.died_by_crash, "it died at its point")
    with case.routing() as router:
        until(lambda: router.said("END acked") == 1, "it is let go")
        assert router.stop() == 0
    assert case.is_settled()
    assert case.place.is_whole(run, 3)
    shards_have(case, (run, 3, ""))


def test_at_prefetch_minus_one_the_next_end_goes_to_intake(case: Case) -> None:
    """Three places: two ENDs are held, the others are spilled; then a kill; all are forwarded."""
    senders = [f"s{n}" for n in range(6)]
    run = case.place.open_run(case.client, senders)
    case.send(*(end_of(run, 1, sender) for sender in senders))
    with case.routing("--prefetch", "3") as router:
        until(lambda: router.said("END spilled") == 4, "four are spilled")
        until(lambda: router.said("END acked") == 4, "and acked at once")
        assert router.said("END deferred") == 2
        known = case.place.announced(run)
        assert sorted(known.values(), key=str) == [1, 1, 1, 1, None, None]
        router.kill()
    with case.routing("--prefetch", "3") as router:
        router.ready()
        case.send(*(chunk_of(run, 1, sender) for sender in senders))
        until(lambda: router.said("END acked") == 2, "the held ones are let go")
        until(lambda: router.said("END forwarded") == 6, "the spilled ones are forwarded too")
        assert router.stop() == 0
    assert case.is_settled()
    assert case.place.is_whole(run, 1)
    shards_have(case, *((run, 1, sender) for sender in senders))


def test_killed_after_a_spill_and_after_the_runs_barrier(case: Case) -> None:
    """The spilled END is acked, its run is no more OPEN, one of two shards has it: nobody but
    intake can tell the other one.
    """
    run = case.place.open_run(case.client, ["held", "spilled"], whole=True)
    with case.routing("--prefetch", "2", crash="router.end.forwarded:3") as router:
        case.send(end_of(run, 1, "held"))
        until(lambda: router.said("END deferred") == 1, "the first is held")
        case.send(end_of(run, 1, "spilled"))
        until(lambda: router.said("END acked", sender="spilled") == 1, "the second is spilled")
        case.send(chunk_of(run, 1, "held"))
        until(lambda: router.said("END acked", sender="held") == 1, "the first is let go")
        assert case.place.state_of(run) == "OPEN"
        case.send(chunk_of(run, 1, "spilled"))
        until(router.died_by_crash, "it died between the shards of the spilled one")
    assert case.place.state_of(run) == "FORWARDING"
    with case.routing("--prefetch", "2") as router:
        until(lambda: router.said("END forwarded", sender="spilled") == 1, "it is forwarded")
        until(lambda: not case.place.store.list_owed_ends(), "nothing is owed")
        assert router.stop() == 0
    assert case.is_settled()
    shards_have(case, (run, 1, "held"), (run, 1, "spilled"))


def test_killed_when_every_shard_has_a_held_end_before_its_ack(case: Case) -> None:
    run = case.place.open_run(case.client, whole=True)
    case.send(chunk_of(run, 1), end_of(run, 1))
    with case.routing(crash="router.end.recorded:1") as router:
        until(router.died_by_crash, "it died before the ack")
    assert case.place.store.list_owed_ends() == []
    until(lambda: (case.queue.depth() or 0) >= 1, "the END is back")
    with case.routing() as router:
        until(lambda: router.said("END acked") == 1, "it is let go")
        assert router.stop() == 0
    assert case.is_settled()
    assert case.place.store.list_owed_ends() == []
    shards_have(case, (run, 1, ""))


def test_one_of_two_routers_dies_for_good_and_the_other_recalls_what_it_spilled(
    case: Case,
) -> None:
    """Both spill; what the dead one spilled and acked reaches the shards by the living one."""
    senders = [f"s{n}" for n in range(6)]
    run = case.place.open_run(case.client, senders, whole=True)
    with case.routing("--prefetch", "2") as doomed, case.routing("--prefetch", "2") as living:
        doomed.ready()
        living.ready()
        case.send(*(end_of(run, 1, sender) for sender in senders))
        until(lambda: doomed.said("END acked") > 0, "the doomed one spilled and acked")
        doomed.kill()
        case.send(*(chunk_of(run, 1, sender) for sender in senders))
        until(lambda: case.place.is_whole(run, 1), "all is in intake")
        until(lambda: not case.place.store.list_owed_ends(), "nothing is owed any more")
        until(lambda: living.said("END recalled") > 0, "by the living one")
        assert living.stop() == 0
    assert case.is_settled()
    shards_have(case, *((run, 1, sender) for sender in senders))


def test_a_router_with_other_shards_is_refused(case: Case) -> None:
    """Another order, one less, none: before it serves, while a run goes by the first list."""
    run = case.place.open_run(case.client)
    first, second = (shard.name for shard in case.shards)
    with case.routing() as router:
        case.send(chunk_of(run, 1), chunk_of(run, 2))
        until(lambda: _received(case, run) == 2, "they are in")
        assert router.stop() == 0
    swapped = ("--delayed-ack", "--shard", second, "--shard", first)
    for options in (swapped, swapped[:3], ()):
        with routing(case.server, case.place, "--client", case.client, *options) as router:
            assert router.process.wait(60) == 1
            said = router.log_path.read_text()
            assert "SHARDS_MISMATCH" in said
            assert f"{first}, {second}" in said
            assert router.said("serving") == 0
    with routing(case.server, case.place, "--client", "another", *swapped) as router:
        router.ready()
        assert router.stop() == 0
    with case.routing() as router:
        case.send(end_of(run, 2))
        until(lambda: router.said("END acked") == 1, "the first list goes on")
        assert router.stop() == 0
    shards_have(case, (run, 2, ""))


@pytest.mark.parametrize("count", [1, 0], ids=["by a chunk", "by an END alone"])
def test_a_router_with_other_shards_that_serves_already_ends(case: Case, count: int) -> None:
    """Two start before there is a run; the first to meet it says how it is spread.

    An END is met by the thread that holds ENDs: its end is the router's.
    """
    first, second = (shard.name for shard in case.shards)
    swapped = ("--client", case.client, "--delayed-ack", "--shard", second, "--shard", first)
    with routing(case.server, case.place, *swapped) as router:
        router.ready()
        run = case.place.open_run(case.client)
        assert case.place.store.keep_shards(run, (first, second)) == (first, second)
        case.send(*(chunk_of(run, n) for n in range(1, count + 1)), end_of(run, count))
        assert router.process.wait(60) == 1
        assert "SHARDS_MISMATCH" in router.log_path.read_text()
    assert case.queue.dead_letters() == []
    with case.routing() as router:
        until(lambda: router.said("END acked") == 1, "the other one takes what there is")
        assert router.stop() == 0
    assert case.is_settled()
    shards_have(case, (run, count, ""))


def test_the_broker_times_out_a_held_end_and_it_comes_again(case: Case) -> None:
    """Twice beyond the broker's time-out: dead tags are forgotten, nothing is an attempt."""
    run = case.place.open_run(case.client)
    with case.routing() as router:
        router.ready()
        case.send(end_of(run, 1))
        until(lambda: router.said("END redelivered, recovering state") >= 2, "it came again")
        case.send(chunk_of(run, 1))
        until(lambda: router.said("END acked") == 1, "it is let go")
        assert router.said("lost") >= 2
        assert router.stop() == 0
    assert case.is_settled()
    assert case.queue.dead_letters() == []
    shards_have(case, (run, 1, ""))


def test_the_broker_is_killed_while_ends_are_held(tmp_path: Path) -> None:
    """A reconnect with dead tags: the ENDs come again on a new channel, and only that is acked."""
    with running() as server, Broker(server.url(), patience_s=60) as broker:
        case = Case(server, broker, tmp_path)
        run = case.place.open_run(case.client, ["a", "b"])
        with case.routing() as router:
            router.ready()
            server.settle()
            case.send(end_of(run, 1, "a"), end_of(run, 1, "b"))
            for times in (1, 2):
                until(lambda n=times: router.said("END deferred") == 2 * n, "held")  # type: ignore[misc]
                server.restart()
            until(lambda: router.said("END redelivered, recovering state") == 4, "they came again")
            case.send(chunk_of(run, 1, "a"), chunk_of(run, 1, "b"))
            until(lambda: router.said("END acked") == 2, "both are let go")
            assert router.stop() == 0
        assert case.is_settled()
        shards_have(case, (run, 1, "a"), (run, 1, "b"))
        case.place.store.close()


def test_a_shards_queue_is_deleted_between_two_forwards(case: Case) -> None:
    """The END stays held and says why, until the queue is there again."""
    run = case.place.open_run(case.client)
    with case.routing() as router:
        router.ready()
        case.send(chunk_of(run, 1))
        until(lambda: _received(case, run) == 1, "the chunk is in")
        until(lambda: case.queue.depth() == 0, "and acked")
        case.shards[1].delete()
        case.send(end_of(run, 1))
        until(lambda: router.said("END not forwarded", shard=case.shards[1].name), "it says so")
        assert router.said("END acked") == 0
        case.broker.queue(case.shards[1].spec)
        until(lambda: router.said("END acked") == 1, "it is let go")
        assert router.stop() == 0
    shards_have(case, (run, 1, ""))


def test_conflicting_ends_and_strangers_go_to_the_dead_letters(case: Case) -> None:
    run = case.place.open_run(case.client)
    with case.routing() as router:
        router.ready()
        case.send(chunk_of(run, 1))
        until(lambda: _received(case, run) == 1, "the chunk is in")
        case.send(end_of(run, 0), end_of(run, 2), end_of(run, 3), end_of(RunId("nobody"), 1))
        until(lambda: len(case.queue.dead_letters()) == 3, "three are buried")
        case.send(chunk_of(run, 2))
        until(lambda: router.said("END acked") == 1, "the right one is let go")
        assert router.stop() == 0
    codes = sorted(letter.code for letter in case.queue.dead_letters())
    assert codes == ["END_CONFLICT", "END_CONFLICT", "RUN_UNKNOWN"]
    shards_have(case, (run, 2, ""))


def test_the_end_of_a_run_that_is_cancelled_is_not_held_for_ever(tmp_path: Path) -> None:
    """By a broker, too, that lets a message be held for long."""
    with running() as server, Broker(server.url(), patience_s=60) as broker:
        case = Case(server, broker, tmp_path)
        run = case.place.open_run(case.client)
        with case.routing() as router:
            router.ready()
            case.send(end_of(run, 1))
            until(lambda: router.said("END deferred") == 1, "it is held")
            case.place.store.cancel_run(case.client, run)
            until(lambda: len(case.queue.dead_letters()) == 1, "it is let go")
            assert router.said("END redelivered, recovering state") == 0
            assert router.stop() == 0
        assert [letter.code for letter in case.queue.dead_letters()] == ["RUN_GONE"]
        assert case.is_settled()
        case.place.store.close()


def test_fifty_clients_say_end_at_once(server: RabbitServer, tmp_path: Path) -> None:
    """All ENDs come before any chunk, from all clients together; the router is killed in between.

    Both shards have all of every client, chunks too, and nothing else.
    """
    with Broker(server.url(), patience_s=60) as broker, ThreadPoolExecutor(10) as pool:
        place, token = Place(tmp_path / "state"), fresh_token()[:8]
        clients = [f"c{n}-{token}" for n in range(CLIENTS_AT_ONCE)]
        queues: list[Queue] = [broker.queue(QueueSpec(client_queue(one))) for one in clients]
        runs = {client: place.open_run(client) for client in clients}
        shards = [broker.queue(f"shard-{n}-{token}") for n in (0, 1)]
        options = [part for client in clients for part in ("--client", client)]
        options += ["--delayed-ack", *(part for one in shards for part in ("--shard", one.name))]

        def say(*messages: Callable[[RunId], ClientMessage]) -> None:
            def of_one(client: str) -> None:
                send(broker, client, *(message(runs[client]) for message in messages))

            list(pool.map(of_one, clients))

        say(lambda run: end_of(run, 3))
        with routing(server, place, *options) as router:
            until(lambda: router.said("END deferred") >= CLIENTS_AT_ONCE, "all are held")
            router.kill()
        say(*(partial(chunk_of, ordinal=n) for n in (3, 1, 2)))
        with routing(server, place, *options) as router:
            until(lambda: router.said("END acked") == CLIENTS_AT_ONCE, "all are let go")
            assert router.stop() == 0
        assert all(place.is_whole(run, 3) for run in runs.values())
        assert all(queue.depth() == 0 for queue in queues)
        for number, shard in enumerate(shards):
            wanted = set().union(*(expected(run, 3)[number] for run in runs.values()))
            assert set(drained(shard)) == wanted
        place.store.close()
