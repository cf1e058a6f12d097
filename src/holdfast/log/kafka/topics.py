"""Topics on a broker: made, found, counted. How many partitions one has never changes here."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # its stubs forget it

from holdfast.errors import UsageInvalid
from holdfast.log.kafka.connection import Connection
from holdfast.log.kafka.names import topic_name


class Topics:
    """The topics of one log."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[str, int] = {}

    def forget(self) -> None:
        """Ask the broker again for every topic."""
        self._known.clear()

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic if it is missing. Returns when it can be used.

        Raises:
            UsageInvalid: it has another number of partitions.
        """
        if partitions < 1:
            what = f"topic {topic} with {partitions} partitions"
            raise UsageInvalid(what=what, remedy="Give at least one.")
        stored = self.find(topic)
        if stored is None:
            self._make(topic, partitions)
            stored = self._connection.again(lambda _: self._await(topic))
        if stored != partitions:
            raise UsageInvalid(
                what=f"topic {topic} with {partitions} partitions, it has {stored}",
                remedy="Give the number it was created with.",
            )

    def _make(self, topic: str, partitions: int) -> None:
        settings, admin = self._connection.settings, self._connection.admin
        config = {}
        if settings.truncate == "delete":
            # A log is truncated by its owner alone, never by age or size. A broker that cannot
            # truncate keeps all anyway: Tansu, told to keep for ever (-1), deletes at its start.
            config = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
        if settings.flush == "always":
            config["flush.messages"] = "1"
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
