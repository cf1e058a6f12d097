"""The contract suite of stores on every store: a new one is one entry here."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.store.contract import Store
from holdfast.store.sqlite import SqliteStore
from holdfast.testing import stores
from holdfast.testing.store_samples import Check, Connect

Factory = Callable[[Path], Connect]


def _memory(_: Path) -> Connect:
    store: Store = SqliteStore.memory()
    return lambda: store


def _sqlite(directory: Path) -> Connect:
    return lambda: SqliteStore.open(directory / "store.db")


@pytest.fixture
def opened() -> Iterator[list[Store]]:
    found: list[Store] = []
    yield found
    for store in found:
        store.close()


@pytest.mark.parametrize("factory", [_memory, _sqlite], ids=["memory", "sqlite"])
@pytest.mark.parametrize("check", stores.CHECKS, ids=lambda check: check.__name__)
def test_contract(factory: Factory, check: Check, tmp_path: Path, opened: list[Store]) -> None:
    make = factory(tmp_path)

    def connect() -> Store:
        store = make()
        opened.append(store)
        return store

    check(connect)
    opened[0].check()
