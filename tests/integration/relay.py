"""The store's topics over a broker, as every run over another log has them, for the contract."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.log.contract import QueueBackend
from holdfast.log.open import open_backend
from holdfast.log.relayed import RelayedBackend
from holdfast.store.sqlite import SqliteStore


def relay(file: Path, url: str, opened: list[QueueBackend]) -> Callable[[], QueueBackend]:
    """Return what connects once more: to the same store, and to the broker on its own."""

    def connect() -> QueueBackend:
        remote = open_backend(url)
        opened.append(remote)
        remote.start()
        backend = RelayedBackend(SqliteStore.open(file), remote, name="one")
        opened.append(backend)
        backend.start()
        return backend

    return connect
