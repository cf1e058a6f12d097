"""What every request needs: the store, the blobs, the pipeline, threads to ask them by, counters.

The store and the disk are synchronous. Questions have two threads, the question whose a token is
one, transactions one (they take turns anyway), bytes four: so a look never waits behind an fsync,
and no load opens more than four connections to the store, each of which may keep 16 MiB of pages.
What is long for a large run is asked once at a time for each client: else one client, within its
quotas, keeps the threads of all others. Parquet documents are looked at by
one: a footer may take tens of megabytes for a moment.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from holdfast._base.clock import Clock
from holdfast._base.tell import tell
from holdfast.blobs.local import LocalBlobs
from holdfast.config import Config
from holdfast.engine.spec import PipelineSpec
from holdfast.engine.state import Shared
from holdfast.errors import HoldfastError, InvariantViolated, QuotaReached, StorageFailed
from holdfast.gateway.limits import REQUESTS_SHARE, Bucket
from holdfast.gateway.refusals import is_quiet
from holdfast.intake.documents import Documents
from holdfast.intake.limits import Allowed, check_backlog, check_disk, check_stored
from holdfast.intake.tokens import client_of
from holdfast.store.client_rows import ChunkLook, Client

P = ParamSpec("P")
T = TypeVar("T")

_READERS, _WRITERS, _DISK = 2, 1, 4
_FRESH_S = 1.0
"""How old the sum of a client's bytes may be. It is a query over all of its chunks; meanwhile
what is under way is added."""


@dataclass(slots=True)
class Use:
    """What a client takes, as it was a moment ago, and what it is sending now."""

    at_s: float = -_FRESH_S
    stored: int = 0
    backlog: int = 0
    under_way: int = 0
    unwritten: int = 0
    """What of that is not on the disk yet."""
    uploads: int = 0
    streams: int = 0
    requests: int = 0
    refresh: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while it is looked at anew."""
    long_read: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the store is asked for what may take long."""


@dataclass(slots=True)
class Counts:
    """What happened in this process since it began."""

    requests: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """(verb, path of the API, status) -> how many."""
    seconds: Counter[tuple[str, str]] = field(default_factory=Counter)
    chunk_bytes: int = 0
    chunks: Counter[str] = field(default_factory=Counter)
    """bound, repeated or refused -> how many."""


class Desk:
    """One gateway process."""

    def __init__(
        self,
        shared: Shared,
        spec: PipelineSpec,
        config: Config,
        clock: Clock,
        *,
        metrics_client: str | None = None,
        producer: str = "",
    ) -> None:
        self.directory, self.store = shared.directory, shared.store
        self.blobs = LocalBlobs(shared.directory.blobs)
        self.spec, self.config, self.clock = spec, config, clock
        self.documents = Documents.of(spec.tables, config)
        self.metrics_client, self.producer = metrics_client, producer
        self.counts = Counts()
        self.closing = False
        self.stop: Callable[[], None] = lambda: None
        """Ends the process: what it knows may be wrong."""
        self._uses: dict[str, Use] = {}
        self._buckets: dict[str, Bucket] = {}
        self._readers = ThreadPoolExecutor(_READERS, "read")
        self._doors = ThreadPoolExecutor(1, "door")
        self._writers = ThreadPoolExecutor(_WRITERS, "write")
        self._disk = ThreadPoolExecutor(_DISK, "disk")
        self._lookers = ThreadPoolExecutor(1, "look")

    async def read(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask the store."""
        return await _in(self._readers, functools.partial(call, *args, **kwargs))

    async def read_long(
        self, client: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Ask the store for what grows with a run, one at a time for each client.

        A client that goes away takes back what it has not begun to ask. What is under way has its
        thread to the end, and so long its next question waits.
        """
        lock = self._uses.setdefault(client, Use()).long_read
        await lock.acquire()
        asked = asyncio.ensure_future(self.read(call, *args, **kwargs))
        asked.add_done_callback(lambda _: lock.release())
        return await asyncio.shield(asked)

    async def open_door(self, token: str) -> Client:
        """Return whose a token is.

        Raises:
            TokenRefused: nobody's.
        """
        return await _in(self._doors, functools.partial(client_of, self.store, token))

    async def write(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do a transaction. When this returns, it is durable."""
        return await _in(self._writers, functools.partial(call, *args, **kwargs))

    async def disk(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Read, write or hash bytes."""
        return await _in(self._disk, functools.partial(call, *args, **kwargs))

    async def look(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Look at a Parquet document that was written."""
        return await _in(self._lookers, functools.partial(call, *args, **kwargs))

    def close(self) -> None:
        """Wait for what is under way in the threads, and end them."""
        for pool in (self._readers, self._doors, self._writers, self._disk, self._lookers):
            pool.shutdown(wait=True, cancel_futures=True)

    def allowed(self, client: Client) -> Allowed:
        """Return what a client may take."""
        return Allowed.of(client.quotas, self.config)

    def wait_s(self, client: Client) -> float:
        """Count a request. Returns 0, or in how many seconds the client may send the next."""
        now_s, rate = self.clock.monotonic_s(), self.allowed(client).request_rate
        bucket = self._buckets.setdefault(client.client, Bucket(float(rate), now_s))
        return bucket.take(now_s, rate)

    def begin_request(self, client: Client) -> Use:
        """Count a request of a client until its answer is out (`end_request`).

        Raises:
            QuotaReached: so many of its requests are under way that others find no connection.
        """
        use, most = self.use_of(client), max(1, self.config.connections_max // REQUESTS_SHARE)
        if use.requests >= most:
            raise QuotaReached(what="requests at once", used=use.requests, limit=most)
        use.requests += 1
        return use

    def end_request(self, use: Use) -> None:
        """Count it no more."""
        use.requests -= 1

    def use_of(self, client: Client) -> Use:
        """Return what a client takes, as last looked at."""
        return self._uses.setdefault(client.client, Use())

    async def fresh_use(self, client: Client) -> Use:
        """Return what a client takes, at most a second old.

        Whoever asks while it is looked at waits for that look: what is known before it may be
        nothing at all.
        """
        use = self.use_of(client)
        async with use.refresh:
            now_s = self.clock.monotonic_s()
            if now_s - use.at_s >= _FRESH_S:
                found = await self.read(self.store.read_use, client.client)
                backlog = await self.read(self.store.read_backlog, client.client)
                use.stored, use.backlog, use.at_s = found.stored_bytes, backlog, now_s
        return use

    @contextmanager
    def upload(self, client: Client, look: ChunkLook, most: int) -> Iterator[Room]:
        """Count an upload while it is under way. Yields the room that its bytes take.

        Raises:
            QuotaReached: so many of this client are under way that one more gains nothing.
        """
        use = self.use_of(client)
        if use.uploads >= most:
            raise QuotaReached(what="uploads at once", used=use.uploads, limit=most)
        room = Room(self, use, self.allowed(client), look)
        use.uploads += 1
        try:
            yield room
        finally:
            use.uploads -= 1
            room.leave()

    def check_disk(self, size: int) -> None:
        """Refuse `size` bytes more, beside all that are still to be written, if they would leave
        less than the floor.
        """
        size += sum(one.unwritten for one in self._uses.values())
        check_disk(self.directory.root, size, self.config.disk_floor_bytes)

    def note(self, error: HoldfastError) -> None:
        """Tell the operator what the client is not told; end the process if it cannot go on."""
        if is_quiet(error):
            say(str(error))
        if isinstance(error, InvariantViolated):
            self.stop()
        elif isinstance(error, StorageFailed):
            try:
                self.store.store_id()
            except StorageFailed:
                self.stop()


class Room:
    """What one upload takes of its client's quota and of the disk."""

    def __init__(self, desk: Desk, use: Use, allowed: Allowed, look: ChunkLook) -> None:
        self._desk, self._use, self._allowed, self._look = desk, use, allowed, look
        self._taken = self._written = 0

    def take(self, size: int) -> None:
        """Take room for bytes before they are written.

        Raises:
            BacklogFull, QuotaReached, DiskNearlyFull: there is none.
        """
        use = self._use
        others = use.backlog + use.under_way - self._taken
        check_backlog(others, self._look, self._desk.config.backlog_bytes)
        check_stored(self._allowed, stored=use.stored + use.under_way, size=size)
        self._desk.check_disk(size)
        self._taken += size
        use.under_way += size
        use.unwritten += size

    def wrote(self, size: int) -> None:
        """Say that bytes are written: the disk itself counts them from now on."""
        self._written += size
        self._use.unwritten -= size

    def leave(self) -> None:
        """Take nothing any more."""
        self._use.under_way -= self._taken
        self._use.unwritten -= self._taken - self._written


def say(text: str) -> None:
    """Write a line for the operator. If it cannot be written, whoever asked is answered all the
    same.
    """
    tell(f"{' '.join(text.split())}\n")


async def _in(pool: ThreadPoolExecutor, call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, call)
