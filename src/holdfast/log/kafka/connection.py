"""A connection to a broker for questions: asked again while the broker is away, errors named."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from holdfast._base.clock import Clock
from holdfast.errors import HoldfastError, LogEmptied, LogRefused, LogUnreachable, UsageInvalid
from holdfast.log.kafka.settings import KafkaSettings

T = TypeVar("T")

RETRY_MIN_S, RETRY_MAX_S = 0.02, 0.5
ASK_MAX_S = 5.0
"""One question waits so long; then it is asked again, perhaps on a new connection."""
TIMED_OUT = KafkaError._TIMED_OUT  # noqa: SLF001 - the client's own codes begin so
OUT_OF_RANGE = frozenset(
    (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)  # noqa: SLF001 - as above
)
_REFUSALS = frozenset(
    (
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - as above
        KafkaError._UNSUPPORTED_FEATURE,  # noqa: SLF001 - as above
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.POLICY_VIOLATION,
        KafkaError.INVALID_CONFIG,
        KafkaError.UNSUPPORTED_VERSION,
    )
)
_PASSING = frozenset(
    (
        TIMED_OUT,
        KafkaError._TRANSPORT,  # noqa: SLF001 - as above
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - as above
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001 - as above
        KafkaError._WAIT_COORD,  # noqa: SLF001 - as above
        KafkaError._RESOLVE,  # noqa: SLF001 - as above
        # Of a topic that was seen before: a broker that has just started does not know it yet.
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - as above
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.NOT_CONTROLLER,
    )
)
"""What a broker says, or the client of it, that starts, stops or is away: asked again."""


def _one_life() -> int:
    return 0


class Connection:
    """Asks one broker or cluster. Safe to use from several threads."""

    def __init__(
        self, settings: KafkaSettings, clock: Clock, life: Callable[[], int] = _one_life
    ) -> None:
        """`life` numbers the broker's lives, if a new one knows nothing of the one before. It
        raises when there is none to come.
        """
        self.settings, self._clock = settings, clock
        self._life, self._lived, self._is_doubtful = life, 0, False
        self._admin: AdminClient | None = None
        self._pause = threading.Event()
        self._complaint = ""

    def open(self) -> None:
        """Connect, and see that the broker answers."""
        if self._admin is None:
            self._lived = self._life()
            config: dict[str, Any] = {**self.settings.client(), "error_cb": self.hear}
            admin = AdminClient(config)
            self.again(lambda wait_s: admin.list_topics(timeout=wait_s))
            self._admin = admin

    def close(self) -> None:
        """Let go of it."""
        self._admin = None

    @property
    def admin(self) -> AdminClient:
        """The client library's own door, open."""
        if self._admin is None:
            raise UsageInvalid(what="the log is not started", remedy="Call start() first.")
        return self._admin

    def check(self) -> None:
        """See that it is the broker that it was.

        Raises:
            LogEmptied: it was started again, and has lost all.
        """
        if self._life() != self._lived:
            raise LogEmptied(log=self.settings.url)

    def is_stale(self) -> bool:
        """Tell whether what is known of the broker may not be so any more."""
        return self._is_doubtful or self._life() != self._lived

    def renew(self) -> None:
        """Believe what is found out from now on."""
        self._is_doubtful, self._lived = False, self._life()

    def hear(self, error: KafkaError) -> None:
        """Remember what the client library complains of, for the message of an error to come."""
        self._complaint = error.str()

    def again(self, ask: Callable[[float], T]) -> T:
        """Return what `ask(seconds)` gives, asking again while the broker is away.

        Raises:
            LogUnreachable: it is away for longer than the log's `timeout_s`.
            LogRefused: it answers, but not for us.
        """
        deadline_s = self._clock.monotonic_s() + self.settings.timeout_s
        pause_s = RETRY_MIN_S
        while True:
            self.check()
            left_s = deadline_s - self._clock.monotonic_s()
            try:
                return ask(max(min(left_s, ASK_MAX_S), 0.1))
            except KafkaException as error:
                cause = error.args[0]
                if not is_passing(cause) or left_s <= pause_s:
                    raise self.trouble(cause) from error
            self.rest(pause_s)
            pause_s = min(pause_s * 2, RETRY_MAX_S)

    def again_in_future(self, ask: Callable[[float], Future[T]]) -> T:
        """Do the same with a question whose answer is a future."""
        return self.again(lambda wait_s: ask(wait_s).result(wait_s + 1.0))

    def rest(self, pause_s: float) -> None:
        """Wait a moment."""
        self._pause.wait(pause_s)

    def trouble(self, cause: KafkaError, *, told: str = "") -> HoldfastError:
        """Return our error for the client library's. Its texts hold no secrets."""
        text = f"{told}{': ' if told else ''}{cause.name().lower()}, {cause.str()}"
        if cause.code() in _REFUSALS:
            return LogRefused(log=self.settings.url, error=text)
        if self._complaint and is_passing(cause):
            text += f" ({self._complaint})"
        self._is_doubtful = True
        return LogUnreachable(log=self.settings.url, error=text)


def is_passing(error: KafkaError) -> bool:
    """Tell whether it is worth asking again."""
    return error.code() in _PASSING or error.retriable()
