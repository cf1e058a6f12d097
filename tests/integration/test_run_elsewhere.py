"""The coffee run over every log gives the bytes of the default, killed in the middle too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.crash.workloads import check_answers, check_settled
from tests.integration import gated_run
from tests.integration.coffee_runs import answers, check_killed_and_resumed, run
from tests.integration.kafka_server import KafkaServer, running

from holdfast._base.crashpoint import POINTS
from holdfast._base.ids import fresh_token
from holdfast.log.kafka.backend import KafkaBackend

RELAY_POINTS = [point for point in POINTS if point.startswith("relay.")]


def check_relay_killed_at(point: str, root: Path, log: str) -> None:
    """Kill the Spark-free engine at a point, and the one that takes over there too."""
    command = [sys.executable, "-m", "tests.integration.toy_job", str(root), log]
    for _ in range(2):
        environment = {**os.environ, "HOLDFAST_CRASH": f"{point}:1"}
        cut = subprocess.run(command, env=environment, check=False, timeout=120)
        assert cut.returncode == -signal.SIGKILL
        check_settled(root)
    subprocess.run(command, check=True, timeout=120)
    check_answers(root)


@pytest.mark.parametrize("point", RELAY_POINTS)
def test_the_relay_killed_over_kafka(point: str, kafka: KafkaServer, tmp_path: Path) -> None:
    check_relay_killed_at(point, tmp_path, kafka.url(f"toy-{fresh_token()[:8]}"))


@pytest.mark.timeout(600)
def test_kafka_is_killed_twenty_times_in_a_run(tmp_path: Path) -> None:
    with running(tmp_path / "kafka") as server:
        gated_run.check_broker_killed_throughout(
            tmp_path / "run", server.url("run"), kill=server.kill, start=server.start
        )


@pytest.mark.timeout(900)
def test_coffee_over_kafka(coffee: Path, kafka: KafkaServer) -> None:
    url = kafka.url(f"coffee-{fresh_token()[:8]}")
    check_killed_and_resumed(coffee, "kafka", url)
    backend = KafkaBackend(url)
    backend.start()
    found = backend._connection.admin.list_topics(timeout=10).topics
    assert any(name.startswith(f"{backend.settings.prefix}.") for name in found)
    backend.stop()


def test_a_broker_that_is_away_is_one_line(coffee: Path) -> None:
    """Nothing is begun, nothing is lost, and the URL that is named holds no secret."""
    done = run(
        coffee,
        "away",
        "--log",
        "kafka://127.0.0.1:1/p?timeout_s=1&security=sasl_plaintext",
        HOLDFAST_KAFKA_PASSWORD="canary-1618",
        HOLDFAST_KAFKA_USERNAME="me",
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("holdfast: [LOG_UNREACHABLE] log kafka://")
    assert "canary" not in done.stderr
    assert answers(coffee, "away") == {}
