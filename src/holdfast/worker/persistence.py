"""The durable side of a worker: three commits, one journal, so no two files must change together.

* The data commit ("this message came to me") precedes the ack to whoever sent it.
* The state commit ("my state changed, and why") drops exactly the chunks that it covers.
* The send commit ("this went out") keeps a result from being sent once more after a restart.

Each is durable when its method returns. Processed chunks are kept as ranges of ordinals per
sender; a sender numbers its chunks 1, 2, 3, ... so that there is nearly always one range.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, Self, TypeVar

from holdfast._base.invariant import invariant
from holdfast.errors import ChunkConflict, EndConflict, UsageInvalid
from holdfast.worker.books import (
    KIND_BUFFER,
    KIND_DATA,
    Books,
    Source,
    chunks_in,
    clear_record,
    covers_of,
    finish_record,
    message_record,
    send_records,
    state_record,
)
from holdfast.worker.journal import Journal, Record, read_journal
from holdfast.worker.messages import Chunk, ChunkId, End

COMMIT_INTERVAL = 10
"""Chunks per state commit. Fewer: the state is written more often. More: more chunks are applied
again after a crash."""
COMPACT_BYTES_MIN = 1 << 16
"""64 KiB: below it a journal is read in no time, and rewriting it would cost more than it gives."""


class WorkingState(Protocol):
    """What a worker knows about one client. Its bytes follow a schema: JSON, struct, Arrow."""

    def to_bytes(self) -> bytes:
        """Return the state as bytes. Equal states give equal bytes."""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the state that `to_bytes` gave."""


S = TypeVar("S", bound=WorkingState)


class PersistenceService:
    """What one worker must not forget, for all its clients, in one directory.

    A journal that is missing is made, of what stands in that of the directory `former`, if given.
    """

    def __init__(
        self,
        directory: Path | str,
        worker: str,
        *,
        commit_interval: int = COMMIT_INTERVAL,
        former: Path | None = None,
    ) -> None:
        if commit_interval < 1:
            what = f"commit_interval is {commit_interval}"
            raise UsageInvalid(what=what, remedy="Give 1 or more chunks.")
        self._interval = commit_interval
        self._group: list[Record] | None = None
        self._journal = Journal(Path(directory), worker, _standing(former, worker))
        self._books = Books(str(self._journal.path))
        for record in self._journal.records():
            self._books.apply(record)

    def close(self) -> None:
        """Let go of the journal. May never be called: nothing durable depends on it."""
        self._journal.close()

    @contextmanager
    def grouped(self) -> Iterator[None]:
        """Make all commits of the block durable at its end, with one fsync. Ack nothing in it.

        Inside, the books are ahead of the journal. If the journal refuses, or the block ends by an
        exception after a commit, nothing of it is written and the books forget everything, so that
        nothing can be acked that is not durable: open the journal again.
        """
        invariant(self._group is None, "a group of commits inside another")
        self._group = []
        try:
            yield
            if self._group:
                self._journal.append(self._group)
        except BaseException:  # raised again: books that are ahead of the journal must not be asked
            if self._group:
                self._books = Books(str(self._journal.path))
                self._journal.give_up()
            raise
        finally:
            self._group = None
        self._compact_if_due()

    def _commit(self, record: Record) -> None:
        """Make a record durable and take it in; in a group, take it in now and write it later."""
        if self._group is None:
            with self.grouped():
                self._commit(record)
        else:
            self._group.append(record)
            self._books.apply(record)

    def _compact_if_due(self) -> None:
        """Rewrite the journal if most of it is dead."""
        size, live = self._journal.size, self._books.live_bytes
        if size > COMPACT_BYTES_MIN and size - live > live:
            self._journal.rewrite(self._books.records())

    # What came

    def commit_processing_chunk(self, chunk: Chunk) -> None:
        """Commit that a chunk came and is to be applied now. A known one: no effect.

        Raises:
            ChunkConflict: its sender announced fewer chunks.
        """
        self._take_chunk(KIND_DATA, chunk)

    def append_chunk_to_buffer(self, chunk: Chunk) -> None:
        """Commit that a chunk came and is to be applied later. A known one: no effect.

        Raises:
            ChunkConflict: its sender announced fewer chunks.
        """
        self._take_chunk(KIND_BUFFER, chunk)

    def _take_chunk(self, kind: int, chunk: Chunk) -> None:
        if self.chunk_has_come(chunk.id):
            return
        source = (chunk.table_type, chunk.sender)
        total = self._books.ends_of(chunk.client).get(source)
        if self._is_finished(chunk.client):
            # What no END of a finished client announces was never to come.
            total = total or 0
        if total is not None and chunk.ordinal > total:
            raise ChunkConflict(
                table=chunk.table_type,
                sender=chunk.sender,
                ordinal=chunk.ordinal,
                what="it is beyond what its sender announced",
                stored=str(total),
                sent=str(chunk.ordinal),
            )
        self._commit(message_record(kind, chunk))

    def commit_end(self, end: End) -> None:
        """Commit that a sender's END came. The same again: no effect.

        Raises:
            EndConflict: it contradicts another END, or a chunk that came, or its client is
                finished without it.
        """
        source, announced = (end.table_type, end.sender), self._books.ends_of(end.client)
        known, what = announced.get(source), "another count came before"
        if known == end.total_chunks:
            return
        if known is None and self._is_finished(end.client):
            if not announced:
                return
            known, what = 0, "its client is finished without it"
        highest = self._books.of(end.client).highest.get(source, 0)
        if known is None and highest > end.total_chunks:
            known, what = highest, "a chunk beyond it came before"
        if known is not None:
            raise EndConflict(
                table=end.table_type,
                sender=end.sender,
                what=what,
                known=known,
                sent=end.total_chunks,
            )
        self._commit(message_record(KIND_DATA, end))

    def recover_last_processing_chunk(self, client_id: str) -> Chunk | None:
        """Return the newest chunk that came and is not counted."""
        newest = list(self._books.of(client_id).came.values())[-1:]
        return next(iter(chunks_in(newest, path=str(self._journal.path))), None)

    def recover_processing_chunks(self, client_id: str) -> list[Chunk]:
        """Return every chunk that came and is not counted, in the order they came."""
        return chunks_in(self._books.of(client_id).came.values(), path=str(self._journal.path))

    def recover_buffered_chunks(self, client_id: str) -> list[Chunk]:
        """Return the chunks that wait in the buffer, in the order they came."""
        return chunks_in(self._books.of(client_id).buffered.values(), path=str(self._journal.path))

    def announced(self, client_id: str) -> dict[Source, int]:
        """Return the totals of the ENDs that came, by table type and sender."""
        return dict(self._books.ends_of(client_id))

    def is_complete(self, client_id: str, source: Source) -> bool:
        """Tell whether the chunks that came *equal* those that the source's END announced."""
        return self._books.of(client_id).is_complete(source)

    # What was done with it

    def commit_working_state(
        self, state: WorkingState, last_processed_id: ChunkId, *, forget_sends: bool = False
    ) -> None:
        """Commit a client's state, with the chunks in it, and drop those.

        It covers the chunks that came before `last_processed_id`, and that one. If that one waited
        in the buffer: all that came to be applied at once, and the buffer up to that one.

        `forget_sends`: all that went out for the client belongs to chunks in this state. They are
        not applied again, so nobody will ask whether it went out.

        Raises:
            UsageInvalid: that chunk did not come, or is counted already.
        """
        books = self._books.of(last_processed_id.client)
        came = list(books.came)
        if last_processed_id in books.came:
            ids = came[: came.index(last_processed_id) + 1]
        elif last_processed_id in books.buffered:
            buffered = list(books.buffered)
            ids = came + buffered[: buffered.index(last_processed_id) + 1]
        else:
            what = f"{last_processed_id} did not come, or is counted already"
            raise UsageInvalid(what=what, remedy="Commit the chunk before the state.")
        data, covers = state.to_bytes(), covers_of(ids)
        self._commit(state_record(last_processed_id, covers, data, forgets_sends=forget_sends))

    def recover_working_state(self, client_id: str, kind: type[S]) -> S | None:
        """Return the last committed state of a client, or None."""
        data = self._books.of(client_id).state
        return None if data is None else kind.from_bytes(data)

    def should_commit_state(self, client_id: str) -> bool:
        """Tell whether `commit_interval` chunks wait for a state commit."""
        return len(self._books.of(client_id).came) >= self._interval

    def process_has_been_counted(self, chunk_id: ChunkId) -> bool:
        """Tell whether a chunk is in the committed state, or cleared. It must not be applied."""
        if self._is_finished(chunk_id.client):
            return True
        return self._books.of(chunk_id.client).has_counted(chunk_id)

    def chunk_has_come(self, chunk_id: ChunkId) -> bool:
        """Tell whether a chunk is committed here, counted or not. It is only to be acked.

        Of a finished client, all that was announced has come; anything, if nothing was announced.
        """
        if self._is_finished(chunk_id.client):
            ends = self._books.ends_of(chunk_id.client)
            return not ends or chunk_id.ordinal <= ends.get(
                (chunk_id.table_type, chunk_id.sender), 0
            )
        return self._books.of(chunk_id.client).knows(chunk_id)

    def clear_processing_commit(self, *chunk_ids: ChunkId) -> None:
        """Count chunks whose effect needs no state, all of one client, and drop them."""
        for client in {one.client for one in chunk_ids}:
            mine = [one for one in chunk_ids if one.client == client]
            self._commit(clear_record(client, covers_of(mine)))

    # What went out

    def commit_send_ack(self, client_id: str, *message_ids: str) -> None:
        """Commit that messages went out.

        It is kept until the client is finished, or a state commit forgets it.
        """
        if not self._is_finished(client_id):
            for record in send_records(client_id, message_ids):
                self._commit(record)

    def send_has_been_acknowledged(self, client_id: str, message_id: str) -> bool:
        """Tell whether a message went out."""
        return self._is_finished(client_id) or message_id in self._books.of(client_id).sent

    # Clients

    def clients(self) -> list[str]:
        """Return the clients that are not finished."""
        return list(self._books.clients)

    def finish(self, client_id: str) -> None:
        """Delete all of a client but its name and what its senders announced.

        Late copies of its messages change nothing; what contradicts its ENDs is refused.
        """
        if not self._is_finished(client_id):
            self._commit(finish_record(client_id, self._books.of(client_id).ends))

    def _is_finished(self, client_id: str) -> bool:
        return client_id in self._books.finished


def _standing(directory: Path | None, worker: str) -> Iterator[Record]:
    """Yield the fewest records that say what stands in another directory. Lazy: may be unused."""
    if directory is not None:
        books = Books(str(directory))
        for record in read_journal(directory, worker):
            books.apply(record)
        yield from books.records()


class ChunkBuffer:
    """Chunks of one client that wait: durable, in order."""

    def __init__(self, persistence: PersistenceService, client_id: str) -> None:
        self._persistence, self._client_id = persistence, client_id
        self._read: list[ChunkId] = []

    def append_chunk(self, chunk: Chunk) -> None:
        """Commit that a chunk came and waits here."""
        if chunk.client != self._client_id:
            what = f"a chunk of client {chunk.client} in the buffer of {self._client_id}"
            raise UsageInvalid(what=what, remedy="Use one buffer per client.")
        self._persistence.append_chunk_to_buffer(chunk)

    def read_all_chunks(self) -> list[Chunk]:
        """Return what waits, in the order it came."""
        chunks = self._persistence.recover_buffered_chunks(self._client_id)
        self._read = [chunk.id for chunk in chunks]
        return chunks

    def clear(self) -> None:
        """Count and drop what `read_all_chunks` returned last; what came since stays."""
        if self._read:
            self._persistence.clear_processing_commit(*self._read)
            self._read = []

    def get_chunk_count(self) -> int:
        """Return how many chunks wait."""
        return len(self._persistence.recover_buffered_chunks(self._client_id))

    def get_buffer_size(self) -> int:
        """Return how many bytes of payload wait."""
        chunks = self._persistence.recover_buffered_chunks(self._client_id)
        return sum(len(chunk.payload) for chunk in chunks)
