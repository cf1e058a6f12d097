"""The contract suite of queues on every backend: a new backend is one entry here."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.log.contract import Capability, QueueBackend
from holdfast.log.embedded import EmbeddedBackend
from holdfast.log.memory import MemoryBackend
from holdfast.log.relayed import RelayedBackend
from holdfast.store.sqlite import SqliteStore
from holdfast.testing import queues

Factory = Callable[[Path], Callable[[], QueueBackend]]


def _memory(_: Path) -> Callable[[], QueueBackend]:
    backend = MemoryBackend()
    return lambda: backend


def _embedded(directory: Path) -> Callable[[], QueueBackend]:
    return lambda: EmbeddedBackend(directory / "log.db")


def _embedded_in_memory(_: Path) -> Callable[[], QueueBackend]:
    backend = EmbeddedBackend(SqliteStore.memory())
    return lambda: backend


def _relayed(directory: Path) -> Callable[[], QueueBackend]:
    """The store's topics over another file, shared by all that connect, as a broker would be."""

    def connect() -> QueueBackend:
        remote = EmbeddedBackend(directory / "elsewhere.db")
        remote.start()
        return RelayedBackend(SqliteStore.open(directory / "log.db"), remote, name="one")

    return connect


def _relayed_in_memory(_: Path) -> Callable[[], QueueBackend]:
    backend = RelayedBackend(SqliteStore.memory(), MemoryBackend(), name="one")
    return lambda: backend


IN_MEMORY = frozenset(Capability) - {Capability.DURABLE, Capability.SHARED}
BACKENDS: dict[str, tuple[Factory, frozenset[Capability]]] = {
    "memory": (_memory, MemoryBackend.capabilities),
    "embedded": (_embedded, EmbeddedBackend.capabilities),
    "embedded-in-memory": (_embedded_in_memory, IN_MEMORY),
    "relayed": (_relayed, RelayedBackend.capabilities),
    "relayed-in-memory": (_relayed_in_memory, IN_MEMORY),
}
CASES = [
    pytest.param(factory, check, id=f"{name}-{check.__name__}")
    for name, (factory, capabilities) in BACKENDS.items()
    for check in queues.checks_for(capabilities)
]


@pytest.fixture
def started() -> Iterator[list[QueueBackend]]:
    backends: list[QueueBackend] = []
    yield backends
    for backend in backends:
        backend.stop()


@pytest.mark.parametrize(("factory", "check"), CASES)
def test_contract(
    factory: Factory, check: queues.Check, tmp_path: Path, started: list[QueueBackend]
) -> None:
    make = factory(tmp_path)

    def connect() -> QueueBackend:
        backend = make()
        backend.start()
        started.append(backend)
        return backend

    check(connect)


def test_every_capability_has_a_suite() -> None:
    assert set(queues.BY_CAPABILITY) == set(Capability)
    assert all(queues.BY_CAPABILITY.values())
