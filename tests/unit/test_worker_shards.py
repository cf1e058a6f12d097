"""Outputs with counts of their own, batches, reports, and the barrier that a coordinator holds."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast._base.ids import START
from holdfast.errors import ChunkConflict, Damaged, DiskFull, EndConflict, StoreNewer, UsageInvalid
from holdfast.log.contract import Record
from holdfast.log.memory import MemoryBackend
from holdfast.worker.coordinator import Barriers, Coordinator
from holdfast.worker.loop import Reporting, Worker
from holdfast.worker.messages import Chunk, ChunkId, End, Message, decode, encode
from holdfast.worker.persistence import PersistenceService
from holdfast.worker.ports import LogInbox, LogOutbox
from holdfast.worker.reports import TABLE_TYPE, read_report, received_report, sent_report
from holdfast.worker.roles import NoState, Output, Part, Release

SHARDS = (Output("even", "rows"), Output("odd", "rows"), Output("never", "rows"))


class Split:
    """Sends each byte of a chunk to the shard of its parity, if there is any."""

    outputs: Sequence[Output] = SHARDS
    first: Sequence[str] = ()

    def start(self) -> NoState:
        return NoState()

    def apply(self, state: NoState, chunk: Chunk) -> list[Part]:
        shares = {"even": [b for b in chunk.payload if b % 2 == 0]}
        shares["odd"] = [b for b in chunk.payload if b % 2]
        return [Part(to, "rows", bytes(share)) for to, share in shares.items() if share]

    def results(self, state: NoState) -> list[Part]:
        return []


class Bench:
    """A worker that splits, on a log in memory."""

    def __init__(
        self,
        directory: Path,
        log: MemoryBackend | None = None,
        *,
        reporting: Reporting | None = None,
        batch_size: int = 3,
    ) -> None:
        self.log = log or MemoryBackend("shards")
        self.log.start()
        destinations = ("even", "odd", "never", "boss")
        for topic in ("in", *destinations):
            self.log.create_topic(topic)
        self.service = PersistenceService(directory, "split", commit_interval=2)
        self.worker = Worker(
            "split",
            Split(),
            self.service,
            LogInbox(self.log, "in", "split"),
            {to: LogOutbox(self.log, to) for to in destinations},
            senders={"bytes": ["a"]},
            reporting=reporting,
            batch_size=batch_size,
        )

    def feed(self, *messages: Message) -> None:
        for message in messages:
            self.log.produce("in", Record(encode(message)))
        self.worker.run_until_idle()

    def sent(self, topic: str) -> list[Message]:
        return [decode(one.record.value) for one in self.log.fetch_batch(topic, START, count=100)]


def piece(ordinal: int, payload: bytes) -> Chunk:
    return Chunk("ada", "bytes", "a", ordinal, payload)


STORY = (piece(1, b"\x02\x04"), piece(3, b"\x01\x02"), End("ada", "bytes", 3, "a"), piece(2, b"\6"))


def test_an_end_goes_to_every_shard_with_its_own_count(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.feed(*STORY)
    even, odd = bench.sent("even"), bench.sent("odd")
    assert [one.payload for one in even if isinstance(one, Chunk)] == [b"\2\4", b"\2", b"\6"]
    assert [one.ordinal for one in even if isinstance(one, Chunk)] == [1, 2, 3]
    assert even[-1] == End("ada", "rows", 3, "split")
    assert odd == [Chunk("ada", "rows", "split", 1, b"\1"), End("ada", "rows", 1, "split")]
    assert bench.sent("never") == [End("ada", "rows", 0, "split")]


def test_numbers_go_on_after_a_restart(tmp_path: Path) -> None:
    """With and without a state commit between: two chunks are due for one, the third is not."""
    bench = Bench(tmp_path)
    for message in STORY:
        bench.feed(message)
        bench.service.close()
        bench = Bench(tmp_path, bench.log)
    ordinals = [one.ordinal for one in bench.sent("even") if isinstance(one, Chunk)]
    assert ordinals == [1, 2, 3]
    assert bench.sent("never") == [End("ada", "rows", 0, "split")]


def test_what_is_refused_keeps_back_nothing_before_it(tmp_path: Path) -> None:
    """A bad message in the middle of a batch: those before it are acked, it is not."""
    for place, bad in enumerate([Chunk("ada", "other", "a", 1, b""), piece(9, b"\2")]):
        bench = Bench(tmp_path / str(place))
        with pytest.raises((UsageInvalid, ChunkConflict)):
            bench.feed(piece(1, b"\2"), End("ada", "bytes", 2, "a"), bad)
        assert bench.log.get_committed_offset("in", "split") == 2
        assert bench.sent("even") == [Chunk("ada", "rows", "split", 1, b"\2")]
        with pytest.raises((UsageInvalid, ChunkConflict)):
            bench.worker.run_until_idle()
        assert bench.log.get_committed_offset("in", "split") == 2


def test_what_is_refused_first_is_not_passed_over(tmp_path: Path) -> None:
    """However often it is tried: an ack of what came later would lose it."""
    bench = Bench(tmp_path, batch_size=1)
    for _ in range(3):
        with pytest.raises(UsageInvalid):
            bench.feed(Chunk("ada", "other", "a", 1, b""), piece(1, b"\2"))
    assert bench.log.get_committed_offset("in", "split") == START
    assert bench.sent("even") == []


def test_after_an_error_a_worker_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Going on would commit a state without the chunk that failed, and count it."""
    bench = Bench(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(Split, "apply", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            bench.feed(*STORY[:2])
    with pytest.raises(UsageInvalid, match="was stopped by an error"):
        bench.feed(*STORY[2:])
    bench.service.close()
    again = Bench(tmp_path, bench.log)
    again.worker.run_until_idle()
    assert again.sent("even")[-1] == End("ada", "rows", 3, "split")
    assert again.sent("odd") == [
        Chunk("ada", "rows", "split", 1, b"\1"),
        End("ada", "rows", 1, "split"),
    ]


def test_what_cannot_be_read_keeps_back_nothing_before_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.log.produce("in", Record(encode(piece(1, b"\2"))))
    bench.log.produce("in", Record(b"no message"))
    with pytest.raises(Damaged):
        bench.worker.run_until_idle()
    assert bench.log.get_committed_offset("in", "split") == 1


def test_a_part_for_an_output_that_is_not_declared_is_refused(tmp_path: Path) -> None:
    class Stray(Split):
        outputs = SHARDS[1:]

    log = MemoryBackend("stray")
    log.start()
    log.create_topic("in")
    log.create_topic("out")
    service, out = PersistenceService(tmp_path, "stray"), LogOutbox(log, "out")
    worker = Worker(
        "stray",
        Stray(),
        service,
        LogInbox(log, "in", "stray"),
        {"odd": out, "never": out},
        senders={"bytes": ["a"]},
    )
    log.produce("in", Record(encode(piece(1, b"\2"))))
    with pytest.raises(UsageInvalid, match="sends rows to even"):
        worker.run_until_idle()


def test_a_group_that_the_disk_refuses_leaves_nothing_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a worker that goes on would take the chunk for committed, and ack it."""
    service = PersistenceService(tmp_path, "w")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "fsync", full)
    group = service.grouped()
    group.__enter__()
    service.commit_processing_chunk(piece(1, b""))
    assert service.chunk_has_come(piece(1, b"").id)
    with pytest.raises(DiskFull):
        group.__exit__(None, None, None)
    assert not service.chunk_has_come(piece(1, b"").id)


def test_a_group_costs_one_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = PersistenceService(tmp_path, "w")
    calls: list[int] = []
    monkeypatch.setattr(os, "fsync", calls.append)
    with service.grouped():
        for ordinal in range(1, 20):
            service.commit_processing_chunk(piece(ordinal, b""))
        assert calls == []
    assert len(calls) == 1


def reports_of(bench: Bench) -> list[object]:
    return [read_report(one) for one in bench.sent("boss") if isinstance(one, Chunk)]


def test_a_worker_reports_what_it_applied_and_sent(tmp_path: Path) -> None:
    """Held outputs get no END from it: the coordinator says it."""
    bench = Bench(tmp_path, reporting=Reporting("boss", held=SHARDS[:2]))
    bench.feed(*STORY)
    applied = [(("bytes", "a"), 1), (("bytes", "a"), 3), (("bytes", "a"), 2)]
    assert reports_of(bench) == [*applied, {SHARDS[0]: 3, SHARDS[1]: 1}]
    assert bench.sent("boss")[-1] == End("ada", TABLE_TYPE, 4, "split")
    assert not any(isinstance(one, End) for one in bench.sent("even") + bench.sent("odd"))
    assert bench.sent("never") == [End("ada", "rows", 0, "split")]


def test_a_report_is_read_strictly() -> None:
    for payload in (b"", b"[]", b"{}", b'{"version":1}', b'{"sent":[],"received":[],"version":1}'):
        with pytest.raises(Damaged):
            read_report(Chunk("ada", TABLE_TYPE, "w", 1, payload))
    with pytest.raises(StoreNewer):
        read_report(Chunk("ada", TABLE_TYPE, "w", 1, b'{"sent":[],"version":2}'))


def report(sender: str, payload: bytes) -> Chunk:
    return Chunk("ada", TABLE_TYPE, sender, 1, payload)


def applied(shard: str, sender: str, ordinal: int) -> Chunk:
    return report(shard, received_report(ChunkId("ada", "rows", sender, ordinal)))


BOSS_SHARDS = {Output("even", "rows"): ["f0", "f1"], Output("odd", "rows"): ["f0", "f1"]}
REPORTS = [
    report("f0", sent_report({Output("even", "rows"): 2, Output("odd", "rows"): 0})),
    report("f1", sent_report({Output("even", "rows"): 1, Output("odd", "rows"): 0})),
    *(applied("even", sender, n) for sender, n in (("f0", 1), ("f0", 2), ("f1", 1))),
]


@given(st.permutations(REPORTS), st.integers(0, 4))
def test_a_shard_is_released_once_when_its_set_is_equal(order: list[Chunk], again: int) -> None:
    """In any order, a report twice, the state written and read after each."""
    boss = Coordinator(BOSS_SHARDS)
    state, released = boss.start(), []
    for place, one in enumerate([*order, order[again]]):
        found = list(boss.apply(state, one))
        if any(release.to == "even" for release in found):
            assert place == len(order) - 1, "early"
        released += found
        state = Barriers.from_bytes(state.to_bytes())
    assert Counter(released) == Counter(
        Release(to, End("ada", "rows", total, sender))
        for to, totals in (("even", (2, 1)), ("odd", (0, 0)))
        for sender, total in zip(("f0", "f1"), totals, strict=True)
    )


def test_a_coordinator_refuses_what_contradicts() -> None:
    boss = Coordinator(BOSS_SHARDS)
    state = boss.start()
    boss.apply(state, REPORTS[0])
    with pytest.raises(EndConflict):
        boss.apply(state, report("f0", sent_report({Output("even", "rows"): 3})))
    with pytest.raises(UsageInvalid):
        boss.apply(state, applied("even", "stranger", 1))
    with pytest.raises(UsageInvalid):
        boss.apply(state, report("stranger", sent_report({Output("even", "rows"): 3})))
    boss.apply(state, applied("even", "f1", 2))
    with pytest.raises(EndConflict):
        boss.apply(state, REPORTS[1])
    assert list(boss.apply(state, report("x", json.dumps(BESIDE).encode()))) == []


BESIDE = {"received": ["bytes", "a", 1], "version": 1}
