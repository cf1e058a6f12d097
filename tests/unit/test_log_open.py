"""Backends by URL, and the async facade over any of them."""

import asyncio
import gc
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.crash.workloads import SMALL, expected
from tests.unit.plain_runs import answers_in, run_toy

from holdfast._base.ids import Offset
from holdfast.errors import DependencyMissing, UsageInvalid
from holdfast.log import open as opening
from holdfast.log.aio import AsyncBackend
from holdfast.log.contract import Position, QueueBackend, Record
from holdfast.log.embedded import EmbeddedBackend
from holdfast.log.memory import MemoryBackend
from holdfast.store.sqlite import SqliteStore


def test_a_memory_log_is_shared_by_name_while_it_is_held() -> None:
    first = opening.open_backend("memory://shared")
    assert opening.open_backend("memory://shared") is first
    assert opening.open_backend(first.endpoint().url) is first
    assert opening.open_backend("memory://other") is not first
    first.create_topic("t")
    del first
    gc.collect()
    with pytest.raises(UsageInvalid):
        opening.open_backend("memory://shared").partitions("t")


def test_a_file_log_is_opened_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "a log.db"
    backend = opening.open_backend(path.as_uri())
    assert isinstance(backend, EmbeddedBackend)
    assert backend.endpoint().url == path.as_uri()
    with pytest.raises(UsageInvalid):
        backend.create_topic("t")
    backend.start()
    backend.create_topic("t")
    backend.stop()
    assert path.is_file()


@pytest.mark.parametrize(
    "url", ["", "path", "memory://", "file://host/x", "file:x", "file:///x?a=1"]
)
def test_what_says_nothing_is_refused(url: str) -> None:
    with pytest.raises(UsageInvalid):
        opening.open_backend(url)


def install(root: Path, module: str, text: str, schemes: dict[str, str]) -> None:
    """Lay out what an installer leaves of a package with a backend: a module, its metadata."""
    (root / f"{module}.py").write_text(text)
    facts = root / f"{module}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    points = "".join(f"{scheme} = {module}:{name}\n" for scheme, name in schemes.items())
    (facts / "entry_points.txt").write_text(f"[holdfast.queue_backends]\n{points}")


def test_an_installed_package_brings_a_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its metadata alone, and a run goes over it: it is found, started, used and stopped."""
    text = """
from holdfast.log.memory import MemoryBackend

made = []

class Club(MemoryBackend):
    def __init__(self, url):
        super().__init__(url)
        self.url, self.is_on, self.was_on = url, False, False
        made.append(self)

    def start(self):
        self.is_on = self.was_on = True

    def stop(self):
        self.is_on = False

def wrong(url):
    return "no backend"
"""
    install(tmp_path, "holdfast_club", text, {"club": "Club", "clubs": "wrong"})
    with pytest.raises(DependencyMissing):
        opening.open_backend("club://x/y?z=1")
    monkeypatch.syspath_prepend(tmp_path)
    backend = opening.open_backend("club://x/y?z=1")
    assert vars(backend)["url"] == "club://x/y?z=1"
    with pytest.raises(UsageInvalid, match="holdfast_club:wrong made str"):
        opening.open_backend("clubs://x")
    with pytest.raises(DependencyMissing):
        opening.open_backend("unknown://x")
    run_toy(tmp_path, config=replace(SMALL, log="club://run"))
    assert answers_in(tmp_path / "out") == expected()
    used = vars(sys.modules["holdfast_club"])["made"][-1]
    assert (used.url, used.was_on, used.is_on) == ("club://run", True, False)
    assert len(used._topics) == 2


def test_a_store_that_was_given_is_not_closed() -> None:
    store = SqliteStore.memory()
    backend = EmbeddedBackend(store)
    backend.start()
    backend.create_topic("t")
    backend.stop()
    assert store.list_topics() == {"t": 1}
    with pytest.raises(UsageInvalid):
        backend.endpoint()
    store.close()


def test_the_facade_does_what_the_backend_does() -> None:
    """Every method of the contract has its twin; a waiting fetch does not stop the loop."""
    backend = MemoryBackend()
    queue = AsyncBackend(backend)

    async def talk() -> None:
        await queue.start()
        await queue.create_topic("t", partitions=2)
        assert await queue.partitions("t") == 2
        waiting = asyncio.create_task(queue.fetch("t", Offset(0), timeout_s=30))
        await asyncio.sleep(0)
        assert await queue.produce("t", Record(b"a")) == 0
        found = await waiting
        assert found is not None
        assert found.record.value == b"a"
        assert await queue.produce_batch("t", [Record(b"b"), Record(b"c")]) == [1, 2]
        await queue.register_group("t", "g")
        await queue.commit_offset("t", "g", Offset(1))
        position = Position("t", 0, "g", Offset(2))
        assert await queue.produce_and_commit("t", [Record(b"d")], [position], partition=1) == [0]
        assert await queue.get_committed_offset("t", "g") == 2
        assert await queue.get_min_committed_offset("t") == 2
        assert await queue.truncate_before("t", Offset(9)) == 2
        assert await queue.bounds("t") == (2, 3)
        assert [s.offset for s in await queue.fetch_batch("t", Offset(0), count=9)] == [2]
        await queue.stop()

    asyncio.run(talk())
    assert queue.capabilities == backend.capabilities
    assert queue.endpoint() == backend.endpoint()
    public = {name for name in vars(QueueBackend) if not name.startswith("_")}
    assert public <= set(dir(queue))
