"""How a queue is declared, and how often a message on it was tried. Pure.

Every queue is a durable quorum queue with two neighbours. A message whose callback raised is
rejected: the broker itself moves it to `<queue>.retry`, where it waits, and back, and counts that
in its header `x-death`. So the count is as durable as the message, and a redelivery after a lost
connection or a consumer's time-out, which is no rejection, does not count. `<queue>.dead` holds
the dead letters. The broker moves messages at least once: it drops the first copy when the
second is confirmed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.amqp.names import QUEUE_BYTES_MAX, dead_queue, retry_queue
from holdfast.errors import UsageInvalid

ATTEMPTS_MAX = 3
"""Attempts after which a message is a dead letter. Fewer: a passing fault buries it."""
RETRY_DELAY_S = 1.0
"""Between two attempts. Shorter: a fault of seconds uses them up. Longer: others go first."""
EXPIRY_MARGIN_S = 24 * 3600.0
"""How much later than abandonment an unused queue vanishes: whoever abandons deletes it first."""
_ATTEMPTS_KNOWN = 1_000_000
"""Counts are bounded by it: a sender may forge one that is too large for a header."""
UNLIMITED_SINCE = (4, 0)
"""Since this version the broker drops what it delivered 20 times, unless told not to."""

REASON, CODE, QUEUE, ATTEMPTS = (
    *("holdfast-reason", "holdfast-code", "holdfast-queue", "holdfast-attempts"),
)
"""Headers of a dead letter."""
CARRIED = "holdfast-carried"
"""Attempts at a message that came before it was copied: the broker counts anew with each copy. A
sender may set it, and has its own message buried earlier."""


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """What a queue is. `expires_s`: it vanishes after so long without a consumer; None: never."""

    name: str
    attempts_max: int = ATTEMPTS_MAX
    retry_delay_s: float = RETRY_DELAY_S
    expires_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse what no broker takes."""
        if not 0 < len(retry_queue(self.name).encode()) <= QUEUE_BYTES_MAX:
            remedy = f"Use at most {QUEUE_BYTES_MAX} bytes, with its suffix."
            raise UsageInvalid(what=f"a queue named {self.name!r}", remedy=remedy)
        if self.attempts_max < 1 or self.retry_delay_s <= 0 or (self.expires_s or 1) <= 0:
            remedy = "Attempts count from 1, times are positive."
            raise UsageInvalid(what=f"queue {self.name}: {self}", remedy=remedy)


def expiry_after(abandon_s: float) -> float:
    """Return after how long an unused queue may vanish: later than its run is abandoned."""
    return max(2 * abandon_s, abandon_s + EXPIRY_MARGIN_S)


def declarations(spec: QueueSpec, version: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    """Return the arguments of each queue to declare, in an order in which none lacks its target."""
    every: dict[str, Any] = {"x-queue-type": "quorum"}
    if version >= UNLIMITED_SINCE:
        every["x-delivery-limit"] = -1
    if spec.expires_s is not None:
        every["x-expires"] = round(spec.expires_s * 1000)
    kept = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    retry = retry_queue(spec.name)
    return {
        dead_queue(spec.name): every,
        retry: {
            **every,
            **kept,
            "x-message-ttl": round(spec.retry_delay_s * 1000),
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": spec.name,
        },
        spec.name: {
            **every,
            **kept,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": retry,
        },
    }


def version_of(properties: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the broker's version from what it says when it greets; () if it says none."""
    value = properties.get("version", "")
    text = value.decode() if isinstance(value, bytes) else str(value)
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def attempts_of(queue: str, headers: Mapping[str, Any]) -> int:
    """Return how many attempts at a message of `queue` raised, as the broker counted them, and
    those at what it is a copy of.
    """
    told, deaths = headers.get(CARRIED), headers.get("x-death")
    carried = told if isinstance(told, int) else 0
    counted = sum(
        count
        for death in (deaths if isinstance(deaths, list) else ())
        if isinstance(death, dict)
        and (_text(death.get("queue")), _text(death.get("reason"))) == (queue, "rejected")
        and isinstance(count := death.get("count"), int)
    )
    return min(max(carried + counted, 0), _ATTEMPTS_KNOWN)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
