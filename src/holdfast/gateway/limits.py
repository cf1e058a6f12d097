"""How often a client may ask over HTTP, how slow it may be, when it is to come back. Pure, by a
clock that is handed in. How much it may take: `holdfast.intake.limits`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

UPLOAD_GRACE_S = 10.0
"""Waiting for bytes that is free: a first byte may take its time."""
UPLOADS_AT_ONCE = 16
"""Uploads of one client at once. More gain nothing on one disk, and each takes memory."""
STREAMS_AT_ONCE = 32
"""Event streams of one client at once. Each looks at the store several times a second."""
BURST_S = 2
"""Seconds of a client's rate that it may use at once."""
REQUESTS_SHARE = 4
"""One client has at most a quarter of all connections under way: what it downloads, watches, sends
slowly. Fewer: a client with many streams is refused. More: few clients keep out all others."""
RETRY_REQUESTS_S = 1
"""When to come back after too many requests at once: one of them ends any moment."""
RETRY_QUOTA_S = 30
"""When to come back after a quota: something has to be finished or swept first."""
RETRY_BACKLOG_S = 2
"""When to come back after a backlog: the engine works off a batch in about so long."""
RETRY_DISK_S = 60
"""When to come back to a full disk: somebody has to make room."""


@dataclass(slots=True)
class Bucket:
    """Requests that one client has left: filled at its rate, emptied by one each."""

    level: float
    at_s: float

    def take(self, now_s: float, rate: int) -> float:
        """Take one. Returns 0, or in how many seconds there is one again."""
        full = float(rate * BURST_S)
        self.level = min(full, self.level + (now_s - self.at_s) * rate)
        self.at_s = now_s
        if self.level < 1:
            return (1 - self.level) / rate
        self.level -= 1
        return 0.0


@dataclass(slots=True)
class Pace:
    """Whether a body comes fast enough. Only time spent waiting for its sender counts."""

    rate: int
    received: int = 0
    waited_s: float = field(default=0.0)

    def patience_s(self) -> float | None:
        """Return how much longer to wait for the next bytes; None: without end."""
        if not self.rate:
            return None
        return UPLOAD_GRACE_S + self.received / self.rate - self.waited_s
