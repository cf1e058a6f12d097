"""Topics on a broker: made, found, counted. How many partitions one has never changes here."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs forget NewTopic
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from holdfast.errors import LogRefused, UsageInvalid
from holdfast.log.kafka.connection import Connection
from holdfast.log.kafka.names import topic_name
from holdfast.log.kafka.settings import KafkaSettings


class Topics:
    """The topics of one log."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[str, int] = {}
        self._kept: set[str] = set()

    def forget(self) -> None:
        """Ask the broker again for every topic."""
        self._known.clear()
        self._kept.clear()

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic if it is missing. Returns when it can be used.

        Raises:
            UsageInvalid: it has another number of partitions.
            LogRefused: it does not keep what this log promises, and cannot be made to.
        """
        if partitions < 1:
            what = f"topic {topic} with {partitions} partitions"
            raise UsageInvalid(what=what, remedy="Give at least one.")
        stored = self.find(topic)
        if stored is None:
            self._make(topic, partitions)
            stored = self._connection.again(lambda _: self._await(topic))
        self._keep(topic)
        if stored != partitions:
            raise UsageInvalid(
                what=f"topic {topic} with {partitions} partitions, it has {stored}",
                remedy="Give the number it was created with.",
            )

    def _make(self, topic: str, partitions: int) -> None:
        settings, admin = self._connection.settings, self._connection.admin
        config = _promised(settings)
        if settings.replicas > 1:
            config["min.insync.replicas"] = "2"
        name = topic_name(settings.prefix, topic)
        wanted = NewTopic(name, partitions, settings.replicas, config=config)

        def ask(wait_s: float) -> None:
            try:
                futures = admin.create_topics([wanted], operation_timeout=wait_s)
                futures[name].result(wait_s + 1.0)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

        self._connection.again(ask)

    def _keep(self, topic: str) -> None:
        """See once that a topic is kept as promised. Somebody else may have made it, or the broker
        by itself, or this log with other options. A broker that does not tell is believed.
        """
        wanted = _promised(self._connection.settings)
        if topic in self._kept or not wanted:
            return
        name = topic_name(self._connection.settings.prefix, topic)
        stored = self._configs(name)
        wrong = {key: stored[key] for key in wanted if stored.get(key, wanted[key]) != wanted[key]}
        if wrong:
            self._set(name, wrong, {key: wanted[key] for key in wrong})
        self._kept.add(topic)

    def _configs(self, name: str) -> dict[str, str | None]:
        """Return how the broker keeps a topic; nothing, if it does not say so to us."""
        where, admin = ConfigResource(ConfigResource.Type.TOPIC, name), self._connection.admin
        try:
            found = self._connection.again_in_future(
                lambda wait_s: admin.describe_configs([where], request_timeout=wait_s)[where]
            )
        except LogRefused:
            return {}
        return {key: entry.value for key, entry in found.items()}

    def _set(self, name: str, wrong: dict[str, str | None], wanted: dict[str, str]) -> None:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in wanted.items()
        ]
        where = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
        admin = self._connection.admin
        try:
            self._connection.again_in_future(
                lambda wait_s: admin.incremental_alter_configs([where], request_timeout=wait_s)[
                    where
                ]
            )
        except LogRefused as error:
            has = ", ".join(f"{key}={value}" for key, value in wrong.items())
            needs = ", ".join(f"{key}={value}" for key, value in wanted.items())
            what = f"topic {name} has {has}; set {needs} ({error.error})"
            raise LogRefused(log=error.log, error=what) from error

    def find(self, topic: str) -> int | None:
        """Return how many partitions a topic has, all of them usable; None: it is unknown.

        The question never creates a topic, however the broker is set up.
        """
        if (known := self._known.get(topic)) is not None:
            return known
        name, admin = topic_name(self._connection.settings.prefix, topic), self._connection.admin

        def ask(wait_s: float) -> int | None:
            futures = admin.describe_topics(TopicCollection([name]), request_timeout=wait_s)
            try:
                found = futures[name].result(wait_s + 1.0).partitions
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    return None
                raise
            if any(one.leader is None or one.leader.id < 0 for one in found):
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
            return len(found) or None

        count = self._connection.again(ask)
        if count is not None:
            self._known[topic] = count
        return count

    def _await(self, topic: str) -> int:
        found = self.find(topic)
        if found is None:  # the broker that was asked has not heard of it yet
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return found

    def to_append(self, topic: str, partition: int) -> str:
        """Return what a topic is called on the broker, and see that it keeps what it is given.

        Raises:
            UsageInvalid: there is no such topic or partition.
            LogRefused: it does not keep what this log promises, and cannot be made to.
        """
        name = self.name(topic, partition)
        self._keep(topic)
        return name

    def name(self, topic: str, partition: int) -> str:
        """Return what a topic is called on the broker.

        Raises:
            UsageInvalid: there is no such topic or partition.
        """
        found = self.find(topic)
        if found is None or not 0 <= partition < found:
            raise UsageInvalid(
                what=f"topic {topic} has no partition {partition}, or does not exist",
                remedy="Create the topic first, with enough partitions.",
            )
        return topic_name(self._connection.settings.prefix, topic)


def _promised(settings: KafkaSettings) -> dict[str, str]:
    """Return how a topic is to be kept, by Kafka's names."""
    found = {}
    if settings.truncate == "delete":
        # A log is truncated by its owner alone, never by age or size. A broker that cannot
        # truncate keeps all anyway: Tansu, told to keep for ever (-1), deletes at its start.
        found = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
    if settings.flush == "always":
        found["flush.messages"] = "1"
    return found
