"""KafkaBackend against a real Kafka: the public contract suite, names, secrets, restarts."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs forget some
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from tests.integration.kafka_server import KafkaServer, running
from tests.integration.killer import check_a_living_producer
from tests.integration.processes import free_ports
from tests.integration.relay import relay
from tests.integration.waiting import until

from holdfast._base.ids import Offset
from holdfast.errors import LogRefused, LogUnreachable, UsageInvalid
from holdfast.log.contract import Capability, QueueBackend, Record
from holdfast.log.kafka.backend import KafkaBackend
from holdfast.log.relayed import RelayedBackend
from holdfast.testing import queues

DECLARED = frozenset((Capability.DURABLE, Capability.SHARED, Capability.TRUNCATE))


@pytest.fixture
def started() -> Iterator[list[QueueBackend]]:
    backends: list[QueueBackend] = []
    yield backends
    for backend in backends:
        backend.stop()


@pytest.mark.parametrize("check", queues.checks_for(DECLARED), ids=lambda check: check.__name__)
def test_contract(kafka: KafkaServer, check: queues.Check, started: list[QueueBackend]) -> None:
    url = kafka.url(f"t-{secrets.token_hex(4)}")

    def connect() -> QueueBackend:
        backend = KafkaBackend(url)
        assert backend.capabilities == DECLARED
        backend.start()
        started.append(backend)
        return backend

    check(connect)


@pytest.mark.parametrize(
    "check", queues.checks_for(RelayedBackend.capabilities), ids=lambda check: check.__name__
)
def test_contract_of_the_relay(
    kafka: KafkaServer, check: queues.Check, started: list[QueueBackend], tmp_path: Path
) -> None:
    """The path that every run takes over Kafka: the store's topics, over a broker."""
    check(relay(tmp_path / "log.db", kafka.url(f"t-{secrets.token_hex(4)}"), started))


@pytest.mark.timeout(600)
def test_a_broker_that_dies_loses_and_doubles_nothing_of_a_living_producer(
    tmp_path: Path, started: list[QueueBackend]
) -> None:
    with running(tmp_path / "kafka") as server:
        backend = KafkaBackend(server.url("p"))
        started.append(backend)
        backend.start()
        check_a_living_producer(backend, server.kill, server.start)


def test_what_was_not_confirmed_is_not_counted(tmp_path: Path, started: list[QueueBackend]) -> None:
    """Goal: a broker that stands still makes a produce fail by name; it counts nothing.

    Method: stop the broker's process while it holds the connection, produce with a short time-out,
    let it go on. The failed batch is nowhere counted, and may be there only behind what was told.
    """
    with running(tmp_path / "kafka") as server:
        backend = KafkaBackend(server.url("p", "timeout_s=3"))
        started.append(backend)
        backend.start()
        backend.create_topic("t")
        assert backend.produce("t", Record(b"before")) == 0
        server.process.pause()
        try:
            with pytest.raises(LogUnreachable) as caught:
                backend.produce_batch("t", [Record(b"lost"), Record(b"lost")])
        finally:
            server.process.resume()
        assert "0 of 2 records" in caught.value.error
        offset = backend.produce("t", Record(b"after"))
        found = backend.fetch_batch("t", Offset(0), count=10)
        held = {stored.offset: stored.record.value for stored in found}
        assert held[Offset(0)] == b"before"
        assert held[offset] == b"after"
        assert set(held.values()) <= {b"before", b"lost", b"after"}


OTHERWISE = {"retention.ms": "60000", "cleanup.policy": "compact"}
KEPT = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}


def configs(admin: AdminClient, name: str) -> dict[str, str | None]:
    where = ConfigResource(ResourceType.TOPIC, name)
    return {key: one.value for key, one in admin.describe_configs([where])[where].result().items()}


def is_refused(admin: AdminClient, name: str) -> bool:
    """Tell whether the broker lets nobody change how a topic is kept."""
    entry = ConfigEntry("index.interval.bytes", "4096")
    entry.incremental_operation = AlterConfigOpType.SET
    where = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    error = admin.incremental_alter_configs([where])[where].exception(30)
    return isinstance(error, KafkaException)


@pytest.mark.parametrize("append", [True, False])
def test_a_topic_that_was_there_is_kept_as_promised(
    kafka: KafkaServer, started: list[QueueBackend], append: bool
) -> None:
    """Whoever made it: before something is appended, and when it is created again."""
    prefix = f"t-{secrets.token_hex(4)}"
    admin = AdminClient({"bootstrap.servers": kafka.address, "log_level": 0})
    wanted = NewTopic(f"{prefix}.t", 1, 1, config=OTHERWISE)
    admin.create_topics([wanted])[f"{prefix}.t"].result()
    backend = KafkaBackend(kafka.url(prefix))
    started.append(backend)
    backend.start()
    assert backend.bounds("t") == (0, 0)
    assert OTHERWISE.items() <= configs(admin, f"{prefix}.t").items()
    if append:
        backend.produce("t", Record(b"x"))
    else:
        backend.create_topic("t")
    assert (KEPT | {"flush.messages": "1"}).items() <= configs(admin, f"{prefix}.t").items()


def test_a_topic_that_must_stay_as_it_is_is_named(
    tmp_path: Path, started: list[QueueBackend]
) -> None:
    """The user may do all with it, but not change how it is kept."""
    more = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    server = KafkaServer(tmp_path / "kafka", more=more)
    server.start()
    try:
        admin = AdminClient({"bootstrap.servers": server.address, "log_level": 0})
        admin.create_topics([NewTopic("p.t", 1, 1)])["p.t"].result()
        rules = [
            AclBinding(ResourceType.TOPIC, "p.t", ResourcePatternType.LITERAL, "User:ANONYMOUS",
                       "*", what, kind)
            for what, kind in (
                (AclOperation.ALL, AclPermissionType.ALLOW),
                (AclOperation.ALTER_CONFIGS, AclPermissionType.DENY),
            )
        ]  # fmt: skip
        for done in admin.create_acls(rules).values():
            done.result()
        until(lambda: is_refused(admin, "p.t"), "the rules are in force")
        backend = KafkaBackend(server.url("p"))
        started.append(backend)
        backend.start()
        with pytest.raises(LogRefused) as caught:
            backend.create_topic("t")
        assert "set retention.ms=-1, flush.messages=1" in caught.value.error
        trusting = KafkaBackend(server.url("p", "flush=broker&truncate=mark"))
        started.append(trusting)
        trusting.start()
        assert trusting.produce("t", Record(b"x")) == 0
        backend.stop()
        trusting.stop()
    finally:
        server.stop()


def test_a_broker_that_is_not_there_is_named(started: list[QueueBackend]) -> None:
    (port,) = free_ports(1)
    backend = KafkaBackend(f"kafka://127.0.0.1:{port}/p?timeout_s=1")
    started.append(backend)
    with pytest.raises(LogUnreachable) as caught:
        backend.start()
    assert f"127.0.0.1:{port}" in caught.value.log
    with pytest.raises(UsageInvalid):
        backend.produce("t", Record(b"x"))


def test_a_broker_that_cannot_is_named(kafka: KafkaServer, started: list[QueueBackend]) -> None:
    """One node has no three replicas."""
    backend = KafkaBackend(kafka.url("p", "replicas=3"))
    started.append(backend)
    backend.start()
    with pytest.raises(LogRefused):
        backend.create_topic("t")


def test_an_unknown_topic_is_not_made_by_asking(
    kafka: KafkaServer, started: list[QueueBackend]
) -> None:
    """Kafka makes topics for whoever names one; this log does not."""
    backend = KafkaBackend(kafka.url(f"t-{secrets.token_hex(4)}"))
    started.append(backend)
    backend.start()
    for _ in range(2):
        with pytest.raises(UsageInvalid):
            backend.produce("t", Record(b"x"))
        with pytest.raises(UsageInvalid):
            backend.bounds("t")


def test_a_record_that_is_too_large_is_refused(
    kafka: KafkaServer, started: list[QueueBackend]
) -> None:
    backend = KafkaBackend(kafka.url(f"t-{secrets.token_hex(4)}"))
    started.append(backend)
    backend.start()
    backend.create_topic("t")
    with pytest.raises(UsageInvalid):
        backend.produce_batch("t", [Record(b"fits"), Record(bytes(2 << 20))])
    offset = backend.produce("t", Record(b"next"))
    found = backend.fetch("t", offset)
    assert found is not None
    assert found.record.value == b"next"


@pytest.mark.parametrize("sizes", [[10_000], [10, 10_000, 10], [600, 600]])
def test_a_record_that_the_broker_finds_too_large_is_refused(
    kafka: KafkaServer, started: list[QueueBackend], sizes: list[int]
) -> None:
    """It takes less than the client sends: starting it again would be no help."""
    prefix = f"t-{secrets.token_hex(4)}"
    admin = AdminClient({"bootstrap.servers": kafka.address, "log_level": 0})
    wanted = NewTopic(f"{prefix}.t", 1, 1, config={"max.message.bytes": "1000"})
    admin.create_topics([wanted])[f"{prefix}.t"].result()
    backend = KafkaBackend(kafka.url(prefix))
    started.append(backend)
    backend.start()
    with pytest.raises(UsageInvalid) as caught:
        backend.produce_batch("t", [Record(bytes(size)) for size in sizes])
    assert f"{max(sizes)} bytes" in caught.value.what
    assert "max.message.bytes" in caught.value.remedy
    assert backend.produce_batch("t", [Record(bytes(600))]) == [backend.bounds("t")[1] - 1]


def test_a_mark_hides_what_a_broker_cannot_delete(
    kafka: KafkaServer, started: list[QueueBackend]
) -> None:
    """With truncate=mark: the suite of truncation passes, though TRUNCATE is not declared."""
    url = kafka.url(f"t-{secrets.token_hex(4)}", "truncate=mark")

    def connect() -> QueueBackend:
        backend = KafkaBackend(url)
        assert Capability.TRUNCATE not in backend.capabilities
        backend.start()
        started.append(backend)
        return backend

    queues.check_truncation_gives_room_back(connect)
    again = connect()
    assert again.bounds("t") == (3, 6)
    assert again.get_min_committed_offset("t") == 3
