"""What a client may hand in over its queue, as intake takes it. The client's name is the queue's.

A message is acked after this returned. What is wrong with the message raises `Reject`: it goes to
the dead letters, with the reason. What is wrong with the machine is waited for, un-acked: the
queue keeps what is not taken, which is all the back-pressure there is. What is too much of this
client now raises `Postponed`: others pass it, and it comes again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from holdfast._base.ids import RunId
from holdfast._base.intervals import Intervals
from holdfast.blobs.contract import BlobStore
from holdfast.engine.barrier import is_complete
from holdfast.errors import DataError, EndConflict, HoldfastError, RunUnknown
from holdfast.intake.documents import Documents
from holdfast.intake.rules import accept_chunk, accept_end
from holdfast.intake.upload import put_chunk, put_end
from holdfast.router.held import Stream
from holdfast.router.messages import ClientChunk, ClientEnd, ClientMessage, decode
from holdfast.router.refusals import POSTPONES, WAITS, Postponed, Stopped, rejected
from holdfast.router.room import Room
from holdfast.store.contract import Store
from holdfast.store.rows import Chunk, ChunkKind, End, EndFacts, RunState, SenderProgress

T = TypeVar("T")
PAUSE_S = 0.5
"""Before the machine is asked again: a full disk is not emptied in less."""


class Door:
    """Takes chunks and ENDs of clients. Used by many threads."""

    def __init__(
        self,
        store: Store,
        blobs: BlobStore,
        documents: Documents,
        room: Room,
        *,
        stop: threading.Event,
        tell: Callable[[str, dict[str, object]], None],
    ) -> None:
        self._store, self._blobs, self._stop, self._tell = store, blobs, stop, tell
        self._documents, self._room = documents, room

    def read(self, body: bytes) -> ClientMessage:
        """Return the message in `body`.

        Raises:
            Reject: it is none.
        """
        try:
            return decode(body)
        except DataError as error:
            raise rejected(error) from error

    def take_chunk(self, client: str, message: ClientChunk) -> bool:
        """Commit a chunk. False: it was there already.

        Raises:
            Reject: intake refused it.
            Postponed: its client has too much here now.
            Stopped: the machine could not, and nobody waits any more.
        """
        chunk = Chunk(
            table=message.table,
            sender=message.sender,
            ordinal=message.ordinal,
            kind=ChunkKind.BLOB,
            location="",
            size=len(message.payload),
            checksum=message.checksum,
            format=message.format,
        )

        return self.patiently(lambda: self._put(client, chunk, message))

    def _put(self, client: str, chunk: Chunk, message: ClientChunk) -> bool:
        look = self._store.look_at_chunk(client, message.run, chunk)
        if look is None:
            raise RunUnknown(run=message.run)
        if not accept_chunk(chunk, look.facts):
            return False
        self._documents.check_format(chunk)
        self._room.check(client, look, chunk.size)
        is_new = put_chunk(
            *(self._store, self._blobs, message.run, chunk, [message.payload]),
            barrier=is_complete,
            check=self._documents.check,
        )
        if is_new:
            self._room.took(client, look, chunk.size)
        return is_new

    def take_end(self, client: str, end: ClientEnd, *, owed: bool = False) -> bool:
        """Commit an END, and look at the barrier. False: it was there already. Raises likewise.

        `owed`: intake remembers that shards are to hear of it.
        """

        def put() -> bool:
            self._check_owner(client, end.run)
            told = End(end.table, end.sender, end.count)
            return put_end(self._store, end.run, told, is_complete, owed=owed)

        return self.patiently(put)

    def missing(self, client: str, end: ClientEnd) -> Intervals:
        """Return which announced ordinals are not committed yet, of an END that may be taken.

        Raises:
            Reject: intake would refuse it now.
        """

        def look() -> Intervals:
            state = self._check_owner(client, end.run)
            sender = self._sender(Stream(client, end.run, end.table, end.sender))
            received = sender.received if sender else Intervals()
            facts = EndFacts(
                run_id=end.run,
                state=state,
                declared=sender is not None,
                announced=sender.announced if sender else None,
                highest=received.ranges[-1][1] if received.ranges else 0,
            )
            accept_end(End(end.table, end.sender, end.count), facts)
            return Intervals.first(end.count).minus(received)

        return self.patiently(look)

    def still_missing(self, stream: Stream, count: int) -> Intervals:
        """Return which of a stream's ordinals are not committed yet."""
        sender = self._sender(stream)
        received = sender.received if sender else Intervals()
        return Intervals.first(count).minus(received)

    def takes_more(self, run: str) -> bool:
        """Tell whether a run still takes chunks."""
        found = self._store.read_run(RunId(run))
        return found is not None and found.state == RunState.OPEN

    def _sender(self, stream: Stream) -> SenderProgress | None:
        progress = self._store.read_progress(RunId(stream.run))
        here = (stream.table, stream.sender)
        return next((one for one in progress if (one.table, one.sender) == here), None)

    def _check_owner(self, client: str, run: str) -> str:
        """Return the run's state. A run of somebody else is one that never was."""
        found = self._store.read_run(RunId(run))
        if found is None or found.client != client:
            raise RunUnknown(run=run)
        return found.state

    def patiently(self, action: Callable[[], T]) -> T:
        """Do something; wait while the machine cannot; reject what can never be done.

        Raises:
            Reject, Postponed, Stopped: it was not done.
        """
        told = False
        while True:
            try:
                return action()
            except HoldfastError as error:
                if isinstance(error, POSTPONES):
                    raise Postponed(str(error)) from error
                if not isinstance(error, WAITS):
                    raise rejected(error) from error
                if not told:
                    self._tell("waiting", {"error": str(error)})
                    told = True
            if self._stop.wait(PAUSE_S):
                raise Stopped


def conflict(end: ClientEnd, known: int) -> EndConflict:
    """Return the refusal of an END whose count is not the one that is held."""
    return EndConflict(
        table=end.table,
        sender=end.sender,
        what="another count was announced",
        known=known,
        sent=end.count,
    )
