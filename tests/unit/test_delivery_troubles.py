"""Trouble of one run or client is its own: the others go on, and it is tried again later."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.delivery_scene import RUN, DeliveryScene, delivering

from holdfast._base.ids import RunId
from holdfast.amqp.contract import Message
from holdfast.amqp.names import notice_queue
from holdfast.blobs.local import LocalBlobs
from holdfast.config import Config
from holdfast.delivery.figures import figures
from holdfast.delivery.log_queues import LogQueues
from holdfast.delivery.messages import Request
from holdfast.delivery.ports import Received, header_queue
from holdfast.delivery.rabbit_queues import NoticeRelay
from holdfast.delivery.troubles import Troubles
from holdfast.errors import (
    BrokerRefused,
    BrokerUnreachable,
    DiskFull,
    Fenced,
    HoldfastError,
    InvariantViolated,
    MessageNacked,
    MessageUnroutable,
    QueueMismatch,
    StorageFailed,
)
from holdfast.store.rows import NewRun, SenderDecl
from holdfast.testing.clock import VirtualClock

OTHER = RunId("run-2")
QUICK = Config(sweep_after_s=10)
AWAY = BrokerUnreachable(broker="b", error="gone")


class Sulking(LogQueues):
    """Queues of which those of one run end every question with an error, until it is cured."""

    sick: HoldfastError | None = None

    def open(self, request: Request) -> None:
        self._refuse(request)
        super().open(request)

    def receive(self, queue: str, count: int) -> Sequence[Received]:
        if self.sick is not None and queue == header_queue(RUN):
            raise self.sick
        return super().receive(queue, count)

    def delete(self, request: Request) -> None:
        self._refuse(request)
        super().delete(request)

    def _refuse(self, request: Request) -> None:
        if self.sick is not None and request.run == RUN:
            raise self.sick


class SickBlobs(LocalBlobs):
    """Blobs on a disk that does not let go of one run's."""

    is_sick = True

    def delete(self, name: str, *, durable: bool = True) -> None:
        if self.is_sick and RUN in name:
            raise StorageFailed(path=name, error=f"errno {errno.EIO}")
        super().delete(name, durable=durable)


@contextmanager
def sulking(root: Path, error: HoldfastError) -> Iterator[tuple[DeliveryScene, Sulking]]:
    with delivering(root, QUICK) as scene:
        queues = Sulking(scene.log, scene.store)
        queues.sick = error
        scene.delivery.close()
        scene.delivery = scene.succeed(queues=queues)
        yield scene, queues
        scene.delivery.close()


def held_up(scene: DeliveryScene) -> dict[str, float]:
    [found] = [one for one in figures(scene.store) if one.name == "holdfast_runs_held_up"]
    return {labels[0][1]: value for labels, value in found.values}


@pytest.mark.parametrize(
    "error",
    [
        AWAY,
        BrokerRefused(broker="b", error="no"),
        MessageNacked(target="q", message="m"),
        MessageUnroutable(target="q", message="m", error="e"),
        QueueMismatch(queue="q", error="e"),
    ],
    ids=lambda error: error.code,
)
def test_a_queue_that_refuses_one_run_holds_up_no_other(
    tmp_path: Path, error: HoldfastError
) -> None:
    """It is asked first, in each state: the other's producer is asked, the other is swept."""
    with sulking(tmp_path, error) as (scene, queues):
        for run_id in (RUN, OTHER):
            scene.open_run(run_id, producer="requests", tables=0)
        scene.run(8)
        assert (scene.state(), scene.state(OTHER)) == ("FORWARDING", "RECEIVING")
        assert held_up(scene)["ask the producer"] == 1
        assert error.code in scene.told[0]
        assert f"run {RUN}" in scene.told[0]
        fence = scene.store.take_lease("engine", "test")
        for run_id, state in ((RUN, "FORWARDING"), (OTHER, "RECEIVING")):
            scene.store.move_run(fence, run_id, expected=state, to="CANCELLED")
        scene.run(20)
        watched = [one.run.run_id for one in scene.store.list_watched()]
        assert (scene.state(OTHER), watched) == ("SWEPT", [RUN])
        assert held_up(scene)["clean up"] == 1
        queues.sick = None
        scene.run(40)
        assert scene.store.list_watched() == []
        assert set(held_up(scene).values()) == {0}


def test_a_disk_that_keeps_one_run_holds_up_no_other(tmp_path: Path) -> None:
    with delivering(tmp_path, QUICK) as scene:
        blobs = SickBlobs(tmp_path / "blobs")
        scene.delivery.close()
        scene.delivery = scene.succeed(blobs=blobs)
        fence = scene.store.take_lease("engine", "test")
        for run_id in (RUN, OTHER):
            scene.open_run(run_id)
            scene.upload(b"n\n1\n", run_id=run_id)
            scene.store.move_run(fence, run_id, expected="OPEN", to="FAILED", error="why")
        scene.run(20)
        assert [one.run.run_id for one in scene.store.list_watched()] == [RUN]
        assert "STORAGE_FAILED" in scene.told[0]
        blobs.is_sick = False
        scene.run(40)
        assert (scene.store.list_watched(), scene.blobs_below("chunks/")) == ([], [])


@pytest.mark.parametrize("error", [AWAY, QueueMismatch(queue="q", error="e")], ids=["away", "sick"])
def test_a_run_whose_producer_cannot_be_heard_is_not_abandoned(
    tmp_path: Path, error: HoldfastError
) -> None:
    """Nothing came because nobody could ask. From when it can be asked again, it grows old."""
    with delivering(tmp_path, Config(abandon_after_s=20)) as scene:
        queues = Sulking(scene.log, scene.store)
        scene.delivery.close()
        scene.delivery = scene.succeed(queues=queues)
        scene.open_run(producer="requests", tables=0)
        scene.run()
        assert scene.state() == "RECEIVING"
        queues.sick = error
        scene.run(60)
        assert scene.state() == "RECEIVING"
        queues.sick = None
        scene.run(70)
        assert scene.state() == "ABANDONED"


def test_rests_grow_and_end_with_success() -> None:
    clock = VirtualClock()
    told: list[str] = []
    troubles = Troubles(clock, lambda event, message: told.append(event + message))
    tried: list[float] = []

    def work() -> int:
        tried.append(clock.monotonic_s())
        if len(tried) < 4:
            raise MessageNacked(target="q", message="m")
        return 7

    start_s = clock.monotonic_s()
    answers = []
    for _ in range(16):
        answers.append(troubles.attempt("it", work))
        clock.advance(1)
    assert [at - start_s for at in tried] == [0, 2, 6, 14, 15]
    assert answers == [0] * 14 + [7, 7]
    assert len(told) == 3


def test_nobody_waits_for_a_broker_that_is_away_after_the_first() -> None:
    """And the one whose own queue looks like that does not keep the others away."""
    clock = VirtualClock()
    troubles = Troubles(clock)
    asked: list[str] = []

    def ask(name: str) -> int:
        asked.append(name)
        if name == "sick":
            raise AWAY
        return 1

    for _ in range(4):
        for name in ("sick", "well"):
            troubles.attempt(name, partial(ask, name), asks_broker=True)
        troubles.attempt("no queue", partial(ask, "no queue"))
        clock.advance(1)
    assert asked.count("no queue") == 4
    assert asked.count("sick") == 2
    assert asked.count("well") == 2


@pytest.mark.parametrize(
    "error",
    [
        Fenced(resource="delivery", epoch=1),
        DiskFull(path="x"),
        InvariantViolated(what="x"),
    ],
    ids=lambda error: error.code,
)
def test_what_is_everybodys_is_not_kept(error: HoldfastError) -> None:
    def work() -> int:
        raise error

    with pytest.raises(type(error)):
        Troubles(VirtualClock()).attempt("it", work)


def test_notices_of_swept_runs_wait_for_a_broker_that_is_away(tmp_path: Path) -> None:
    """Of each client, also where the broker was never asked about it: others took all the turns."""

    class Broker:
        def __init__(self) -> None:
            self.is_away, self.sent = True, Counter[str]()

        def queue(self, name: str) -> Broker:
            self.name = name
            return self

        def publish(self, *messages: Message) -> None:
            if self.is_away:
                scene.clock.advance(5)
                raise AWAY
            self.sent[self.name] += len(messages)

    with delivering(tmp_path, QUICK) as scene:
        broker, clients = Broker(), [f"client-{number:02}" for number in range(30)]
        relay = NoticeRelay(scene.store, cast("Any", broker), scene.delivery.troubles)
        for client in clients:
            run = RunId(f"run-{client}")
            scene.store.create_run(NewRun(run, client, "p", {}, 1, (SenderDecl("t", "", 1),), 0))
            scene.store.cancel_run(client, run)
        for _ in range(20):
            relay.advance()
            scene.run(2)
        assert {run.state for run in scene.store.list_runs()} == {"SWEPT"}
        broker.is_away = False
        for _ in range(40):
            scene.clock.advance(2)
            relay.advance()
        assert broker.sent == {notice_queue(client): 1 for client in clients}
