"""The three commits: what stands after each, after a restart, after a rewrite of the journal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast._base.ids import digest
from holdfast.errors import ChunkConflict, EndConflict, UsageInvalid
from holdfast.worker import books as books_module
from holdfast.worker import persistence
from holdfast.worker.books import (
    Books,
    ClientBooks,
    Source,
    clear_record,
    covers_of,
    finish_record,
    message_record,
    send_records,
    state_record,
)
from holdfast.worker.messages import Chunk, ChunkId, End
from holdfast.worker.persistence import ChunkBuffer, PersistenceService


class Total:
    """A sum."""

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def to_bytes(self) -> bytes:
        return json.dumps(self.value).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Total:
        return cls(json.loads(data))


def chunk(ordinal: int, *, client: str = "c", sender: str = "s", payload: bytes = b"x") -> Chunk:
    return Chunk(client, "t", sender, ordinal, payload)


def reopened(service: PersistenceService, path: Path) -> PersistenceService:
    service.close()
    return PersistenceService(path, "w")


@pytest.fixture
def service(tmp_path: Path) -> PersistenceService:
    return PersistenceService(tmp_path, "w")


def ordinals(chunks: list[Chunk]) -> list[int]:
    return [one.ordinal for one in chunks]


def test_every_uncounted_chunk_comes_back_in_order(
    service: PersistenceService, tmp_path: Path
) -> None:
    """Several chunks are acked before a state commit: one slot for the last would lose them."""
    for ordinal in (3, 1, 2):
        service.commit_processing_chunk(chunk(ordinal))
    service = reopened(service, tmp_path)
    assert ordinals(service.recover_processing_chunks("c")) == [3, 1, 2]
    assert service.recover_last_processing_chunk("c") == chunk(2)
    assert service.recover_last_processing_chunk("nobody") is None
    assert service.clients() == ["c"]


def test_the_journal_grows_by_what_came_and_shrinks_to_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four times as many uncounted chunks take four times the bytes, and none is written twice.
    Counted, in whatever order they came, they are as small as one.
    """
    monkeypatch.setattr(persistence, "COMPACT_BYTES_MIN", 0)
    grown, counted = [], []
    for number in (50, 200):
        service = PersistenceService(tmp_path / str(number), "w")
        journal = tmp_path / str(number) / "journal"
        # From four digits on: an ordinal's length is not what is measured.
        ordinals = list(range(1000 + number, 1000, -1))
        for ordinal in ordinals[::2] + ordinals[1::2]:
            service.commit_processing_chunk(chunk(ordinal, payload=b"x" * 100))
            if ordinal == ordinals[0]:
                before = journal.stat()
        after = journal.stat()
        assert after.st_ino == before.st_ino, "rewritten, though all of it is needed"
        grown.append((after.st_size - before.st_size) / (number - 1))
        service.commit_working_state(Total(1), ChunkId("c", "t", "s", ordinals[-1]))
        counted.append(journal.stat().st_size)
        assert service.recover_processing_chunks("c") == []
        service.close()
    assert grown[0] == grown[1] < 100 + 100
    assert counted[0] == counted[1] < 1000


def test_a_state_commit_drops_exactly_what_it_covers(
    service: PersistenceService, tmp_path: Path
) -> None:
    for ordinal in (1, 2, 3):
        service.commit_processing_chunk(chunk(ordinal))
    service.commit_processing_chunk(chunk(1, sender="other"))
    service.commit_working_state(Total(7), chunk(2).id)
    service = reopened(service, tmp_path)
    state = service.recover_working_state("c", Total)
    assert state is not None
    assert state.value == 7
    assert ordinals(service.recover_processing_chunks("c")) == [3, 1]
    assert [service.process_has_been_counted(chunk(n).id) for n in (1, 2, 3)] == [True, True, False]
    assert not service.process_has_been_counted(chunk(1, sender="other").id)
    assert not service.process_has_been_counted(chunk(1, client="d").id)
    assert service.recover_working_state("d", Total) is None


def test_a_state_that_no_chunk_explains_is_refused(service: PersistenceService) -> None:
    service.commit_processing_chunk(chunk(1))
    service.commit_working_state(Total(1), chunk(1).id)
    for known in (1, 2):
        with pytest.raises(UsageInvalid):
            service.commit_working_state(Total(2), chunk(known).id)


def test_a_chunk_that_came_before_is_not_taken_again(service: PersistenceService) -> None:
    """Not while it waits, not when it is counted, not from the buffer."""
    service.commit_processing_chunk(chunk(1))
    service.append_chunk_to_buffer(chunk(2))
    service.commit_processing_chunk(chunk(2, payload=b"other"))
    service.append_chunk_to_buffer(chunk(1))
    assert ordinals(service.recover_processing_chunks("c")) == [1]
    assert service.recover_buffered_chunks("c") == [chunk(2)]
    service.commit_working_state(Total(1), chunk(1).id)
    service.commit_processing_chunk(chunk(1))
    assert service.recover_processing_chunks("c") == []


def test_a_state_commit_behind_a_buffered_chunk_covers_both(service: PersistenceService) -> None:
    service.append_chunk_to_buffer(chunk(1))
    service.append_chunk_to_buffer(chunk(2))
    service.commit_processing_chunk(chunk(3))
    service.append_chunk_to_buffer(chunk(4))
    service.commit_working_state(Total(6), chunk(2).id)
    assert service.recover_processing_chunks("c") == []
    assert ordinals(service.recover_buffered_chunks("c")) == [4]


def test_a_state_is_due_every_interval(tmp_path: Path) -> None:
    service = PersistenceService(tmp_path, "w", commit_interval=2)
    service.commit_processing_chunk(chunk(1))
    assert not service.should_commit_state("c")
    service.commit_processing_chunk(chunk(2))
    assert service.should_commit_state("c")
    service.commit_working_state(Total(), chunk(2).id)
    assert not service.should_commit_state("c")
    with pytest.raises(UsageInvalid):
        PersistenceService(tmp_path / "other", "w", commit_interval=0)


def test_the_default_interval_is_ten(service: PersistenceService) -> None:
    for ordinal in range(1, 11):
        assert not service.should_commit_state("c")
        service.commit_processing_chunk(chunk(ordinal))
    assert service.should_commit_state("c")


def test_sends_are_remembered_per_client(service: PersistenceService, tmp_path: Path) -> None:
    service.commit_send_ack("c", "m1")
    service = reopened(service, tmp_path)
    assert service.send_has_been_acknowledged("c", "m1")
    assert not service.send_has_been_acknowledged("c", "m2")
    assert not service.send_has_been_acknowledged("d", "m1")


def test_a_state_commit_forgets_sends_only_when_told(
    service: PersistenceService, tmp_path: Path
) -> None:
    """A loop that sends after its state commit asks for what went out before it."""
    for ordinal, forget in ((1, False), (2, True)):
        service.commit_processing_chunk(chunk(ordinal))
        service.commit_send_ack("c", f"m{ordinal}", f"n{ordinal}")
        service.commit_send_ack("d", "m1")
        service.commit_working_state(Total(), chunk(ordinal).id, forget_sends=forget)
        service = reopened(service, tmp_path)
        for name in ("m1", "n1"):
            assert service.send_has_been_acknowledged("c", name) == (not forget)
    service.commit_send_ack("c", "m3")
    service = reopened(service, tmp_path)
    assert service.send_has_been_acknowledged("c", "m3")
    assert service.send_has_been_acknowledged("d", "m1")


def test_more_sends_than_a_record_takes_are_kept(
    service: PersistenceService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(books_module, "SENDS_PER_RECORD", 2)
    service.commit_send_ack("c", *(f"m{n}" for n in range(5)))
    service = reopened(service, tmp_path)
    assert all(service.send_has_been_acknowledged("c", f"m{n}") for n in range(5))


def test_a_cleared_chunk_is_counted_without_a_state(
    service: PersistenceService, tmp_path: Path
) -> None:
    service.commit_processing_chunk(chunk(1))
    service.clear_processing_commit(chunk(1).id)
    service = reopened(service, tmp_path)
    assert service.process_has_been_counted(chunk(1).id)
    assert service.recover_processing_chunks("c") == []
    assert service.recover_working_state("c", Total) is None


def test_complete_means_equal_sets_never_counts(service: PersistenceService) -> None:
    source = ("t", "s")
    assert not service.is_complete("c", source)
    service.commit_end(End("c", "t", 3, "s"))
    service.commit_processing_chunk(chunk(1))
    service.commit_processing_chunk(chunk(1))
    service.append_chunk_to_buffer(chunk(3))
    assert not service.is_complete("c", source)
    service.commit_processing_chunk(chunk(2))
    assert service.is_complete("c", source)
    service.commit_end(End("c", "t", 0, "nothing"))
    assert service.is_complete("c", ("t", "nothing"))
    assert service.announced("c") == {("t", "s"): 3, ("t", "nothing"): 0}


def test_as_many_chunks_as_announced_but_others_are_not_complete() -> None:
    books = Books("here")
    for record in (message_record(1, chunk(1)), message_record(1, chunk(3))):
        books.apply(record)
    books.apply(message_record(1, End("c", "t", 2, "s")))
    assert not books.of("c").is_complete(("t", "s"))


class Sealed(dict[ChunkId, bytes]):
    """A buffer that may be asked, but not gone through."""

    def __iter__(self) -> Iterator[ChunkId]:
        raise AssertionError("the whole buffer was read")


def test_no_chunk_that_comes_makes_the_buffer_be_read(service: PersistenceService) -> None:
    """Else a joiner with a large buffer pays for all of it at each message."""
    for source, kind in (("first", "came"), ("s", "buffered")):
        service.commit_end(End("c", "t", 2, source))
        books = service._books.of("c")
        setattr(books, kind, Sealed(getattr(books, kind)))
    service.commit_processing_chunk(chunk(1, sender="first"))
    for ordinal in (1, 2):
        service.append_chunk_to_buffer(chunk(ordinal))
        assert service.is_complete("c", ("t", "s")) == (ordinal == 2)
        assert not service.is_complete("c", ("t", "first"))
    service._books.of("c").came = dict(service._books.of("c").came.items())
    service.commit_working_state(Total(1), chunk(1, sender="first").id)
    service.commit_end(End("c", "t", 0, "nothing"))


def test_contradictions_are_refused_and_change_nothing(service: PersistenceService) -> None:
    service.commit_processing_chunk(chunk(5))
    with pytest.raises(EndConflict) as below:
        service.commit_end(End("c", "t", 4, "s"))
    assert (below.value.known, below.value.sent) == (5, 4)
    service.commit_end(End("c", "t", 5, "s"))
    service.commit_end(End("c", "t", 5, "s"))
    with pytest.raises(EndConflict) as other:
        service.commit_end(End("c", "t", 6, "s"))
    assert (other.value.known, other.value.sent) == (5, 6)
    with pytest.raises(ChunkConflict):
        service.commit_processing_chunk(chunk(6))
    assert service.announced("c") == {("t", "s"): 5}
    assert ordinals(service.recover_processing_chunks("c")) == [5]


def test_a_finished_client_cannot_be_revived(service: PersistenceService, tmp_path: Path) -> None:
    service.commit_processing_chunk(chunk(1))
    service.commit_send_ack("c", "m")
    service.finish("c")
    service = reopened(service, tmp_path)
    service.commit_processing_chunk(chunk(1))
    service.append_chunk_to_buffer(chunk(2))
    service.commit_end(End("c", "t", 9, "s"))
    service.commit_send_ack("c", "n")
    service.finish("c")
    assert service.clients() == []
    assert service.process_has_been_counted(chunk(1).id)
    assert service.send_has_been_acknowledged("c", "m")
    assert service.recover_processing_chunks("c") == service.recover_buffered_chunks("c") == []


@pytest.mark.parametrize("compacted", [False, True])
def test_what_contradicts_a_finished_client_is_refused(
    service: PersistenceService, tmp_path: Path, compacted: bool
) -> None:
    """Late copies change nothing; what was never announced would be lost without a word."""
    service.commit_processing_chunk(chunk(1))
    service.commit_end(End("c", "t", 1, "s"))
    service.finish("c")
    if compacted:
        service._journal.rewrite(service._books.records())
    service = reopened(service, tmp_path)
    service.commit_processing_chunk(chunk(1))
    service.commit_end(End("c", "t", 1, "s"))
    assert service.chunk_has_come(chunk(1).id)
    for stranger in (chunk(2), chunk(1, sender="other")):
        assert not service.chunk_has_come(stranger.id)
        with pytest.raises(ChunkConflict):
            service.append_chunk_to_buffer(stranger)
    for end in (End("c", "t", 2, "s"), End("c", "t", 0, "other")):
        with pytest.raises(EndConflict):
            service.commit_end(end)
    assert service.clients() == []


def test_the_buffer_drops_only_what_was_read(service: PersistenceService, tmp_path: Path) -> None:
    """A chunk that comes between reading and clearing stays."""
    buffer = ChunkBuffer(service, "c")
    buffer.append_chunk(chunk(1, payload=b"12"))
    buffer.append_chunk(chunk(2, payload=b"345"))
    assert (buffer.get_chunk_count(), buffer.get_buffer_size()) == (2, 5)
    assert ordinals(buffer.read_all_chunks()) == [1, 2]
    buffer.append_chunk(chunk(3))
    buffer.clear()
    service = reopened(service, tmp_path)
    assert ordinals(ChunkBuffer(service, "c").read_all_chunks()) == [3]
    assert service.process_has_been_counted(chunk(2).id)
    with pytest.raises(UsageInvalid):
        buffer.append_chunk(chunk(1, client="d"))


def test_the_journal_stays_within_twice_what_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """400 chunks of which ten at most are live: the file is rewritten, growth is bounded."""
    monkeypatch.setattr(persistence, "COMPACT_BYTES_MIN", 4096)
    service = PersistenceService(tmp_path, "w")
    largest = 0
    for ordinal in range(1, 401):
        service.commit_processing_chunk(chunk(ordinal, payload=b"x" * 100))
        if service.should_commit_state("c"):
            service.commit_working_state(Total(ordinal), chunk(ordinal).id)
        largest = max(largest, (tmp_path / "journal").stat().st_size)
    assert largest < 4096 + 500
    service = reopened(service, tmp_path)
    state = service.recover_working_state("c", Total)
    assert state is not None
    assert state.value == 400
    assert service.process_has_been_counted(chunk(1).id)


def view(books: Books) -> tuple[dict[str, ClientBooks], dict[str, dict[Source, int]]]:
    return books.clients, books.finished


NAMES = ("data", "buffer", "state", "clear", "send", "end", "finish")
ACTIONS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 9)))


@settings(max_examples=60)
@given(ACTIONS)
def test_a_rewritten_journal_says_the_same(actions: list[tuple[str, int]]) -> None:
    """Whatever happened: the fewest records, read again, give the same books and the same size."""
    books = Books("here")
    for action, n in actions:
        one, client = chunk(n, client=str(n % 2)), str(n % 2)
        if client in books.finished:
            continue
        if action == "data" and not books.of(client).knows(one.id):
            books.apply(message_record(1, one))
        elif action == "buffer" and not books.of(client).knows(one.id):
            books.apply(message_record(4, one))
        elif action == "state":
            covers = covers_of(books.of(client).came)
            books.apply(state_record(one.id, covers, b"s" * n, forgets_sends=n > 4))
        elif action == "clear":
            books.apply(clear_record(client, covers_of([one.id])))
        elif action == "send":
            for record in send_records(client, [digest(n), digest(n + 1)]):
                books.apply(record)
        elif action == "end" and ("t", "s") not in books.of(client).ends:
            books.apply(message_record(1, End(client, "t", n, "s")))
        elif action == "finish":
            books.apply(finish_record(client, books.of(client).ends))
    again = Books("there")
    for record in books.records():
        again.apply(record)
    assert view(again) == view(books)
    assert again.live_bytes == books.live_bytes >= 0
    assert all(isinstance(one, ChunkId) for one in again.of("1").came)
