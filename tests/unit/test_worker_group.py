"""A group shares partitions: who joins gets some, who leaves or stands still loses all."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast._base.ids import START
from holdfast.errors import Fenced, StorageFailed, UsageInvalid
from holdfast.log.contract import Record
from holdfast.log.embedded import EmbeddedBackend
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.clock import VirtualClock
from holdfast.worker import persistence
from holdfast.worker.group import Member, Place, Roll, share_of
from holdfast.worker.loop import Worker
from holdfast.worker.messages import Chunk, End, decode, encode
from holdfast.worker.ports import LogInbox, LogOutbox
from holdfast.worker.roles import NoState, Output, Part

PARTITIONS = 3
PATIENCE_S = 8.0


class Pass:
    """Sends on what comes."""

    outputs, first = (Output("out", "passed"),), ()

    def start(self) -> NoState:
        return NoState()

    def apply(self, state: NoState, chunk: Chunk) -> list[Part]:
        return [Part("out", "passed", chunk.payload)]

    def results(self, state: NoState) -> list[Part]:
        return []


class House:
    """A store, a topic, and members in one process: locks of files do not care."""

    def __init__(self, root: Path) -> None:
        self.root, self.clock = root, VirtualClock()
        self.store = SqliteStore.open(root / "store.sqlite3")
        self.log = EmbeddedBackend(self.store)
        self.log.create_topic("in", partitions=PARTITIONS)
        self.log.create_topic("out", partitions=PARTITIONS)
        self.sent = 0
        self.members: list[Member] = []

    def join(self, topic: str = "in") -> Member:
        member = Member(
            self.store,
            self.log,
            self.make,
            topic=topic,
            group="passers",
            directory=self.root / "group",
            patience_s=PATIENCE_S,
            clock=self.clock,
        )
        self.members.append(member)
        return member

    def make(self, place: Place) -> Worker[NoState]:
        log = EmbeddedBackend(self.store, fence=place.fence)
        return Worker(
            f"passers-{place.partition}",
            Pass(),
            place.persistence,
            LogInbox(log, "in", "passers", partition=place.partition),
            {"out": LogOutbox(log, "out", partition=place.partition)},
            senders={"t": ["s"]},
        )

    def feed(self, count: int) -> None:
        """Append chunks in turn to all partitions."""
        for number in range(self.sent, self.sent + count):
            partition, ordinal = number % PARTITIONS, number // PARTITIONS + 1
            chunk = Chunk("ada", "t", "s", ordinal, str(number).encode())
            record = Record(encode(chunk), record_id=chunk.message_id)
            self.log.produce("in", record, partition=partition)
        self.sent += count

    def end(self) -> None:
        for partition in range(PARTITIONS):
            total = len(range(partition, self.sent, PARTITIONS))
            self.log.produce("in", Record(encode(End("ada", "t", total, "s"))), partition=partition)

    def turn(self, *members: Member) -> None:
        """Let members step until none has anything to do; time goes on by a look."""
        for _ in range(4):
            self.clock.advance(PATIENCE_S / 40)
            for member in members:
                while member.step():
                    pass

    def passed(self) -> Counter[int]:
        found = Counter[int]()
        for partition in range(PARTITIONS):
            for one in self.log.fetch_batch("out", START, count=10_000, partition=partition):
                message = decode(one.record.value)
                if isinstance(message, Chunk):
                    found[int(message.payload)] += 1
        return found

    def check_all_passed_once(self) -> None:
        assert self.passed() == Counter(range(self.sent))


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    for member in house.members:
        member.close()
    house.store.close()


def test_shares() -> None:
    assert [share_of(4, members) for members in (0, 1, 2, 3, 4, 5)] == [4, 4, 2, 2, 1, 1]


def test_one_alone_has_all_and_who_joins_gets_some(house: House) -> None:
    first = house.join()
    house.feed(10)
    house.turn(first)
    assert first.held == [0, 1, 2]
    second = house.join()
    house.feed(10)
    house.turn(first, second)
    assert (first.held, second.held) == ([0, 1], [2])
    third, fourth = house.join(), house.join()
    house.feed(10)
    house.turn(first, second, third, fourth)
    assert [len(one.held) for one in house.members] == [1, 1, 1, 0]
    house.check_all_passed_once()


def test_who_leaves_is_followed_at_once(house: House) -> None:
    first, second = house.join(), house.join()
    house.feed(20)
    house.turn(first, second)
    first.close()
    house.feed(20)
    house.turn(second)
    assert second.held == [0, 1, 2]
    house.end()
    house.turn(second)
    house.check_all_passed_once()


def test_who_stands_still_is_waited_for_and_then_fenced(house: House) -> None:
    """Its journal, its acks and its sends change nothing any more."""
    first, second = house.join(), house.join()
    house.feed(6)
    house.turn(first, second)
    stopped = first.held
    assert stopped
    house.feed(6)
    for _ in range(3):
        house.clock.advance(PATIENCE_S * 0.6)
        second.step()
        if len(second.held) < PARTITIONS:
            assert second.held
    house.clock.advance(PATIENCE_S)
    second.step()
    assert second.held == [0, 1, 2]
    while second.step():
        pass
    house.check_all_passed_once()
    house.feed(6)
    # It wakes up, and is told at its first effect; then it stands by.
    first._look_at_s = house.clock.monotonic_s() + 1
    assert first.held == stopped
    first.step()
    assert first.held == []
    house.clock.advance(2)
    house.turn(first, second)
    house.check_all_passed_once()


def test_who_is_fenced_by_a_missing_file_stands_by(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor removed its directory: a rewrite of its journal meets that before the store
    says Fenced.
    """
    first = house.join()
    house.feed(90)
    house.turn(first)
    second = house.join()
    for _ in range(3):
        house.clock.advance(PATIENCE_S * 0.6)
        second.step()
    house.clock.advance(PATIENCE_S)
    second.step()
    assert second.held == [0, 1, 2]
    house.feed(6)
    first._look_at_s = house.clock.monotonic_s() + 1
    monkeypatch.setattr(persistence, "COMPACT_BYTES_MIN", 0)
    assert first.held == [0, 1, 2]
    first.step()
    assert first.held == []
    house.clock.advance(2)
    house.turn(first, second)
    house.check_all_passed_once()


def lose(root: Path, place: Place) -> None:
    """Remove the journals, then write so much that the place's is to be made again."""
    for home in root.glob(f"*/partition-{place.partition}"):
        shutil.rmtree(home)
    for client in ("ada", "bob", "cid"):
        place.persistence.commit_processing_chunk(Chunk(client, "t", "s", 1, b"x" * 500))
        place.persistence.finish(client)


@pytest.mark.parametrize("fenced", [True, False])
def test_a_missing_file_is_fenced_only_if_the_lease_is_another_s(
    house: House, monkeypatch: pytest.MonkeyPatch, fenced: bool
) -> None:
    monkeypatch.setattr(persistence, "COMPACT_BYTES_MIN", 0)
    taken: list[Place] = []

    def make(place: Place) -> Worker[NoState]:
        taken.append(place)
        if fenced:
            house.store.take_lease(place.fence.resource, "another")
        lose(house.root / "group", place)
        return house.make(place)

    house.make, kept = make, house.make  # type: ignore[method-assign]
    member = house.join()
    house.make = kept  # type: ignore[method-assign]
    if fenced:
        member.step()
        assert member.held == []
        assert len(taken) == PARTITIONS
    else:
        with pytest.raises(StorageFailed):
            member.step()


@pytest.mark.parametrize("error", [ValueError("a user's"), KeyboardInterrupt()])
def test_who_cannot_make_a_worker_holds_nothing_of_its_partition(
    house: House, error: BaseException
) -> None:
    """Neither journal nor lease, so that nobody waits for one who does not work."""
    taken: list[Place] = []

    def make(place: Place) -> Worker[NoState]:
        taken.append(place)
        raise error

    house.make, kept = make, house.make  # type: ignore[method-assign]
    first = house.join()
    house.make = kept  # type: ignore[method-assign]
    with pytest.raises(type(error)):
        first.step()
    assert first.held == []
    with pytest.raises(StorageFailed):
        taken[0].persistence.finish("ada")
    second = house.join()
    second.step()
    assert second.held == [0, 1]


def test_one_group_name_on_two_topics_is_two_groups(house: House) -> None:
    """Each has leases, journals and members of its own, in one directory."""
    house.log.create_topic("other", partitions=PARTITIONS)
    first, second = house.join(), house.join("other")
    house.feed(9)
    house.turn(first, second)
    assert first.held == second.held == [0, 1, 2]
    house.check_all_passed_once()


def test_a_former_owner_can_neither_send_nor_ack(house: House) -> None:
    fence = house.store.take_lease("passers-0", "one")
    old = EmbeddedBackend(house.store, fence=fence)
    old.produce("in", Record(b"x"))
    house.store.take_lease("passers-0", "two")
    with pytest.raises(Fenced):
        old.produce("in", Record(b"y"))
    with pytest.raises(Fenced):
        old.commit_offset("in", "passers", START)
    assert old.bounds("in") == (0, 1)


def test_a_journal_goes_with_its_partition(house: House) -> None:
    """One directory is left, that of the newest epoch."""
    for _ in range(3):
        member = house.join()
        house.feed(7)
        house.turn(member)
        member.close()
    homes = sorted((house.root / "group").glob("*/partition-?"))
    assert [[path.name for path in home.iterdir()] for home in homes] == [["epoch-3"]] * 3
    house.check_all_passed_once()


def test_a_half_made_journal_is_not_inherited(house: House) -> None:
    """A crash before the new journal has its name: the one before it is the newest."""
    member = house.join()
    house.feed(7)
    house.turn(member)
    member.close()
    fence = house.store.take_lease(member.resource(0), "died at once")
    (home,) = (house.root / "group").glob("*/partition-0")
    (home / f"epoch-{fence.epoch}").mkdir()
    house.feed(7)
    other = house.join()
    house.turn(other)
    house.end()
    house.turn(other)
    house.check_all_passed_once()


def test_a_roll_counts_the_living(tmp_path: Path) -> None:
    roll = Roll(tmp_path)
    (tmp_path / "dead").touch()
    other = Roll(tmp_path)
    assert roll.count() == other.count() == 2
    other.close()
    assert roll.count() == 1
    assert [path.name for path in tmp_path.iterdir()] == [roll._path.name]
    roll.close()


def test_a_group_without_a_name_is_refused(house: House) -> None:
    with pytest.raises(UsageInvalid):
        Member(
            house.store, house.log, house.make, topic="in", group="../x", directory=house.root / "g"
        )
