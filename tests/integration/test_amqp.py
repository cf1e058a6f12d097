"""The adapter against a real RabbitMQ: what callbacks say, what is lost, what comes again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.rabbit_server import PASSWORD, RabbitServer, running
from tests.integration.waiting import until
from tests.tcp_proxy import Proxy

from holdfast._base.ids import fresh_token
from holdfast.amqp.broker import Broker, Queue
from holdfast.amqp.contract import Callback, Handle, Message, Reject
from holdfast.amqp.names import dead_queue, subscriber_queue
from holdfast.amqp.topology import QueueSpec
from holdfast.errors import (
    BrokerRefused,
    BrokerUnreachable,
    HoldfastError,
    InvariantViolated,
    MessageNacked,
    MessageUnroutable,
    QueueMismatch,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[RabbitServer]:
    """One whose consumers may hold a message for two seconds."""
    with running(consumer_timeout_s=2) as one:
        yield one


@pytest.fixture
def broker(server: RabbitServer) -> Iterator[Broker]:
    with Broker(server.url()) as one:
        yield one


def make_queue(broker: Broker, **options: Any) -> Queue:
    return broker.queue(QueueSpec(f"t-{fresh_token()}", retry_delay_s=0.1, **options))


def bodies(*texts: str) -> list[Message]:
    return [Message(text.encode(), message_id=text) for text in texts]


def test_what_a_callback_returns_decides(broker: Broker) -> None:
    """True and None ack, False does not, Reject is a dead letter at once, with its reason."""
    queue = make_queue(broker)
    seen: list[bytes] = []
    held: list[Handle] = []

    def work(message: Message, redelivered: bool, handle: Handle) -> bool | None:
        assert not redelivered
        seen.append(message.body)
        match message.body:
            case b"true":
                return True
            case b"later":
                held.append(handle)
                return False
            case b"never":
                raise Reject("it is no order", code="NO_ORDER")
        return None

    consumer = queue.consume(work)
    queue.publish(*bodies("true", "none", "later", "never"))
    until(lambda: len(seen) == 4 and queue.dead_letters(), "all four are worked on")
    (letter,) = queue.dead_letters()
    assert (letter.message.body, letter.code, letter.reason) == (
        *(b"never", "NO_ORDER", "it is no order"),
    )
    assert (letter.queue, letter.attempts) == (queue.name, 1)
    assert held[0].ack()
    assert not held[0].ack()
    consumer.stop()
    assert queue.depth() == 0
    assert sorted(seen) == [b"later", b"never", b"none", b"true"]


def test_a_callback_that_takes_only_the_message_works(broker: Broker) -> None:
    queue = make_queue(broker)
    seen: list[bytes] = []
    consumer = queue.consume(lambda message: seen.append(message.body))
    queue.publish(*bodies("a", "b"))
    until(lambda: seen == [b"a", b"b"], "both came in order")
    consumer.stop()
    assert queue.depth() == 0


def test_what_is_unfinished_at_the_end_comes_again(broker: Broker) -> None:
    """One is held, one's callback outlives the grace: both are there for the next consumer."""
    queue = make_queue(broker)
    inside, go_on = threading.Event(), threading.Event()
    late: list[bool] = []

    def work(message: Message, redelivered: bool, handle: Handle) -> bool | None:
        if message.body == b"held":
            return False
        inside.set()
        go_on.wait()
        late.append(handle.ack())
        return None

    first = queue.consume(work)
    queue.publish(*bodies("held", "slow"))
    assert inside.wait(10)
    first.stop(grace_s=0.1)
    go_on.set()
    until(lambda: late == [False], "an ack after the end is not heard, and says so")
    seen: dict[bytes, bool] = {}
    second = queue.consume(lambda message, redelivered, _: seen.update({message.body: redelivered}))
    until(lambda: seen == {b"held": True, b"slow": True}, "both come again")
    second.stop()


def test_a_poison_message_is_buried_after_its_attempts(broker: Broker) -> None:
    queue = make_queue(broker, attempts_max=3)
    tries: Counter[bytes] = Counter()

    def work(message: Message) -> None:
        tries[message.body] += 1
        if message.body == b"poison" or (message.body == b"passing" and tries[b"passing"] < 3):
            raise ValueError("cannot read this")

    consumer = queue.consume(work)
    queue.publish(*bodies("poison", "passing", "fine"))
    until(queue.dead_letters, "the poison is buried")
    until(lambda: tries == {b"poison": 3, b"passing": 3, b"fine": 1}, "others went on")
    consumer.stop()
    (letter,) = queue.dead_letters()
    assert (letter.message.message_id, letter.attempts) == ("poison", 3)
    assert (letter.code, letter.reason) == ("CALLBACK_RAISED", "ValueError: cannot read this")
    assert queue.depth() == 0


def test_attempts_are_counted_by_the_broker_not_by_the_process(broker: Broker) -> None:
    """Each attempt is made by another consumer: the count is as durable as the message."""
    queue = make_queue(broker, attempts_max=3)
    queue.publish(*bodies("poison"))
    for attempt in (1, 2, 3):
        raised = threading.Event()

        def work(message: Message, raised: threading.Event = raised) -> None:
            raised.set()
            raise ValueError("no")

        consumer = queue.consume(lambda message, work=work: work(message))
        assert raised.wait(10), attempt
        consumer.stop()
    until(lambda: [letter.attempts for letter in queue.dead_letters()] == [3], "it is buried")


def test_a_consumer_timeout_is_no_attempt(broker: Broker) -> None:
    """Held four times beyond the broker's time-out: more often than attempts are allowed."""
    queue = make_queue(broker, attempts_max=2)
    handles: list[Handle] = []
    flags: list[bool] = []
    lost: list[int] = []

    def work(message: Message, redelivered: bool, handle: Handle) -> bool:
        handles.append(handle)
        flags.append(redelivered)
        return False

    consumer = queue.consume(work, lost=lost.append)
    queue.publish(*bodies("held"))
    until(lambda: len(handles) == 5, "it came again four times")
    assert flags == [False, True, True, True, True]
    assert [handle.ack() for handle in handles] == [False, False, False, False, True]
    assert lost == [1, 2, 3, 4]
    assert len({handle.tag for handle in handles}) == 5
    consumer.stop()
    assert (queue.depth(), queue.dead_letters()) == (0, [])


def test_an_ack_that_is_lost_with_its_channel_holds_up_no_later_one(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a channel that dies between an ack and its sending keeps back no ack of the next one.

    Method: the first ack wakes nobody, as if the channel's end had come first. The broker's
    time-out ends the channel; the message comes again, and this ack must be sent.
    """
    queue = make_queue(broker)
    seen: list[bytes] = []
    consumer = queue.consume(lambda message: seen.append(message.body), prefetch=1)
    with monkeypatch.context() as patch:
        patch.setattr(consumer, "_nudge", lambda: None)
        queue.publish(*bodies("one"))
        until(lambda: len(consumer._settled) == 1, "its ack waits to be sent")
    until(lambda: seen == [b"one"] * 2, "it came again")
    queue.publish(*bodies("two"))
    until(lambda: seen == [b"one", b"one", b"two"], "its ack made room for the next")
    consumer.stop()
    assert queue.depth() == 0


def test_a_full_window_waits_for_acks(broker: Broker) -> None:
    queue = make_queue(broker)
    held: list[Handle] = []

    def work(message: Message, redelivered: bool, handle: Handle) -> bool:
        held.append(handle)
        return False

    consumer = queue.consume(work, prefetch=3)
    queue.publish(*bodies("1", "2", "3", "4", "5"))
    until(lambda: len(held) == 3, "three are held")
    assert queue.depth() == 2
    assert held[1].ack()
    until(lambda: len(held) == 4, "one more comes")
    assert queue.depth() == 1
    consumer.stop()


def test_several_threads_share_a_queue(broker: Broker) -> None:
    queue = make_queue(broker)
    together = threading.Barrier(4)
    met: list[bytes] = []

    def work(message: Message) -> None:
        together.wait(30)
        met.append(message.body)

    consumer = queue.consume(work, threads=4)
    queue.publish(*bodies("1", "2", "3", "4"))
    until(lambda: len(met) == 4, "all four met")
    consumer.stop()
    assert queue.depth() == 0


def test_a_message_to_no_queue_is_an_error_not_a_loss(broker: Broker) -> None:
    """The queue is deleted between two publishes; the exchange never was; nothing is bound."""
    queue = make_queue(broker)
    queue.publish(*bodies("first"))
    queue.delete()
    with pytest.raises(MessageUnroutable) as caught:
        queue.publish(*bodies("second"))
    assert caught.value.message == "second"
    assert queue.name in caught.value.target
    with pytest.raises(MessageUnroutable):
        broker.publish("key", bodies("third", "fourth"), exchange="nobody-declared-it")
    exchange = broker.exchange(f"x-{fresh_token()}", "topic")
    with pytest.raises(MessageUnroutable):
        exchange.publish("orders.new", *bodies("fifth"))
    again = broker.queue(queue.spec)
    exchange.bind(again, "orders.*")
    exchange.publish("orders.new", *bodies("fifth"))
    assert again.depth() == 1
    again.delete()
    again.delete()


def test_one_that_is_refused_does_not_hide_or_hurt_others(broker: Broker) -> None:
    """In flight together: some to a queue, some to an exchange that closes the channel."""
    queue = make_queue(broker)
    failures: list[HoldfastError] = []

    def wrong() -> None:
        try:
            broker.publish("key", bodies("x"), exchange="nobody-declared-it")
        except MessageUnroutable as error:
            failures.append(error)

    threads = [threading.Thread(target=wrong) for _ in range(5)]
    for thread in threads:
        thread.start()
    queue.publish(*[Message(b"", message_id=str(n)) for n in range(200)])
    for thread in threads:
        thread.join()
    assert len(failures) == 5
    assert (queue.depth() or 0) >= 200  # at least once: a lost confirm is sent again


def test_a_full_queue_takes_nothing_and_says_so(server: RabbitServer) -> None:
    name = f"full-{fresh_token()}"
    with Broker(server.url(), patience_s=1) as broker:

        async def declare() -> None:
            channel = await broker.link.open_channel(broker.link.deadline(), confirms=False)
            limits: Any = {"x-max-length": 1, "x-overflow": "reject-publish"}
            await channel.declare_queue(name, durable=True, arguments=limits)

        broker.loop.call(declare())
        broker.publish(name, bodies("first"))
        with pytest.raises(MessageNacked) as caught:
            broker.publish(name, bodies("second"))
        assert (caught.value.message, broker.loop.call(broker.link.depth(name))) == ("second", 1)


def test_the_same_name_in_flight_twice_is_told_apart(broker: Broker) -> None:
    """The library finds a returned message by its name: both must hear of their own."""
    queue = make_queue(broker)
    outcomes: list[str] = []

    def send(key: str) -> None:
        try:
            broker.publish(key, bodies("same"))
            outcomes.append("sent")
        except MessageUnroutable:
            outcomes.append("returned")

    keys = [queue.name, "nowhere"] * 20
    threads = [threading.Thread(target=send, args=[key]) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(outcomes) == {"sent": 20, "returned": 20}
    assert queue.depth() == 20


def test_a_queue_with_other_settings_is_refused(broker: Broker) -> None:
    queue = make_queue(broker)
    with pytest.raises(QueueMismatch) as caught:
        broker.queue(QueueSpec(queue.name, retry_delay_s=9.0))
    assert caught.value.queue == queue.name
    queue.publish(*bodies("still there"))
    assert queue.depth() == 1


def test_a_wrong_password_is_named_and_never_shown(server: RabbitServer) -> None:
    with Broker(server.url(password=f"{PASSWORD}x")) as broker:
        with pytest.raises(BrokerRefused) as caught:
            broker.connect()
        with pytest.raises(BrokerRefused):
            broker.queue("q")
    assert PASSWORD not in str(caught.value)
    assert f"holdfast@127.0.0.1:{server.port}" in str(caught.value)


def test_no_broker_is_named_when_patience_ends(server: RabbitServer) -> None:
    proxy = Proxy(server.port)
    proxy.refuse()
    broker = Broker(server.url(port=proxy.port), patience_s=0.5)
    with broker, pytest.raises(BrokerUnreachable) as caught:
        broker.queue("q")
    assert str(proxy.port) in caught.value.broker
    assert PASSWORD not in str(caught.value)
    proxy.close()


@pytest.mark.parametrize("what", ["request", "answer"])
def test_a_confirm_that_never_came_is_not_counted_as_sent(
    server: RabbitServer, broker: Broker, what: Any
) -> None:
    """The line is cut before the broker hears it, or before it answers: it is sent again."""
    queue = make_queue(broker)
    proxy = Proxy(server.port)
    with Broker(server.url(port=proxy.port)) as through:
        through.connect()
        proxy.lose_next(b"needle", what)
        through.publish(queue.name, bodies("needle"))
        assert proxy.lost == 1
    assert queue.depth() == (1 if what == "request" else 2)
    proxy.close()


def test_a_connection_that_closes_before_its_channel_is_open_is_replaced(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the library raises RuntimeError: sending and consuming go on."""
    queue = make_queue(broker)
    seen: list[bytes] = []
    closed: list[Any] = []
    consumer = queue.consume(lambda message: seen.append(message.body))
    connection = broker.link.connection

    async def closing(deadline: float) -> Any:
        found = await connection(deadline)
        if len(closed) < 6:
            closed.append(found)
            await found.close()
        return found

    monkeypatch.setattr(broker.link, "connection", closing)
    broker.loop.call(broker.link.close())
    queue.publish(*bodies("a"))
    until(lambda: b"a" in seen, "it is consumed again")
    assert len(closed) == 6
    assert consumer.failure() is None
    consumer.stop()


def test_whatever_ends_a_consumer_is_its_failure(broker: Broker) -> None:
    def tell(event: str, _: dict[str, Any]) -> None:
        if event == "lost":
            raise ValueError("nobody listens")

    queue = make_queue(broker)
    consumer = queue.consume(lambda _: None, tell=tell)
    broker.loop.call(broker.link.close())
    until(lambda: consumer.failure() is not None, "it says so")
    assert isinstance(consumer.failure(), InvariantViolated)
    assert "nobody listens" in str(consumer.failure())
    consumer.stop()


def test_a_queue_deleted_under_its_consumer_is_made_again(broker: Broker) -> None:
    queue = make_queue(broker)
    seen: list[bytes] = []
    consumer = queue.consume(lambda message: seen.append(message.body))
    queue.delete()
    until(lambda: queue.depth() is not None, "the consumer declared it again")
    until(lambda: _sends(queue, "after"), "it takes messages")
    until(lambda: seen == [b"after"], "and hands them out")
    consumer.stop()


def _sends(queue: Queue, text: str) -> bool:
    try:
        queue.publish(*bodies(text))
    except MessageUnroutable:
        return False
    return True


def test_an_exchange_is_consumed_like_a_queue(broker: Broker) -> None:
    """Each name gets a copy, also of what was sent while nobody consumed; the contract is one."""
    exchange = broker.exchange(f"x.{fresh_token()}", "topic")
    seen: list[tuple[str, bytes]] = []

    def work(name: str) -> Callback:
        def take(message: Message, redelivered: bool, handle: Handle) -> bool | None:
            if message.body == b"never":
                raise Reject("it is no order")
            seen.append((name, message.body))
            return None

        return take

    ada = exchange.consume(work("ada"), name="ada", key="orders.*")
    bob = exchange.consume(work("bob"), name="bob", key="orders.#")
    exchange.publish("orders.new", *bodies("a"))
    exchange.publish("orders.new.late", *bodies("b"))
    until(lambda: len(seen) == 3, "each got what it asked for")
    assert sorted(seen) == [("ada", b"a"), ("bob", b"a"), ("bob", b"b")]
    ada.stop()
    exchange.publish("orders.new", *bodies("c", "never"))
    until(lambda: ("bob", b"c") in seen, "bob goes on")
    assert ("ada", b"c") not in seen
    ada = exchange.consume(work("ada"), name="ada", key="orders.*")
    until(lambda: ("ada", b"c") in seen, "it waited for ada")
    letters = [broker.queue(subscriber_queue(exchange.name, name)) for name in ("ada", "bob")]
    until(lambda: all(queue.dead_letters() for queue in letters), "each has its dead letter")
    ada.stop()
    bob.stop()
    assert [queue.depth() for queue in letters] == [0, 0]


def test_a_queue_that_is_made_again_has_its_bindings(server: RabbitServer, broker: Broker) -> None:
    """Its exchange too: else what is sent there is confirmed by other queues, and misses it."""
    exchange = broker.exchange(f"x-{fresh_token()}", "fanout")
    queue, other = make_queue(broker), make_queue(broker)
    exchange.bind(queue, "")
    exchange.bind(other, "")
    seen: list[bytes] = []
    made: list[str] = []
    consumer = queue.consume(
        lambda message: seen.append(message.body), tell=lambda event, _: made.append(event)
    )
    with Broker(server.url()) as stranger:
        stranger.delete(queue.name)
        until(lambda: "consuming again" in made, "it is made again")
        exchange.publish("", *bodies("a"))
        until(lambda: seen == [b"a"], "it is bound again")
        stranger.loop.call(_delete_exchange(stranger, exchange.name))
        stranger.delete(queue.name)
        until(lambda: made.count("consuming again") == 2, "it is made once more")
        exchange.publish("", *bodies("b"))
        until(lambda: seen == [b"a", b"b"], "the exchange too")
    consumer.stop()
    queue.delete()
    assert broker.queue(queue.spec).depth() == 0
    exchange.bind(other, "")
    exchange.publish("", *bodies("c"))
    assert queue.depth() == 0, "a binding goes with its queue if we delete it"


async def _delete_exchange(broker: Broker, name: str) -> None:
    channel = await broker.link.open_channel(broker.link.deadline(), confirms=False)
    await channel.exchange_delete(name)
    await channel.close()


def test_dead_letters_whose_queue_was_deleted_are_not_lost(broker: Broker) -> None:
    queue = make_queue(broker)
    broker.loop.call(broker.link.delete(dead_queue(queue.name)))

    def work(message: Message) -> None:
        raise Reject("no")

    consumer = queue.consume(work)
    queue.publish(*bodies("buried"))
    until(queue.dead_letters, "it is buried in a queue made again")
    consumer.stop()


def test_an_unused_queue_expires_with_its_neighbours(broker: Broker) -> None:
    queue = make_queue(broker, expires_s=4.0)
    kept = make_queue(broker, expires_s=4.0)
    consumer = kept.consume(lambda message: None)
    names = [queue.name, dead_queue(queue.name)]
    until(
        lambda: all(broker.loop.call(broker.link.depth(name)) is None for name in names),
        "the unused one vanishes",
    )
    assert broker.loop.call(broker.link.depth(dead_queue(kept.name))) == 0
    consumer.stop()


_CHILD = """
import sys
from holdfast._base.crashpoint import arm_from_environment
from holdfast.amqp.broker import Broker
from holdfast.amqp.contract import Reject
from holdfast.amqp.topology import QueueSpec

arm_from_environment()
broker = Broker(sys.argv[1])

def work(message):
    raise Reject("never")

broker.queue(QueueSpec(sys.argv[2], retry_delay_s=0.1)).consume(work)
sys.stdin.read()
"""


def test_killed_between_a_dead_letter_and_its_ack(server: RabbitServer, broker: Broker) -> None:
    """The message comes again and is buried again, under the same name: none is lost."""
    queue = make_queue(broker)
    queue.publish(*bodies("bad"))
    environment = {**os.environ, "HOLDFAST_CRASH": "queue.bury.after:1"}
    command = [sys.executable, "-c", _CHILD, server.url(), queue.name]
    child = subprocess.Popen(command, env=environment, cwd=ROOT, stdin=subprocess.PIPE)
    with child:
        assert child.wait(60) == -signal.SIGKILL
    assert [letter.message.message_id for letter in queue.dead_letters()] == ["bad"]
    until(lambda: queue.depth() == 1, "the message is back")

    def work(message: Message, redelivered: bool, handle: Handle) -> None:
        assert redelivered
        raise Reject("never")

    consumer = queue.consume(work)
    until(lambda: len(queue.dead_letters()) == 2, "it is buried again")
    consumer.stop()
    assert {letter.message.message_id for letter in queue.dead_letters()} == {"bad"}
    assert queue.depth() == 0
