"""Whether a client's chunk may be taken now, later or never. The limits are intake's own.

What a client takes is a query over all of its chunks, so it is asked once a second; what this
router took meanwhile is added. Its threads, other routers and the gateway may take as much again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast._base.clock import Clock
from holdfast.config import Config
from holdfast.errors import QuotaReached
from holdfast.intake.limits import (
    Allowed,
    check_backlog,
    check_disk,
    check_run_chunks,
    check_size,
    check_stored,
)
from holdfast.router.refusals import rejected
from holdfast.store.client_rows import ChunkLook, Quotas
from holdfast.store.contract import Store

_FRESH_S = 1.0
"""How old what is known of a client's bytes may be."""


@dataclass(slots=True)
class _Use:
    at_s: float
    stored: int
    backlog: int


class Room:
    """What clients take of a state, and what each may. Used by many threads."""

    def __init__(self, store: Store, root: Path, config: Config, clock: Clock) -> None:
        """`root` is the state directory."""
        self._store, self._root, self._config, self._clock = store, root, config, clock
        self._quotas: Mapping[str, Quotas] = {}
        self._uses: dict[str, _Use] = {}
        self._guard = threading.Lock()

    def learn(self, quotas: Mapping[str, Quotas]) -> None:
        """Take note of clients' own quotas."""
        self._quotas = quotas

    def check(self, client: str, look: ChunkLook, size: int) -> None:
        """Refuse a new chunk of `size` bytes for which there is no room.

        Raises:
            Reject: there never will be.
            QuotaReached, BacklogFull: there may be later, when other work of this client is done.
            DiskFull: there may be later, for anybody.
        """
        allowed = Allowed.of(self._quotas.get(client, Quotas()), self._config)
        check_size(size, allowed.chunk_bytes)
        try:
            check_run_chunks(allowed, look)
            check_stored(allowed, stored=0, size=size)
        except QuotaReached as error:
            raise rejected(error) from error
        with self._guard:
            use = self._fresh(client)
            check_stored(allowed, stored=use.stored, size=size)
            check_backlog(use.backlog, look, self._config.backlog_bytes)
        check_disk(self._root, size, self._config.disk_floor_bytes)

    def took(self, client: str, look: ChunkLook, size: int) -> None:
        """Add a new chunk that was bound, after `check`."""
        with self._guard:
            use = self._uses[client]  # not a new look: that would count the chunk twice
            use.stored += size
            use.backlog += 0 if look.whole else size

    def _fresh(self, client: str) -> _Use:
        now_s = self._clock.monotonic_s()
        use = self._uses.get(client)
        if use is None or now_s - use.at_s >= _FRESH_S:
            stored = self._store.read_use(client).stored_bytes
            use = self._uses[client] = _Use(now_s, stored, self._store.read_backlog(client))
        return use
