"""The contract suite of blobs on every blob store: a new one is one entry here."""

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.blobs.contract import BlobStore
from holdfast.blobs.local import LocalBlobs
from holdfast.blobs.memory import MemoryBlobs
from holdfast.testing import blobs

Factory = Callable[[Path], blobs.Connect]


def _memory(_: Path) -> blobs.Connect:
    store: BlobStore = MemoryBlobs()
    return lambda: store


def _local(directory: Path) -> blobs.Connect:
    return lambda: LocalBlobs(directory / "blobs")


@pytest.mark.parametrize("factory", [_memory, _local], ids=["memory", "local"])
@pytest.mark.parametrize("check", blobs.CHECKS, ids=lambda check: check.__name__)
def test_contract(factory: Factory, check: blobs.Check, tmp_path: Path) -> None:
    check(factory(tmp_path))
