"""TansuBackend with the real binary: the contract on every storage, deaths, errors, secrets."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from pyspark.sql.types import StringType, StructField, StructType
from tests.crash.workloads import check_answers
from tests.integration import gated_run, hybrid_job, s3_server
from tests.integration.coffee_runs import check_killed_and_resumed
from tests.integration.killer import check_a_living_producer
from tests.integration.processes import KILLS, free_ports
from tests.integration.relay import relay
from tests.integration.s3_server import SECRET_KEY, S3Server
from tests.integration.waiting import until
from tests.unit.plain_runs import answers_in, run_toy

from holdfast._base.ids import Offset, fresh_token
from holdfast.config import StageOptions
from holdfast.engine.executor import BatchWork, SeriesWork
from holdfast.errors import DependencyMissing, LogNotStarted, LogUnreachable, UsageInvalid
from holdfast.log.contract import Capability, QueueBackend, Record
from holdfast.log.open import open_backend
from holdfast.log.relayed import RelayedBackend
from holdfast.log.tansu.backend import TansuBackend
from holdfast.spark.topic_options import read_options
from holdfast.spark.topic_sink import prepare
from holdfast.spark.topic_source import TopicReader
from holdfast.testing import queues

BUCKET = "topics"
"""One for all: each bucket takes volumes of the server, which has a hundred."""
S3_KILLS = 10
"""Not as many as of the others: each takes the broker some 20 s to get over, so twenty would take
seven minutes.
"""
Opened = list[QueueBackend]
ENGINES = {
    "memory": frozenset({Capability.SHARED}),
    "sqlite": frozenset({Capability.SHARED}),
    "s3": frozenset({Capability.SHARED, Capability.DURABLE}),
}
SURVIVAL = (queues.check_everything_is_there_after_a_crash, queues.check_stop_and_start_again)
"""Of DURABLE: SQLite passes it too, though a power cut may take what Tansu did not fsync."""
CASES = [
    pytest.param(engine, check, id=f"{engine}-{check.__name__}")
    for engine, declared in ENGINES.items()
    for check in (*queues.checks_for(declared), queues.check_truncation_gives_room_back)
] + [pytest.param("sqlite", check, id=f"sqlite-{check.__name__}") for check in SURVIVAL]


@pytest.fixture
def opened() -> Iterator[Opened]:
    backends: Opened = []
    yield backends
    for backend in reversed(backends):
        backend.stop()


@pytest.fixture
def url_of(tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return the URL of a broker on each storage, with nothing in it."""
    for name, value in s3.environment().items():
        if name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, value)

    def url(engine: str) -> str:
        if engine == "s3":
            s3.make_bucket(BUCKET)
            return f"tansu+s3://{BUCKET}?s3_endpoint={s3.endpoint}&prefix={fresh_token()[:12]}"
        return "tansu+memory://p" if engine == "memory" else f"tansu+sqlite://{tmp_path}/topics.db"

    return url


@pytest.mark.parametrize(("engine", "check"), CASES)
def test_contract(
    engine: str, check: queues.Check, url_of: Callable[[str], str], opened: Opened
) -> None:
    """One broker; whoever connects again comes by its endpoint."""
    owner = TansuBackend(url_of(engine))
    opened.append(owner)
    owner.start()
    assert owner.capabilities == ENGINES[engine]

    def connect() -> QueueBackend:
        if len(opened) == 1 and check is queues.check_stop_and_start_again:
            return owner
        backend = open_backend(owner.endpoint().url)
        assert backend.capabilities == owner.capabilities
        backend.start()
        opened.append(backend)
        return backend

    check(connect)


@pytest.mark.parametrize(
    "check", queues.checks_for(RelayedBackend.capabilities), ids=lambda check: check.__name__
)
def test_contract_of_the_relay(check: queues.Check, tmp_path: Path, opened: Opened) -> None:
    """The path that every run takes over Tansu: the store's topics, over a broker."""
    owner = TansuBackend(f"tansu+sqlite://{tmp_path}/topics.db")
    opened.append(owner)
    owner.start()
    check(relay(tmp_path / "log.db", owner.endpoint().url, opened))


@pytest.mark.parametrize("engine", ENGINES)
def test_its_endpoint_is_read_as_sparks_tasks_do(
    engine: str, url_of: Callable[[str], str], opened: Opened
) -> None:
    """Whatever it stores; written by them only if it is durable."""
    owner = TansuBackend(url_of(engine))
    opened.append(owner)
    owner.start()
    owner.create_topic("t", partitions=2)
    for partition in (0, 1):
        owner.produce_batch("t", [Record(b"%d" % partition)] * 50, partition=partition)
    options = {"topic": "t", "url": owner.endpoint().url}
    reader = TopicReader(read_options(options))
    found = [batch for part in reader.partitions() for batch in reader.read(part)]
    values = [value for batch in found for value in batch.column("value").to_pylist()]
    assert sorted(values) == [b"0"] * 50 + [b"1"] * 50
    columns = StructType([StructField("value", StringType())])
    chosen = {**options, "delivery": "at-least-once"}
    if Capability.DURABLE in ENGINES[engine]:
        prepare(chosen, columns, overwrite=False)
    else:
        with pytest.raises(UsageInvalid, match="is not durable"):
            prepare(chosen, columns, overwrite=False)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize("engine", ["sqlite", "s3"])
def test_a_broker_that_dies_is_started_again(
    engine: str, url_of: Callable[[str], str], opened: Opened
) -> None:
    """What was confirmed is there once, in order, though the broker is killed twenty times."""
    backend = TansuBackend(url_of(engine))
    opened.append(backend)
    backend.start()
    backend.create_topic("t")
    told: list[tuple[int, bytes]] = []
    for turn in range(KILLS):
        batch = [Record(b"%d-%d" % (turn, item)) for item in range(20)]
        offsets = backend.produce_batch("t", batch)
        told += zip(offsets, (one.value for one in batch), strict=True)
        pid = backend.broker.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    found = backend.fetch_batch("t", Offset(0), count=1000)
    assert [(one.offset, one.record.value) for one in found] == told
    assert len(told) == KILLS * 20
    assert backend.broker.restarts >= KILLS - 1


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["sqlite", "s3"])
def test_a_broker_that_is_killed_while_it_is_used_loses_and_doubles_nothing(
    engine: str, url_of: Callable[[str], str], opened: Opened
) -> None:
    """As with Kafka; the kills come while it produces and reads. A batch that the broker had begun
    to store it calls a duplicate when it comes again, and tells no offset: that one is refused.
    """
    backend = TansuBackend(url_of(engine))
    opened.append(backend)
    backend.start()
    killed: list[int | None] = []

    def kill() -> None:
        killed.append(backend.broker.pid)
        assert killed[-1] is not None
        os.kill(killed[-1], signal.SIGKILL)

    def start() -> None:
        until(lambda: backend.broker.pid not in (None, killed[-1]), "it was started again")

    check_a_living_producer(backend, kill, start, may_refuse=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["sqlite", "s3"])
def test_it_is_killed_twenty_times_in_a_run(
    engine: str, url_of: Callable[[str], str], opened: Opened, tmp_path: Path
) -> None:
    """Whoever owns the broker starts it again; the engine has no more than its endpoint."""
    owner = TansuBackend(url_of(engine))
    opened.append(owner)
    owner.start()

    def kill() -> None:
        until(lambda: owner.broker.pid is not None, "the broker was started again")
        os.kill(owner.broker.pid or 0, signal.SIGKILL)

    gated_run.check_broker_killed_throughout(
        tmp_path / "run", owner.endpoint().url, kill=kill, start=lambda: None
    )
    assert owner.broker.restarts >= KILLS - 1


@pytest.mark.timeout(600)
def test_one_in_memory_is_killed_twenty_times_in_a_run(tmp_path: Path) -> None:
    """Each time all is lost, topics too. The engine owns the broker, and sends what is missing."""
    killed = []

    def brokers() -> list[int]:
        below = psutil.Process().children(recursive=True)
        return [one.pid for one in below if one.name() == "tansu" and is_alive(one.pid)]

    def kill() -> None:
        until(brokers, "the broker was started again")
        killed.extend(brokers())
        os.kill(killed[-1], signal.SIGKILL)

    gated_run.check_broker_killed_throughout(
        tmp_path / "run", "tansu+memory://p", kill=kill, start=lambda: None
    )
    assert len(set(killed)) == KILLS


@pytest.mark.timeout(600)
def test_s3_is_killed_in_a_run(tmp_path: Path, opened: Opened) -> None:
    """The broker lives, and its bucket is away for a while, ten times in a row."""
    with s3_server.running(tmp_path / "s3") as server:
        server.make_bucket(BUCKET)
        owner = TansuBackend(
            f"tansu+s3://{BUCKET}?s3_endpoint={server.endpoint}",
            environment={**os.environ, **server.environment()},
        )
        opened.append(owner)
        owner.start()
        gated_run.check_broker_killed_throughout(
            *(tmp_path / "run", owner.endpoint().url),
            kill=server.kill,
            start=server.start,
            kills=S3_KILLS,
        )
        owner.stop()


def test_whoever_comes_by_the_endpoint_of_one_in_memory_finds_out_that_all_is_lost(
    opened: Opened,
) -> None:
    owner = TansuBackend("tansu+memory://p?timeout_s=3")
    opened.append(owner)
    owner.start()
    reader = open_backend(owner.endpoint().url)
    opened.append(reader)
    reader.start()
    reader.create_topic("t")
    assert reader.produce("t", Record(b"before")) == 0
    pid = owner.broker.pid or 0
    os.kill(pid, signal.SIGKILL)
    until(lambda: owner.broker.pid not in (None, pid), "it was started again")
    with pytest.raises(LogUnreachable):
        reader.bounds("t")
    with pytest.raises(UsageInvalid):
        reader.bounds("t")
    reader.create_topic("t")
    assert reader.produce("t", Record(b"after")) == 0
    found = reader.fetch("t", Offset(0))
    assert found is not None
    assert found.record.value == b"after"


def test_a_taken_port_is_named_and_left_alone(opened: Opened) -> None:
    """Whoever has the port answers as ours would: it is a broker, too."""
    other = TansuBackend("tansu+memory://other")
    opened.append(other)
    other.start()
    backend = TansuBackend(f"tansu+memory://p?port={other.broker.port}")
    opened.append(backend)
    with pytest.raises(LogNotStarted) as caught:
        backend.start()
    assert f"127.0.0.1:{other.broker.port} is in use" in caught.value.what
    assert not backend.broker.is_running
    other.create_topic("t")
    assert other.produce("t", Record(b"x")) == 0


def test_a_port_that_is_taken_after_a_death_is_named_until_it_is_free(
    url_of: Callable[[str], str], opened: Opened
) -> None:
    backend = TansuBackend(url_of("sqlite") + "?timeout_s=30")
    opened.append(backend)
    backend.start()
    backend.create_topic("t")
    assert backend.produce("t", Record(b"x")) == 0
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        until(lambda: _takes_port(other, backend), "the port is taken from it")
        with pytest.raises(LogNotStarted) as caught:
            backend.bounds("t")
        assert "is in use" in caught.value.what
    until(lambda: not backend.broker.has_given_up, "it is started again")
    assert backend.bounds("t") == (0, 1)


def _takes_port(other: socket.socket, backend: TansuBackend) -> bool:
    """Kill the broker, and listen in its place, unless it was started again before."""
    if backend.broker.pid is not None:
        os.kill(backend.broker.pid, signal.SIGKILL)
    try:
        other.bind(("127.0.0.1", backend.broker.port))
    except OSError:
        return False
    other.listen()
    return True


def test_nothing_is_left_when_it_stops(opened: Opened) -> None:
    backend = TansuBackend("tansu+memory://p")
    backend.start()
    pid, output = backend.broker.pid, backend.broker.output
    assert pid is not None
    assert output.exists()
    backend.stop()
    assert not Path(f"/proc/{pid}").exists()
    assert not output.parent.exists()
    backend.stop()
    backend.start()
    opened.append(backend)
    assert backend.broker.pid not in (None, pid)


def test_it_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    """However that one ends: SIGKILL here."""
    code = (
        "import sys; from holdfast.log.tansu.backend import TansuBackend\n"
        "backend = TansuBackend('tansu+memory://p'); backend.start()\n"
        "print(backend.broker.pid, flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    pid = int(child.stdout.readline())
    assert is_alive(pid)
    child.kill()
    child.wait()
    until(lambda: not is_alive(pid), "the broker ends with its parent", timeout_s=10)
    child.stdin.close()
    child.stdout.close()


def test_no_secret_is_seen(url_of: Callable[[str], str], opened: Opened) -> None:
    backend = TansuBackend(url_of("s3"))
    opened.append(backend)
    backend.start()
    backend.create_topic("t")
    line = Path(f"/proc/{backend.broker.pid}/cmdline").read_bytes()
    assert b"broker" in line
    assert SECRET_KEY.encode() not in line + backend.broker.output.read_bytes()
    assert SECRET_KEY not in backend.endpoint().url + repr(backend.broker_settings)


def test_a_missing_binary_is_named() -> None:
    backend = TansuBackend("tansu+memory://p", environment={"PATH": "", "XDG_CACHE_HOME": "/none"})
    with pytest.raises(DependencyMissing) as caught:
        backend.start()
    assert "make broker" in caught.value.install


def started(url: str, **environment: str) -> None:
    backend = TansuBackend(url, environment={**os.environ, **environment})
    try:
        backend.start()
        backend.create_topic("t")
    finally:
        backend.stop()


def test_a_file_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken.db").mkdir()
    with pytest.raises(LogNotStarted) as caught:
        started(f"tansu+sqlite://{tmp_path}/taken.db")
    assert "file" in caught.value.what


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "canary-wrong"}, "refuses"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "refuses"),
        ({"AWS_ENDPOINT": "http://127.0.0.1:1"}, "does not answer"),
    ],
)
def test_s3_that_will_not_is_named(change: dict[str, str], word: str, s3: S3Server) -> None:
    s3.make_bucket(BUCKET)
    given = {**s3.environment(), **change}
    began = time.monotonic()
    with pytest.raises(LogNotStarted) as caught:
        started(f"tansu+s3://{BUCKET}?startup_timeout_s=8", **given)
    assert word in caught.value.what
    assert "canary" not in str(caught.value)
    assert time.monotonic() - began < 30


def test_a_missing_bucket_is_named(s3: S3Server) -> None:
    with pytest.raises(LogNotStarted) as caught:
        started("tansu+s3://not-there?startup_timeout_s=8", **s3.environment())
    assert "bucket" in caught.value.what


@pytest.mark.parametrize("engine", ["memory", "sqlite", "s3"])
def test_the_toy_run_over_it(engine: str, url_of: Callable[[str], str], tmp_path: Path) -> None:
    """Killed after a sending, which kills the broker too: memory has lost it all by then."""
    url = url_of(engine)
    command = [sys.executable, "-m", "tests.integration.toy_job", str(tmp_path / "run"), url]
    for point in ("relay.send.after:1", "relay.send.after:2", "engine.commit.after:1"):
        cut = subprocess.run(
            command, env={**os.environ, "HOLDFAST_CRASH": point}, check=False, timeout=120
        )
        assert cut.returncode == -signal.SIGKILL
    subprocess.run(command, check=True, timeout=120)
    check_answers(tmp_path / "run")


def test_two_stages_share_one_broker_on_the_port_they_name(tmp_path: Path) -> None:
    """Durable, memory, durable: while it works, one broker listens there; then nobody does."""
    (port,) = free_ports(1)
    options = StageOptions(log=f"tansu+sqlite://{tmp_path}/topics.db", port=port, batch_size=2)
    config = replace(hybrid_job.SMALL, stages={"priced": options, "graded": options})
    heard = []

    def listen(work: BatchWork | SeriesWork) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            heard.append(work.directory)

    for root, settings, before in (
        (tmp_path / "tansu", config, listen),
        (tmp_path / "plain", hybrid_job.SMALL, None),
    ):
        hybrid_job.prepare(root)
        run_toy(root, pipeline=hybrid_job.make_pipeline([]), config=settings, before=before)
    assert len(heard) > 5
    assert answers_in(tmp_path / "tansu" / "out") == answers_in(tmp_path / "plain" / "out")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", ["sqlite", "s3"])
def test_coffee_over_it(engine: str, coffee: Path, url_of: Callable[[str], str]) -> None:
    check_killed_and_resumed(coffee, f"tansu-{engine}", url_of(engine))
