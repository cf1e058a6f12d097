"""Tansu on an S3 that becomes slow and quick again: back-pressure, bounded memory, nothing lost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.integration.s3_server import S3Server
from tests.integration.tansu.endless_producer import BATCH, TOPIC, value_of
from tests.integration.waiting import until
from tests.tcp_proxy import Proxy

from holdfast._base.ids import Offset, fresh_token
from holdfast.log.tansu.backend import TansuBackend

BUCKET = "topics"
DELAY_S = 1.0
"""What every request takes longer: some hundred times as long as otherwise."""
GROWTH_MAX_MIB = 32
"""What a process may grow by in the spike. Ten seconds of what it produces before are more."""


@pytest.fixture
def line(s3: S3Server) -> Iterator[Proxy]:
    proxy = Proxy(s3.port)
    yield proxy
    proxy.speed_up()
    proxy.close()


@pytest.fixture
def broker(s3: S3Server, line: Proxy) -> Iterator[TansuBackend]:
    """A broker whose way to S3 is the line."""
    s3.make_bucket(BUCKET)
    endpoint = f"http://127.0.0.1:{line.port}"
    url = f"tansu+s3://{BUCKET}?s3_endpoint={endpoint}&prefix={fresh_token()[:12]}"
    backend = TansuBackend(url, environment={**os.environ, **s3.environment(endpoint)})
    backend.start()
    yield backend
    backend.stop()


class Producer:
    """The process that appends, and what it said."""

    def __init__(self, url: str, said: Path) -> None:
        self._said = said
        command = [sys.executable, "-m", "tests.integration.tansu.endless_producer", url]
        with said.open("wb") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output)

    def confirmed(self) -> int:
        lines = self._said.read_text().split()
        return int(lines[-1]) if lines else 0

    def gets_on(self, batches: int) -> float:
        """Wait for so many more batches; return how many seconds each took."""
        began, wanted = time.monotonic(), self.confirmed() + batches * BATCH
        until(lambda: self.confirmed() >= wanted, f"{batches} more batches", timeout_s=120)
        return (time.monotonic() - began) / batches

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(60)


def resident_mib(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / (1 << 20)


@pytest.mark.timeout(400)
def test_s3_latency_spike(broker: TansuBackend, line: Proxy, tmp_path: Path) -> None:
    """Goal: who produces goes as slowly as S3 does, piles up nothing, and then goes on as before.

    Method: a process appends as fast as it may. Every request to S3 is held for a second, until a
    few batches got through; then no more. All that was confirmed is there once, in order.
    """
    producer = Producer(broker.endpoint().url, tmp_path / "said")
    try:
        before_s = producer.gets_on(50)
        pids = [producer.process.pid, broker.broker.pid or 0]
        memory = [resident_mib(pid) for pid in pids]
        line.slow_down(DELAY_S)
        in_flight = producer.confirmed() + BATCH
        until(lambda: producer.confirmed() >= in_flight, "what was under way is through")
        spike_s = producer.gets_on(5)
        grown = [resident_mib(pid) - was for pid, was in zip(pids, memory, strict=True)]
        line.speed_up()
        producer.gets_on(1)
        after_s = producer.gets_on(50)
    finally:
        line.speed_up()
        code = producer.end()
    assert code == 0
    assert line.held >= 5
    assert spike_s >= DELAY_S
    assert max(before_s, after_s) < DELAY_S / 2
    assert max(grown) < GROWTH_MAX_MIB
    assert broker.broker.restarts == 0
    _check_all_is_there_once(broker, producer.confirmed())


def _check_all_is_there_once(broker: TansuBackend, confirmed: int) -> None:
    found: list[bytes] = []
    while some := broker.fetch_batch(TOPIC, Offset(len(found)), count=1000):
        assert [one.offset for one in some] == list(range(len(found), len(found) + len(some)))
        found += [one.record.value for one in some]
    assert found == [value_of(number) for number in range(confirmed)]
