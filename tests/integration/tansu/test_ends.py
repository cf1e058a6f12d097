"""Ends of topics on Tansu, which tells them wrongly: whoever listens hears every record, once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.integration.s3_server import S3Server
from tests.integration.waiting import until

from holdfast._base.ids import Offset, fresh_token
from holdfast.log.contract import QueueBackend, Record
from holdfast.log.open import open_backend
from holdfast.log.tansu.backend import TansuBackend

BUCKET = "ends"
SINGLES = 300
PRODUCERS, EACH = 4, 40
Connect = Callable[[], QueueBackend]


@pytest.fixture(params=["memory", "s3"])
def connect(
    request: pytest.FixtureRequest, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Connect]:
    """Give one more connection to a broker of its own, with one topic `t`."""
    for name, value in s3.environment().items():
        if name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, value)
    url = "tansu+memory://p"
    if request.param == "s3":
        s3.make_bucket(BUCKET)
        url = f"tansu+s3://{BUCKET}?s3_endpoint={s3.endpoint}&prefix={fresh_token()[:12]}"
    owner = TansuBackend(url)
    opened: list[QueueBackend] = [owner]

    def one_more() -> QueueBackend:
        backend = open_backend(owner.endpoint().url)
        opened.append(backend)
        backend.start()
        return backend

    try:
        owner.start()
        owner.create_topic("t")
        yield one_more
    finally:
        for backend in reversed(opened):
            backend.stop()


@contextmanager
def listening(log: QueueBackend) -> Iterator[list[tuple[int, bytes]]]:
    """Collect what a listener hears that waits at the end of the topic."""
    heard: list[tuple[int, bytes]] = []
    place, over = log.bounds("t")[1], threading.Event()

    def listen() -> None:
        nonlocal place
        while not over.is_set():
            for one in log.fetch_batch("t", place, count=100, timeout_s=0.5):
                place = Offset(one.offset + 1)
                heard.append((one.offset, one.record.value))

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield heard
    finally:
        over.set()
        thread.join()


@pytest.mark.timeout(300)
def test_a_listener_hears_every_single_record(connect: Connect) -> None:
    """One at a time, each sent when the one before was heard, many of them within one second."""
    producer, sent = connect(), []
    with listening(connect()) as heard:
        for number in range(SINGLES):
            value = b"%d" % number
            sent.append((producer.produce("t", Record(value)), value))
            until(lambda: len(heard) == len(sent), f"record {number} is heard", timeout_s=20)
    assert heard == sent


@pytest.mark.timeout(300)
def test_the_end_is_behind_the_last_record_of_all(connect: Connect) -> None:
    """Batches of all sizes within one second; somebody who was there before, and somebody new."""
    producer, old = connect(), connect()
    for size in (1, 1, 50, 1, 3, 1500, 1, 7):
        offsets = producer.produce_batch("t", [Record(b"v")] * size)
        assert old.bounds("t") == (0, offsets[-1] + 1)
        assert connect().bounds("t") == (0, offsets[-1] + 1)
        found = old.fetch_batch("t", offsets[0], count=2000)
        assert [one.offset for one in found] == offsets


@pytest.mark.timeout(300)
def test_a_listener_hears_several_producers(connect: Connect) -> None:
    """A batch may be stored after one that has a later offset: it is waited for."""
    producers = [connect() for _ in range(PRODUCERS)]
    sent: list[tuple[int, bytes]] = []

    def produce(who: int) -> None:
        for number in range(EACH):
            value = b"%d-%d" % (who, number)
            sent.append((producers[who].produce("t", Record(value)), value))

    with listening(connect()) as heard:
        threads = [threading.Thread(target=produce, args=(who,)) for who in range(PRODUCERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(sent) == PRODUCERS * EACH
        until(lambda: len(heard) >= len(sent), "all are heard", timeout_s=20)
    assert heard == sorted(sent)
