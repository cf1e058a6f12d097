"""Who takes over when: by the lock at once, by patience from one that is stopped, never from one
that lives."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.mounts import small_disk

from holdfast._base.ids import Epoch
from holdfast.errors import DiskFull, Fenced, HoldfastError
from holdfast.store.leases import (
    WITHOUT_LOCK,
    Keeper,
    Sight,
    beating,
    look_again,
    may_take,
    owner_pid,
)
from holdfast.store.rows import Lease
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.clock import VirtualClock

PATIENCE_S = 10.0

Make = Callable[[str], Keeper]


@pytest.fixture
def store() -> Iterator[SqliteStore]:
    store = SqliteStore.memory()
    yield store
    store.close()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def make(store: SqliteStore, clock: VirtualClock, tmp_path: Path) -> Iterator[Make]:
    made: list[Keeper] = []

    def one(owner: str, patience_s: float = PATIENCE_S) -> Keeper:
        keeper = Keeper(
            store, "r", directory=tmp_path, owner=owner, clock=clock, patience_s=patience_s
        )
        made.append(keeper)
        return keeper

    yield one
    for keeper in made:
        keeper.close()


def lease(epoch: int = 1, beat: int = 0, owner: str = "pid 7") -> Lease:
    return Lease("r", Epoch(epoch), owner, beat)


@pytest.mark.parametrize(
    ("seen", "has_lock", "marked", "waited_s", "takes"),
    [
        (None, True, None, 0.0, True),
        (None, False, None, 0.0, False),
        (None, False, None, 10.0, True),
        (lease(), True, None, 0.0, True),
        (lease(), False, None, 9.9, False),
        (lease(), False, None, 10.0, True),
        (lease(epoch=3, owner="pid 7" + WITHOUT_LOCK), True, None, 9.9, False),
        (lease(epoch=3, owner="pid 7" + WITHOUT_LOCK), True, 2, 9.9, False),
        (lease(epoch=3, owner="pid 7" + WITHOUT_LOCK), True, 3, 0.0, True),
        (lease(epoch=3, owner="pid 7" + WITHOUT_LOCK), True, None, 10.0, True),
    ],
)
def test_when_a_standby_takes_over(
    seen: Lease | None, has_lock: bool, marked: int | None, waited_s: float, takes: bool
) -> None:
    sight = Sight(seen, since_s=100.0)
    now_s = 100.0 + waited_s
    found = may_take(sight, marked=marked, has_lock=has_lock, now_s=now_s, patience_s=10.0)
    assert found is takes


def test_a_sight_is_as_old_as_the_last_change() -> None:
    first = look_again(None, lease(), 5.0)
    assert first == Sight(lease(), 5.0)
    assert look_again(first, lease(), 9.0) is first
    assert look_again(first, lease(beat=1), 9.0) == Sight(lease(beat=1), 9.0)


def test_the_pid_of_an_owner() -> None:
    assert owner_pid(lease()) == 7
    assert owner_pid(lease(owner="pid 7" + WITHOUT_LOCK)) == 7
    assert owner_pid(lease(owner="somebody")) is None


def test_one_that_lives_is_left_alone(make: Make, clock: VirtualClock) -> None:
    """However long the standby waits, and however often it asks."""
    owner, standby = make("pid 1"), make("pid 2")
    assert owner.try_take() is not None
    for _ in range(30):
        owner.beat()
        assert standby.try_take() is None
        clock.advance(PATIENCE_S * 0.9)


def test_a_dead_one_is_replaced_at_once(make: Make, store: SqliteStore) -> None:
    """The kernel drops a dead process's lock, as `close` does here."""
    owner, standby = make("pid 1"), make("pid 2")
    first = owner.try_take()
    assert standby.try_take() is None
    owner.close()
    second = standby.try_take()
    assert first is not None
    assert second is not None
    assert second.epoch == first.epoch + 1
    with pytest.raises(Fenced):
        store.beat_lease(first)


def test_a_stopped_one_is_replaced_after_patience_and_fenced_when_it_wakes(
    make: Make, clock: VirtualClock
) -> None:
    owner, standby = make("pid 1"), make("pid 2")
    assert owner.try_take() is not None
    assert standby.try_take() is None
    clock.advance(PATIENCE_S - 0.1)
    assert standby.try_take() is None
    clock.advance(0.1)
    assert standby.try_take() is not None
    with pytest.raises(Fenced):
        owner.beat()
    standby.beat()


def test_who_acts_without_the_lock_is_not_taken_for_dead(make: Make, clock: VirtualClock) -> None:
    """The stopped owner is killed at last: a third gets its lock, and leaves the second alone."""
    stopped, second, third = make("pid 1"), make("pid 2"), make("pid 3")
    stopped.try_take()
    second.try_take()
    clock.advance(PATIENCE_S)
    assert second.try_take() is not None
    stopped.close()
    assert third.try_take() is None
    second.beat()
    clock.advance(PATIENCE_S - 1)
    assert third.try_take() is None
    second.close()
    assert third.try_take() is not None, "the second got the lock in its beat, and is dead"


def test_of_two_that_lost_patience_one_takes_over(make: Make, clock: VirtualClock) -> None:
    stopped, second, third = make("pid 1"), make("pid 2"), make("pid 3")
    stopped.try_take()
    second.try_take()
    third.try_take()
    clock.advance(PATIENCE_S)
    assert second.try_take() is not None
    assert third.try_take() is None
    second.beat()


def test_a_full_disk_is_no_reason_to_stop_until_somebody_else_took_over(
    clock: VirtualClock, tmp_path: Path
) -> None:
    """Beats are refused while it is full, and go on after it."""
    found: list[HoldfastError] = []
    refused, beaten, told = threading.Event(), threading.Event(), threading.Event()

    class Watched(Keeper):
        def beat(self) -> None:
            try:
                super().beat()
            except DiskFull:
                beaten.clear()
                refused.set()
                raise
            beaten.set()

    def lost(error: HoldfastError) -> None:
        found.append(error)
        told.set()

    with small_disk(tmp_path / "disk", 1024) as disk:
        store = SqliteStore.open(disk.path / "store.sqlite3")
        keeper = Watched(store, "r", directory=tmp_path, owner="pid 1", clock=clock, patience_s=0.1)
        assert keeper.try_take() is not None
        (disk.path / "ballast").write_bytes(bytes(shutil.disk_usage(disk.path).free))
        with beating(keeper, lost, lambda: False):
            assert refused.wait(10)
            disk.resize(2048)
            assert beaten.wait(10)
            assert found == []
            store.take_lease("r", "another")
            assert told.wait(10)
        keeper.close()
        store.close()
    assert [type(error) for error in found] == [Fenced]


def test_a_beat_that_is_refused_says_so_once(
    store: SqliteStore, clock: VirtualClock, tmp_path: Path
) -> None:
    keeper = Keeper(store, "r", directory=tmp_path, owner="pid 1", clock=clock, patience_s=0.1)
    found: list[HoldfastError] = []
    told = threading.Event()

    def lost(error: HoldfastError) -> None:
        found.append(error)
        told.set()

    fence = keeper.try_take()
    assert fence is not None
    with beating(keeper, lost, lambda: False):
        before = store.read_lease("r")
        assert before is not None
        store.take_lease("r", "another")
        assert told.wait(10)
    keeper.close()
    assert [type(error) for error in found] == [Fenced]


def test_one_that_hangs_is_given_no_beat(
    store: SqliteStore, clock: VirtualClock, tmp_path: Path
) -> None:
    """Its thread lives and could beat; whoever stands by sees the lease stand still."""
    looks: list[None] = []
    looked = threading.Event()

    def hangs() -> bool:
        looks.append(None)
        if len(looks) > 2:
            looked.set()
        return True

    keeper = Keeper(store, "r", directory=tmp_path, owner="pid 1", clock=clock, patience_s=0.1)
    assert keeper.try_take() is not None
    before = store.read_lease("r")
    with beating(keeper, lambda error: None, hangs):
        assert looked.wait(10)
        assert store.read_lease("r") == before
    keeper.close()
