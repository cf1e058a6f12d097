"""How much a client may take, and how slow it may be. Pure, by a clock that is handed in."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.config import Config
from holdfast.errors import BacklogFull, BodyTooLarge, QuotaReached
from holdfast.store.client_rows import ChunkLook, Client

UPLOAD_GRACE_S = 10.0
"""Waiting for bytes that is free: a first byte may take its time."""
UPLOADS_AT_ONCE = 16
"""Uploads of one client at once. More gain nothing on one disk, and each takes memory."""
STREAMS_AT_ONCE = 32
"""Event streams of one client at once. Each looks at the store several times a second."""
BURST_S = 2
"""Seconds of a client's rate that it may use at once."""
RETRY_QUOTA_S = 30
"""When to come back after a quota: something has to be finished or swept first."""
RETRY_BACKLOG_S = 2
"""When to come back after a backlog: the engine works off a batch in about so long."""
RETRY_DISK_S = 60
"""When to come back to a full disk: somebody has to make room."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """What one client may take: its own quotas, else what the settings say."""

    open_runs: int
    stored_bytes: int
    chunk_bytes: int
    run_chunks: int
    request_rate: int

    @classmethod
    def of(cls, client: Client, config: Config) -> Allowed:
        """Return what a client may take."""
        own = client.quotas
        return cls(
            open_runs=own.open_runs or config.client_open_runs,
            stored_bytes=own.stored_bytes or config.client_stored_bytes,
            chunk_bytes=own.chunk_bytes or config.upload_chunk_bytes,
            run_chunks=own.run_chunks or config.client_run_chunks,
            request_rate=own.request_rate or config.client_request_rate,
        )


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


def check_size(size: int, limit: int) -> None:
    """Refuse a body that is longer than allowed."""
    if size > limit:
        raise BodyTooLarge(limit=limit)


def check_room(allowed: Allowed, look: ChunkLook, *, stored: int, size: int) -> None:
    """Refuse a new chunk for which its client has no room. `stored` includes what is under way."""
    if look.run_chunks >= allowed.run_chunks:
        what = "chunks of one run"
        raise QuotaReached(what=what, used=look.run_chunks, limit=allowed.run_chunks)
    if stored + size > allowed.stored_bytes:
        what = "bytes kept here"
        raise QuotaReached(what=what, used=stored + size, limit=allowed.stored_bytes)


def check_backlog(waiting: int, look: ChunkLook, limit: int) -> None:
    """Refuse a chunk while too much of its client waits to be worked on.

    Not one of a whole table: the engine may wait for exactly that one.
    """
    if waiting >= limit and not look.whole:
        raise BacklogFull(waiting=waiting, limit=limit)
