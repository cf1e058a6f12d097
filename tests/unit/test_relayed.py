"""The store's topics over a log elsewhere: whatever that log does, each record comes once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.crash.workloads import SMALL, expected
from tests.unit.plain_runs import answers_in, run_toy

from holdfast._base.ids import Offset
from holdfast.engine.state import look
from holdfast.errors import Damaged, Fenced, LogEmptied, LogUnreachable, UsageInvalid
from holdfast.log.contract import Position, Record, StoredRecord
from holdfast.log.embedded import EmbeddedBackend
from holdfast.log.memory import MemoryBackend
from holdfast.log.relayed import NUMBER_HEADER, READER_GROUP, RelayedBackend
from holdfast.store.sqlite import SqliteStore

NAME = "one"
REMOTE = f"{NAME}/t"


def filled(count: int) -> SqliteStore:
    store = SqliteStore.memory()
    store.create_topic("t", 1)
    store.append_records("t", 0, [Record(b"v%d" % n, f"id{n}") for n in range(count)])
    return store


def over(store: SqliteStore, remote: MemoryBackend) -> RelayedBackend:
    return RelayedBackend(store, remote, name=NAME, batch_size=2, fetch_timeout_s=0.001)


def taken(log: RelayedBackend, offset: int = 0, count: int = 100) -> list[int]:
    found = log.fetch_batch("t", Offset(offset), count=count)
    assert [one.record.value for one in found] == [b"v%d" % one.offset for one in found]
    return [one.offset for one in found]


def numbers(remote: MemoryBackend) -> list[int]:
    """What the log elsewhere holds, by the numbers of the outbox."""
    found = remote.fetch_batch(REMOTE, Offset(0), count=1000)
    return [int(one.record.headers[NUMBER_HEADER]) for one in found]


class Forgetful(MemoryBackend):
    """A broker that keeps no ids: what is sent twice is there twice, as on Kafka."""

    def produce_batch(
        self, topic: str, records: Sequence[Record], *, partition: int = 0
    ) -> list[Offset]:
        known = [
            one._replace(record_id="", headers={**one.headers, "id": one.record_id})
            for one in records
        ]
        return super().produce_batch(topic, known, partition=partition)

    def fetch_batch(
        self,
        topic: str,
        offset: Offset,
        *,
        count: int,
        partition: int = 0,
        timeout_s: float = 0.0,
    ) -> list[StoredRecord]:
        found = super().fetch_batch(
            topic, offset, count=count, partition=partition, timeout_s=timeout_s
        )
        return [
            one._replace(record=one.record._replace(record_id=one.record.headers["id"]))
            for one in found
        ]


def test_every_record_travels_over_the_log_elsewhere() -> None:
    remote = Forgetful()
    log = over(filled(5), remote)
    assert taken(log) == [0, 1, 2, 3, 4]
    assert numbers(remote) == [0, 1, 2, 3, 4]
    assert taken(log, 5) == []


def test_a_second_process_reads_what_the_first_sent_and_sends_it_not_again() -> None:
    store, remote = filled(5), Forgetful()
    assert taken(over(store, remote), 0, 3) == [0, 1, 2]
    log = over(store, remote)
    assert taken(log) == [0, 1, 2, 3, 4]
    assert numbers(remote) == [0, 1, 2, 3, 4]


def test_a_record_that_was_sent_twice_comes_once() -> None:
    """As after a crash between the broker's confirmation and ours, or by a zombie."""
    store, remote = filled(6), Forgetful()
    zombie = over(store, remote)
    log = over(store, remote)
    assert taken(log, 0, 4) == [0, 1, 2, 3]
    zombie._cursor("t", 0).expected = 1
    zombie._send(REMOTE, 0, store.read_records("t", 0, Offset(1), 4))
    assert numbers(remote) == [0, 1, 2, 3, 1, 2, 3, 4]
    assert taken(log, 4) == [4, 5]
    assert numbers(remote) == [0, 1, 2, 3, 1, 2, 3, 4, 5]


def test_an_owner_that_is_one_no_more_changes_nothing() -> None:
    store, remote = filled(3), Forgetful()
    fence = store.take_lease("t-0", "first")
    log = RelayedBackend(store, remote, name=NAME, fetch_timeout_s=0.001, fence=fence)
    log.commit_offset("t", "g", Offset(1))
    store.take_lease("t-0", "second")
    with pytest.raises(Fenced):
        log.commit_offset("t", "g", Offset(2))
    with pytest.raises(Fenced):
        log.produce("t", Record(b"late"))
    assert (log.get_committed_offset("t", "g"), log.bounds("t")) == (1, (0, 3))


def test_a_log_that_lost_everything_is_filled_again() -> None:
    store = filled(6)
    assert taken(over(store, Forgetful()), 0, 4) == [0, 1, 2, 3]
    empty = Forgetful()
    assert taken(over(store, empty), 2) == [2, 3, 4, 5]
    assert numbers(empty) == [2, 3, 4, 5]


def test_a_log_that_lost_some_is_filled_up() -> None:
    """A gap is passed over to the end; then what is missing is sent again."""
    store, remote = filled(6), Forgetful()
    remote.create_topic(REMOTE)
    over(store, remote)._send(REMOTE, 0, store.read_records("t", 0, Offset(3), 3))
    assert taken(over(store, remote)) == [0, 1, 2, 3, 4, 5]
    assert sorted(set(numbers(remote))) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("first", [1, 3])
def test_what_an_idempotent_log_holds_further_up_is_found_there(first: int) -> None:
    """It takes no id twice, so a sending does not bring it to where the reader is."""
    store, remote = filled(6), MemoryBackend()
    remote.create_topic(REMOTE)
    over(store, remote)._send(REMOTE, 0, store.read_records("t", 0, Offset(first), 6 - first))
    assert taken(over(store, remote)) == [0, 1, 2, 3, 4, 5]
    assert sorted(numbers(remote)) == [0, 1, 2, 3, 4, 5]


def test_a_store_from_a_backup_finds_what_an_idempotent_log_still_holds() -> None:
    """The log was told to begin behind what the older store wants once more."""
    store, remote = filled(4), MemoryBackend()
    first = over(store, remote)
    assert taken(first) == [0, 1, 2, 3]
    remote.register_group(REMOTE, "somebody else")
    first.commit_offset("t", "g", Offset(4))
    assert remote.get_committed_offset(REMOTE, READER_GROUP) == 4
    assert numbers(remote) == [0, 1, 2, 3]
    assert taken(over(filled(4), remote)) == [0, 1, 2, 3]


def test_a_log_that_begins_anew_under_its_reader_is_filled_again() -> None:
    """As a broker in memory that was killed and started again."""
    log = over(filled(32), Forgetful())
    assert taken(log, 0, 30) == [*range(30)]
    log._remote = Forgetful()
    log._remote.create_topic(REMOTE)
    assert taken(log, 30) == [30, 31]


class Restarted(Forgetful):
    """A broker in memory that ends at one of its next calls and is back with nothing."""

    calls_left = -1

    def _count(self) -> None:
        self.calls_left -= 1
        if self.calls_left == 0:
            self._topics.clear()
            raise LogEmptied(log="there")

    def produce_batch(
        self, topic: str, records: Sequence[Record], *, partition: int = 0
    ) -> list[Offset]:
        self._count()
        return super().produce_batch(topic, records, partition=partition)

    def bounds(self, topic: str, *, partition: int = 0) -> tuple[Offset, Offset]:
        self._count()
        return super().bounds(topic, partition=partition)

    def commit_offset(self, topic: str, group: str, offset: Offset, *, partition: int = 0) -> None:
        self._count()
        super().commit_offset(topic, group, offset, partition=partition)


@pytest.mark.parametrize("calls", range(1, 12))
def test_a_log_that_is_started_again_with_nothing_is_filled_again(calls: int) -> None:
    """At whichever call: what is read comes once, and what is committed stays so."""
    remote = Restarted()
    store = filled(9)
    log = over(store, remote)
    log.register_group("t", "g")
    remote.calls_left = calls
    for place in range(0, 9, 3):
        assert taken(log, place, 3) == [place, place + 1, place + 2]
        log.commit_offset("t", "g", Offset(place + 3))
    remote.calls_left = -1
    assert log.get_committed_offset("t", "g") == 9
    assert taken(log, 0, 9) == list(range(9))


def test_a_log_that_loses_its_topic_at_every_call_is_not_asked_for_ever() -> None:
    class Hopeless(Restarted):
        def _count(self) -> None:
            self.calls_left = 1
            super()._count()

    log = over(filled(2), Hopeless())
    with pytest.raises(LogEmptied):
        taken(log, 0, 2)


def test_a_hint_beyond_what_is_wanted_is_no_harm() -> None:
    store, remote = filled(4), Forgetful()
    first = over(store, remote)
    assert taken(first, 0, 2) == [0, 1]
    first.commit_offset("t", "g", Offset(2))
    assert taken(first, 2, 2) == [2, 3]
    assert remote.get_committed_offset(REMOTE, READER_GROUP) == 2
    assert taken(over(store, remote), 0, 2) == [0, 1]  # behind the hint: sent a second time


def test_the_log_is_told_what_was_committed_not_what_was_read() -> None:
    """What was read and not committed may be lost with its reader, so the log keeps it."""
    store, remote = filled(6), Forgetful()
    log = over(store, remote)
    log.register_group("t", "slow")
    assert taken(log, 0, 4) == [0, 1, 2, 3]
    assert taken(log, 4, 2) == [4, 5]
    assert (remote.get_committed_offset(REMOTE, READER_GROUP), numbers(remote)) == (0, [*range(6)])
    log.commit_offset("t", "g", Offset(6))
    assert (remote.get_committed_offset(REMOTE, READER_GROUP), numbers(remote)) == (0, [*range(6)])
    log.commit_offset("t", "slow", Offset(6))
    assert (remote.get_committed_offset(REMOTE, READER_GROUP), numbers(remote)) == (6, [])


def test_the_log_is_told_once_a_batch_at_most_until_all_is_done() -> None:
    """A reader that commits each record does not cost the broker two requests each."""
    told: list[int] = []

    class Counting(Forgetful):
        def commit_offset(
            self, topic: str, group: str, offset: Offset, *, partition: int = 0
        ) -> None:
            told.append(offset)
            super().commit_offset(topic, group, offset, partition=partition)

    log = over(filled(7), Counting())
    assert taken(log) == [*range(7)]
    for done in range(1, 8):
        log.commit_offset("t", "g", Offset(done))
    assert told == [2, 4, 6, 7]
    store = filled(1)
    log = over(store, Counting())
    assert taken(log) == [0]
    store.create_topic("out", 1)
    log.produce_and_commit("out", [Record(b"x")], [Position("t", 0, "g", Offset(1))])
    assert told == [2, 4, 6, 7, 1]


def test_what_was_read_and_not_taken_is_read_again_from_there() -> None:
    """As the engine does: it reads many references, and plans those that make one batch."""
    asked: list[int] = []

    class Watched(Forgetful):
        def fetch_batch(
            self,
            topic: str,
            offset: Offset,
            *,
            count: int,
            partition: int = 0,
            timeout_s: float = 0.0,
        ) -> list[StoredRecord]:
            asked.append(offset)
            assert count == 2
            return super().fetch_batch(
                topic, offset, count=count, partition=partition, timeout_s=timeout_s
            )

    log = over(filled(6), Watched())
    assert taken(log) == [*range(6)]
    asked.clear()
    assert taken(log, 3) == [3, 4, 5]
    assert asked == [3, 5]


def test_truncation_drops_there_too_once_all_was_read() -> None:
    """By another process too, for which a crash left everything there."""
    store, remote = filled(4), Forgetful()
    assert taken(over(store, remote)) == [0, 1, 2, 3]
    store.advance_offset("t", 0, "g", Offset(3))
    later = over(store, remote)
    assert later.truncate_before("t", Offset(4)) == 3
    assert numbers(remote) == [0, 1, 2, 3]
    store.advance_offset("t", 0, "g", Offset(4))
    assert later.truncate_before("t", Offset(4)) == 4
    assert numbers(remote) == []
    assert remote.bounds(REMOTE) == (4, 4)


def test_truncation_makes_no_topic_on_a_log_that_never_had_it() -> None:
    store, remote = filled(1), MemoryBackend()
    store.advance_offset("t", 0, "g", Offset(1))
    assert over(store, remote).truncate_before("t", Offset(1)) == 1
    with pytest.raises(UsageInvalid):
        remote.partitions(REMOTE)


def test_what_others_put_there_is_passed_over() -> None:
    store, remote = filled(2), MemoryBackend()
    remote.create_topic(REMOTE)
    remote.produce(REMOTE, Record(b"noise"))
    remote.produce(REMOTE, Record(b"noise", headers={NUMBER_HEADER: "-3"}))
    remote.produce(REMOTE, Record(b"noise", headers={NUMBER_HEADER: "99"}))
    assert taken(over(store, remote)) == [0, 1]


def test_what_was_changed_on_the_way_is_damage() -> None:
    """A reference says where data is: a broker must not be able to say something else."""
    store, remote = filled(2), MemoryBackend()
    remote.create_topic(REMOTE)
    remote.produce(REMOTE, Record(b"evil", "id0", headers={NUMBER_HEADER: "0"}))
    with pytest.raises(Damaged):
        taken(over(store, remote))


def test_a_log_that_confirms_and_forgets_is_named() -> None:
    class Liar(MemoryBackend):
        def produce_batch(
            self, topic: str, records: Sequence[Record], *, partition: int = 0
        ) -> list[Offset]:
            return [Offset(n) for n in range(len(records))]

    with pytest.raises(Damaged):
        taken(over(filled(1), Liar()))


def test_a_log_that_fails_changes_nothing() -> None:
    class Away(MemoryBackend):
        def produce_batch(
            self, topic: str, records: Sequence[Record], *, partition: int = 0
        ) -> list[Offset]:
            raise LogUnreachable(log="away", error="it is away")

    store = filled(3)
    with pytest.raises(LogUnreachable):
        taken(over(store, Away()))
    assert taken(over(store, Forgetful())) == [0, 1, 2]


def test_two_stores_on_one_log_are_apart() -> None:
    remote = MemoryBackend()
    one = RelayedBackend(filled(2), remote, name="one")
    store = SqliteStore.memory()
    store.create_topic("t", 1)
    store.append_records("t", 0, [Record(b"other", "id0")])
    two = RelayedBackend(store, remote, name="two")
    assert taken(one) == [0, 1]
    (found,) = two.fetch_batch("t", Offset(0), count=9)
    assert found.record.value == b"other"


def test_a_run_gives_the_same_answers_over_any_log(tmp_path: Path) -> None:
    """Stopped in the middle and resumed over another log, too; the references did travel."""
    url = (tmp_path / "elsewhere.db").as_uri()

    class Cut(Exception):
        pass

    def cut(work: object) -> None:
        if "segment-2" in str(getattr(work, "directory", "")):
            raise Cut

    with pytest.raises(Cut):
        run_toy(tmp_path, config=replace(SMALL, log=url), before=cut)
    run_toy(tmp_path, config=replace(SMALL, log="memory://another"))
    assert answers_in(tmp_path / "out") == expected()
    with look(tmp_path / "state") as (_, store):
        name, (run,) = store.store_id(), store.list_runs()
    remote = EmbeddedBackend(tmp_path / "elsewhere.db")
    remote.start()
    assert remote.bounds(f"{name}/run/{run.run_id}/segment-1")[1] > 0
    remote.stop()


def test_a_log_that_nobody_knows_is_refused_before_anything(tmp_path: Path) -> None:
    with pytest.raises(UsageInvalid):
        run_toy(tmp_path, config=replace(SMALL, log="nothing"))
    with look(tmp_path / "state") as (_, store):
        assert store.list_runs() == []
