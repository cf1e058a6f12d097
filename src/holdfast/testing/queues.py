"""The contract suite of queue backends: a core, and a part for each capability.

A check takes `connect`, which opens the same log each time it is called and returns a started
backend; the log is empty at first. For a backend in memory it may return the same object.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from holdfast._base.ids import Offset
from holdfast.errors import UsageInvalid
from holdfast.log.contract import Capability, Position, QueueBackend, Record
from holdfast.log.open import open_backend
from holdfast.testing.expect import WAIT_S, error_of, run_threads

Connect = Callable[[], QueueBackend]
Check = Callable[[Connect], None]

GLANCE_S = 0.02
"""A fetch that must find nothing waits this long for it."""


def values(backend: QueueBackend, topic: str = "t", partition: int = 0) -> list[bytes]:
    """Return the values of all records held."""
    first, free = backend.bounds(topic, partition=partition)
    found = backend.fetch_batch(topic, first, count=free - first + 1, partition=partition)
    assert [stored.offset for stored in found] == list(range(first, free)), "offsets have gaps"
    return [stored.record.value for stored in found]


def opened(connect: Connect, *, partitions: int = 1, count: int = 0) -> QueueBackend:
    """Return a backend with a topic `t`, and `count` records v0, v1, ... in partition 0."""
    backend = connect()
    backend.create_topic("t", partitions=partitions)
    if count:
        backend.produce_batch("t", [Record(b"v%d" % number) for number in range(count)])
    return backend


def check_offsets_count_from_zero(connect: Connect) -> None:
    """Offsets are 0, 1, 2, ... over single and batched appends."""
    backend = opened(connect)
    assert backend.bounds("t") == (0, 0)
    assert backend.produce("t", Record(b"a")) == 0
    assert backend.produce_batch("t", [Record(b"b"), Record(b"c")]) == [1, 2]
    assert backend.produce_batch("t", []) == []
    assert backend.produce("t", Record(b"d")) == 3
    assert backend.bounds("t") == (0, 4)
    assert values(backend) == [b"a", b"b", b"c", b"d"]


def check_records_come_back_whole(connect: Connect) -> None:
    """Value, id, key and headers return as they were given, whatever their bytes."""
    backend = opened(connect)
    given = [
        Record(bytes(range(256)), "name", b"\x00key", {"b": "2", "a": "\u00e9"}),
        Record(b""),
        Record(b"x" * 100_000, key=b"k"),
    ]
    backend.produce_batch("t", given)
    found = backend.fetch_batch("t", Offset(0), count=10)
    assert [stored.record for stored in found] == given
    assert [(stored.topic, stored.partition) for stored in found] == [("t", 0)] * 3
    assert isinstance(found[0].record.value, bytes)
    assert hash(found[1].offset) == hash(1)


def check_fetch_starts_anywhere(connect: Connect) -> None:
    """A fetch gives the record at its offset, up to the count asked for, in order."""
    backend = opened(connect, count=5)
    assert [s.offset for s in backend.fetch_batch("t", Offset(1), count=3)] == [1, 2, 3]
    assert [s.offset for s in backend.fetch_batch("t", Offset(3), count=9)] == [3, 4]
    found = backend.fetch("t", Offset(4))
    assert found is not None
    assert found.record.value == b"v4"


def check_fetch_at_the_end_finds_nothing(connect: Connect) -> None:
    """At the end a fetch returns nothing, at once or after its time-out."""
    backend = opened(connect, count=2)
    assert backend.fetch("t", Offset(2)) is None
    assert backend.fetch_batch("t", Offset(2), count=5) == []
    assert backend.fetch("t", Offset(2), timeout_s=GLANCE_S) is None
    assert backend.fetch_batch("t", Offset(99), count=5, timeout_s=GLANCE_S) == []
    assert backend.fetch_batch("t", Offset(1 << 40), count=5) == []
    assert backend.fetch_batch("t", Offset(0), count=0) == []
    assert backend.fetch_batch("t", Offset(0), count=-1) == []


def check_fetch_waits_for_a_producer(connect: Connect) -> None:
    """A fetch that waits gets what is produced meanwhile, long before its time-out."""
    backend = opened(connect)
    waiting = threading.Event()

    def consume() -> None:
        waiting.set()
        found = backend.fetch("t", Offset(0), timeout_s=WAIT_S)
        assert found is not None
        assert found.record.value == b"late"

    def produce() -> None:
        assert waiting.wait(WAIT_S)
        backend.produce("t", Record(b"late"))

    run_threads([consume, produce])


def check_partitions_are_apart(connect: Connect) -> None:
    """Each partition has its own offsets, records and positions."""
    backend = opened(connect, partitions=3)
    assert backend.partitions("t") == 3
    assert backend.produce("t", Record(b"a"), partition=0) == 0
    assert backend.produce("t", Record(b"b"), partition=2) == 0
    assert values(backend, partition=0) == [b"a"]
    assert values(backend, partition=1) == []
    assert values(backend, partition=2) == [b"b"]
    backend.commit_offset("t", "g", Offset(1), partition=2)
    assert backend.get_committed_offset("t", "g", partition=2) == 1
    assert backend.get_committed_offset("t", "g", partition=0) == 0


def check_topics_are_created_once(connect: Connect) -> None:
    """Creating a topic again changes nothing; with another number of partitions it is refused."""
    backend = opened(connect, partitions=2, count=1)
    backend.create_topic("t", partitions=2)
    assert values(backend) == [b"v0"]
    error_of(UsageInvalid, lambda: backend.create_topic("t", partitions=3))
    error_of(UsageInvalid, lambda: backend.create_topic("u", partitions=0))
    assert backend.partitions("t") == 2


def check_the_unknown_is_refused(connect: Connect) -> None:
    """An unknown topic or partition is the caller's mistake, not an empty answer."""
    backend = opened(connect)
    for topic, partition in (("nowhere", 0), ("t", 1), ("t", -1)):
        for call in (
            partial(backend.produce, topic, Record(b"x"), partition=partition),
            partial(backend.fetch, topic, Offset(0), partition=partition),
            partial(backend.bounds, topic, partition=partition),
            partial(backend.commit_offset, topic, "g", Offset(0), partition=partition),
            partial(backend.get_committed_offset, topic, "g", partition=partition),
            partial(backend.truncate_before, topic, Offset(0), partition=partition),
        ):
            error_of(UsageInvalid, call)
    error_of(UsageInvalid, lambda: backend.partitions("nowhere"))
    error_of(UsageInvalid, lambda: backend.register_group("nowhere", "g"))
    assert values(backend) == []


def check_committed_offsets_only_grow(connect: Connect) -> None:
    """A position is the next offset to read; a lower one changes nothing; groups are apart."""
    backend = opened(connect, count=5)
    assert backend.get_committed_offset("t", "g") == 0
    for offset, expected in ((2, 2), (1, 2), (2, 2), (5, 5), (0, 5)):
        backend.commit_offset("t", "g", Offset(offset))
        assert backend.get_committed_offset("t", "g") == expected
    assert backend.get_committed_offset("t", "other") == 0


def check_offsets_beyond_the_end_are_refused(connect: Connect) -> None:
    """A position beyond the end would skip records still to come; it is refused."""
    backend = opened(connect, count=2)
    error_of(UsageInvalid, lambda: backend.commit_offset("t", "g", Offset(3)))
    error_of(UsageInvalid, lambda: backend.commit_offset("t", "g", Offset(-1)))
    assert backend.get_committed_offset("t", "g") == 0


def check_least_offset_counts_every_known_group(connect: Connect) -> None:
    """The least position is 0 with no group, and while a known group never committed."""
    backend = opened(connect, count=5)
    assert backend.get_min_committed_offset("t") == 0
    backend.commit_offset("t", "a", Offset(4))
    assert backend.get_min_committed_offset("t") == 4
    backend.register_group("t", "b")
    assert backend.get_min_committed_offset("t") == 0
    backend.commit_offset("t", "b", Offset(3))
    backend.register_group("t", "b")
    assert backend.get_min_committed_offset("t") == 3


def check_truncation_keeps_what_is_needed(connect: Connect) -> None:
    """Truncation never drops a record that a known group has still to read."""
    backend = opened(connect, count=5)
    assert backend.truncate_before("t", Offset(3)) == 0
    backend.commit_offset("t", "a", Offset(4))
    backend.register_group("t", "b")
    assert backend.truncate_before("t", Offset(4)) == 0
    assert len(values(backend)) == 5


def check_two_producers_lose_nothing(connect: Connect) -> None:
    """Two producers at once: each record is there once, in its producer's order, without gaps."""
    backends = [opened(connect), connect()]
    told: list[list[tuple[int, bytes]]] = [[], []]
    ready = threading.Barrier(2)

    def produce(number: int) -> None:
        ready.wait(WAIT_S)
        for turn in range(10):
            batch = [Record(b"%d-%d-%d" % (number, turn, item)) for item in range(5)]
            offsets = backends[number].produce_batch("t", batch)
            told[number] += zip(offsets, (record.value for record in batch), strict=True)

    run_threads([lambda: produce(0), lambda: produce(1)])
    held = dict(enumerate(values(backends[0])))
    assert held == dict(told[0] + told[1])
    assert len(held) == 100
    for each in told:
        assert each == sorted(each)


def check_start_again_changes_nothing(connect: Connect) -> None:
    """`start` on a started backend has no effect."""
    backend = opened(connect, count=1)
    backend.start()
    assert values(backend) == [b"v0"]


def check_a_known_id_is_not_appended_again(connect: Connect) -> None:
    """IDEMPOTENT: the same id gives the old offset, alone, within a batch, and mixed."""
    backend = opened(connect)
    assert backend.produce("t", Record(b"a", "1")) == 0
    assert backend.produce("t", Record(b"a", "1")) == 0
    batch = [Record(b"b", "2"), Record(b"a", "1"), Record(b"b", "2"), Record(b"c"), Record(b"c")]
    assert backend.produce_batch("t", batch) == [1, 0, 1, 2, 3]
    assert values(backend) == [b"a", b"b", b"c", b"c"]


def check_ids_are_known_per_partition(connect: Connect) -> None:
    """IDEMPOTENT: an id speaks of one partition."""
    backend = opened(connect, partitions=2)
    assert backend.produce("t", Record(b"a", "1"), partition=0) == 0
    assert backend.produce("t", Record(b"a", "1"), partition=1) == 0
    assert values(backend, partition=1) == [b"a"]


def check_two_producers_of_one_id(connect: Connect) -> None:
    """IDEMPOTENT: of two producers of the same ids at once, one appends; both are told where."""
    backends = [opened(connect), connect()]
    told: list[list[Offset]] = [[], []]
    ready = threading.Barrier(2)

    def produce(number: int) -> None:
        ready.wait(WAIT_S)
        for item in range(20):
            told[number].append(backends[number].produce("t", Record(b"%d" % item, f"id{item}")))

    run_threads([lambda: produce(0), lambda: produce(1)])
    assert told[0] == told[1]
    assert values(backends[0]) == [b"%d" % item for item in range(20)]


def check_append_and_positions_are_one(connect: Connect) -> None:
    """ATOMIC: records and positions become visible together, or not at all."""
    backend = opened(connect, partitions=2, count=3)
    consumed = Position("t", 0, "g", Offset(3))
    assert backend.produce_and_commit("t", [Record(b"out")], [consumed], partition=1) == [0]
    assert backend.get_committed_offset("t", "g") == 3
    wrong = Position("nowhere", 0, "g", Offset(0))
    beyond = Position("t", 1, "g", Offset(3))
    for bad in (wrong, beyond):
        good = Position("t", 1, "g", Offset(1))
        error_of(
            UsageInvalid, partial(backend.produce_and_commit, "t", [Record(b"no")], (good, bad))
        )
    assert values(backend) == [b"v0", b"v1", b"v2"]
    assert backend.get_committed_offset("t", "g", partition=1) == 0


def check_positions_may_name_the_new_records(connect: Connect) -> None:
    """ATOMIC: a position may lie behind the very records that are appended with it."""
    backend = opened(connect)
    position = Position("t", 0, "g", Offset(2))
    assert backend.produce_and_commit("t", [Record(b"a"), Record(b"b")], [position]) == [0, 1]
    assert backend.get_committed_offset("t", "g") == 2


def check_truncation_gives_room_back(connect: Connect) -> None:
    """TRUNCATE: records below the least position go; offsets stay; a fetch finds the next held."""
    backend = opened(connect, count=5)
    backend.commit_offset("t", "a", Offset(4))
    backend.commit_offset("t", "b", Offset(3))
    assert backend.truncate_before("t", Offset(2)) == 2
    assert backend.truncate_before("t", Offset(1)) == 2
    assert backend.truncate_before("t", Offset(99)) == 3
    assert backend.bounds("t") == (3, 5)
    assert values(backend) == [b"v3", b"v4"]
    found = backend.fetch("t", Offset(0))
    assert found is not None
    assert found.offset == 3
    assert backend.produce("t", Record(b"v5")) == 5


def check_a_dropped_id_is_forgotten(connect: Connect) -> None:
    """TRUNCATE with IDEMPOTENT: an id is known only while its record is held."""
    backend = opened(connect)
    backend.produce_batch("t", [Record(b"a", "1"), Record(b"b", "2")])
    backend.commit_offset("t", "g", Offset(1))
    backend.truncate_before("t", Offset(1))
    assert backend.produce("t", Record(b"b", "2")) == 1
    assert backend.produce("t", Record(b"a", "1")) == 2


def check_everything_is_there_after_a_crash(connect: Connect) -> None:
    """DURABLE: what was told is there when the log is opened again, without a stop before."""
    backend = opened(connect, partitions=2)
    backend.produce_batch("t", [Record(b"a", "1", b"k", {"h": "v"}), Record(b"b"), Record(b"c")])
    backend.commit_offset("t", "g", Offset(2))
    backend.register_group("t", "late")
    again = connect()
    assert again.partitions("t") == 2
    assert values(again) == [b"a", b"b", b"c"]
    assert again.get_committed_offset("t", "g") == 2
    assert again.get_min_committed_offset("t") == 0
    found = again.fetch("t", Offset(0))
    assert found is not None
    assert found.record == Record(b"a", "1", b"k", {"h": "v"})
    again.stop()


def check_ids_are_known_after_a_crash(connect: Connect) -> None:
    """DURABLE with IDEMPOTENT: an id is known when the log is opened again."""
    backend = opened(connect)
    backend.produce_batch("t", [Record(b"a", "1"), Record(b"b")])
    again = connect()
    assert again.produce("t", Record(b"a", "1")) == 0
    assert values(again) == [b"a", b"b"]


def check_stop_and_start_again(connect: Connect) -> None:
    """DURABLE: a stopped backend starts again with all it had."""
    backend = opened(connect, count=2)
    backend.stop()
    backend.start()
    assert values(backend) == [b"v0", b"v1"]


def check_an_endpoint_connects(connect: Connect) -> None:
    """SHARED: whoever has the endpoint sees the same topics, and what is produced meanwhile."""
    backend = opened(connect, count=1)
    other = open_backend(backend.endpoint().url)
    other.start()
    assert values(other) == [b"v0"]
    waiting = threading.Event()

    def consume() -> None:
        waiting.set()
        found = other.fetch("t", Offset(1), timeout_s=WAIT_S)
        assert found is not None
        assert found.record.value == b"late"

    def produce() -> None:
        assert waiting.wait(WAIT_S)
        backend.produce("t", Record(b"late"))

    run_threads([consume, produce])
    other.stop()


CORE: tuple[Check, ...] = (
    check_offsets_count_from_zero,
    check_records_come_back_whole,
    check_fetch_starts_anywhere,
    check_fetch_at_the_end_finds_nothing,
    check_fetch_waits_for_a_producer,
    check_partitions_are_apart,
    check_topics_are_created_once,
    check_the_unknown_is_refused,
    check_committed_offsets_only_grow,
    check_offsets_beyond_the_end_are_refused,
    check_least_offset_counts_every_known_group,
    check_truncation_keeps_what_is_needed,
    check_two_producers_lose_nothing,
    check_start_again_changes_nothing,
)
"""What every backend passes."""

BY_CAPABILITY: dict[Capability, tuple[Check, ...]] = {
    Capability.DURABLE: (check_everything_is_there_after_a_crash, check_stop_and_start_again),
    Capability.IDEMPOTENT: (
        check_a_known_id_is_not_appended_again,
        check_ids_are_known_per_partition,
        check_two_producers_of_one_id,
    ),
    Capability.ATOMIC: (
        check_append_and_positions_are_one,
        check_positions_may_name_the_new_records,
    ),
    Capability.TRUNCATE: (check_truncation_gives_room_back,),
    Capability.SHARED: (check_an_endpoint_connects,),
}
"""What a backend passes besides, for each capability it declares."""


def checks_for(capabilities: frozenset[Capability]) -> Sequence[Check]:
    """Return the checks for a backend that declares `capabilities`."""
    checks = list(CORE)
    for capability in Capability:
        if capability in capabilities:
            checks += BY_CAPABILITY[capability]
    if {Capability.TRUNCATE, Capability.IDEMPOTENT} <= capabilities:
        checks.append(check_a_dropped_id_is_forgotten)
    if {Capability.DURABLE, Capability.IDEMPOTENT} <= capabilities:
        checks.append(check_ids_are_known_after_a_crash)
    return checks
