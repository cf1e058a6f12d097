"""External runs: ask the producer, take what it sends, piece by piece, in any order.

Each step is durable before the next has an effect, and may be done again:

1. FORWARDING is durable. The run's queues are made, and the producer is asked. Crash in between:
   it is asked again, under the same id.
2. RECEIVING is durable. Messages are taken from both queues.
3. The bytes of a piece are a blob whose name carries run, series, ordinal and checksum. Crash
   after: the message comes again, and finds its blob there.
4. A row binds the blob; the last one of all moves the run to COMPLETING, in the same transaction.
   Crash after: the message comes again, and is acked.
5. The ack.

Crash points: `external.*`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from holdfast._base.crashpoint import crashpoint
from holdfast._base.files import sha256_of
from holdfast._base.ids import Ordinal, RunId, digest
from holdfast.blobs.contract import BlobStore
from holdfast.delivery.messages import Header, Payload, decode
from holdfast.delivery.ports import Received, ResultQueues, request_for
from holdfast.delivery.rules import accept_header, accept_piece, is_whole
from holdfast.delivery.states import move
from holdfast.delivery.troubles import Troubles
from holdfast.errors import Damaged, DataError, ResultConflict, RunGone, UsageInvalid
from holdfast.store.contract import Store
from holdfast.store.reasons import shortened
from holdfast.store.result_rows import ExternalPiece
from holdfast.store.rows import Fence, Run, RunKind, RunState

EXTERNAL = "external/"
"""The prefix of the names of all blobs of external results."""
RECEIVE_COUNT = 4
"""Messages taken at once, of at most 8 MiB of data each: more would leave 100 MiB of memory."""

_LOOK_BYTES = 64 << 10
"""Bytes looked at at once for quotes: each may be one, and is then an object."""


def piece_blob(run_id: RunId, series: str, ordinal: int, checksum: str) -> str:
    """Return the name of the blob of a piece. The hash of its series stands there: as short as any
    other, whatever the name.
    """
    return f"{EXTERNAL}{run_id}/{digest('series', series)}/{ordinal}-{checksum}"


def receiving_of(run_id: RunId) -> str:
    """Return what trouble with the messages of a run is called."""
    return f"run {run_id}"


class Counted:
    """Bytes of a piece as they go by, and the rows that they are if they are CSV without a header.

    Whether they are CSV only the header says, which may come last: who lists pieces of another
    format gives no rows (`holdfast.store.sqlite.results`).
    """

    def __init__(self) -> None:
        """Begin at nothing."""
        self.size, self._newlines = 0, 0
        self._is_quoted, self._is_cut = False, False

    @property
    def rows(self) -> int:
        """Return the rows of what went by; the last one needs no newline."""
        return self._newlines + self._is_cut

    def over(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        """Pass the parts on, counted."""
        for part in parts:
            self.add(part)
            yield part

    def add(self, data: bytes) -> None:
        """Count some bytes more. A newline within quotes ends no row."""
        self.size += len(data)
        self._is_cut = not data.endswith(b"\n") if data else self._is_cut
        for at in range(0, len(data), _LOOK_BYTES):
            for place, text in enumerate(data[at : at + _LOOK_BYTES].split(b'"')):
                self._is_quoted ^= place > 0
                self._newlines += 0 if self._is_quoted else text.count(b"\n")


class Receiver:
    """Takes external runs from FORWARDING to COMPLETING, under a fence."""

    def __init__(
        self,
        store: Store,
        blobs: BlobStore,
        queues: ResultQueues,
        fence: Fence,
        troubles: Troubles,
    ) -> None:
        self._store, self._blobs, self._queues, self._fence = store, blobs, queues, fence
        self._troubles = troubles

    def advance(self) -> int:
        """Take one step with each external run; returns how many messages were dealt with."""
        dealt = 0
        for run in self._store.list_runs_in(RunState.FORWARDING, RunState.RECEIVING):
            if run.kind is RunKind.EXTERNAL:
                work = partial(self._attend, run)
                dealt += self._troubles.attempt(receiving_of(run.run_id), work, asks_broker=True)
        return dealt

    def _attend(self, run: Run) -> int:
        if run.state == RunState.FORWARDING:
            self._forward(run)
            return 1 + self._receive(run)
        return self._receive(run)

    def _forward(self, run: Run) -> None:
        """Ask the producer; see steps 1 and 2."""
        known = self._store.read_external(run.run_id)
        if known is None:
            return
        request = request_for(run.run_id, run.client)
        crashpoint("external.forward.before")
        # A broker knows no fence: it is proved right before, for whoever woke up meanwhile.
        self._store.beat_lease(self._fence)
        self._queues.open(request)
        self._queues.send_request(known.producer, request)
        crashpoint("external.forward.sent")
        current, to = RunState.FORWARDING, RunState.RECEIVING
        move(self._store, self._fence, run.run_id, current=current, to=to)
        crashpoint("external.forward.after")

    def _receive(self, run: Run) -> int:
        """Deal with what is on the run's queues now; see steps 3 to 5."""
        request = request_for(run.run_id, run.client)
        dealt = 0
        for queue in (request.header_queue, request.payload_queue):
            for message in self._queues.receive(queue, RECEIVE_COUNT):
                self._take(run.run_id, message)
                self._queues.ack(message)
                crashpoint("external.ack.after")
                dealt += 1
        return dealt

    def _take(self, run_id: RunId, message: Received) -> None:
        """Make what a message says durable: itself, or that its run failed for it.

        A message to a run that is over has nothing to say; it is acked with the others, so that
        nobody holds it until the queue goes.
        """
        try:
            self._understand(run_id, message)
        except RunGone:
            return
        except (ResultConflict, DataError, UsageInvalid) as error:
            self._fail(run_id, str(error))

    def _understand(self, run_id: RunId, message: Received) -> None:
        said = decode(message.body)
        if not isinstance(said, Header | Payload) or said.run != run_id:
            what = f"a {type(said).__name__} of run {said.run} is on queue {message.queue}"
            raise Damaged(path="a producer's message", what=what)
        if isinstance(said, Header):
            self._store.record_header(self._fence, run_id, said.series, accept_header, is_whole)
            crashpoint("external.header.after")
        else:
            self._bind(said)

    def _bind(self, payload: Payload) -> None:
        piece = ExternalPiece(
            series=payload.series,
            ordinal=Ordinal(payload.ordinal),
            total=payload.total,
            blob=payload.reference,
            size=len(payload.data),
            checksum=payload.checksum,
        )
        # Looked at before the upload, so that a repeated piece is not uploaded again, and one that
        # contradicts another leaves no blob behind. The transaction looks again.
        known = self._store.read_external(payload.run, piece)
        if known is None:
            raise RunGone(run=payload.run, state="unknown")
        if not accept_piece(piece, known.facts):
            return
        if payload.ordinal:
            try:
                piece = self._stored(piece, payload)
            except Damaged as error:
                # Clients read the reason: it names a blob as its producer does, no path of ours.
                name = payload.reference or f"piece {piece.ordinal} of series {piece.series}"
                raise Damaged(path=name, what=error.what) from error
        crashpoint("external.upload.after")
        self._store.bind_piece(self._fence, payload.run, piece, accept_piece, is_whole)
        crashpoint("external.piece.after")

    def _stored(self, piece: ExternalPiece, payload: Payload) -> ExternalPiece:
        """Return the piece with its bytes in a blob: uploaded here, or by the producer before."""
        if not payload.reference:
            name = piece_blob(payload.run, payload.series, payload.ordinal, payload.checksum)
            if sha256_of([payload.data]) != payload.checksum:
                raise Damaged(path=name, what="the data of a piece do not fit its checksum")
            # The blobs know no fence either: what comes too late all the same, a sweep finds.
            self._store.beat_lease(self._fence)
            info = self._blobs.create(name, [payload.data])
            counted = Counted()
            counted.add(payload.data)
            return replace(
                piece, blob=name, size=info.size, checksum=info.checksum, rows=counted.rows
            )
        if not payload.reference.startswith(f"{EXTERNAL}{payload.run}/"):
            raise Damaged(path=payload.reference, what="a piece refers to a blob of another run")
        counted = Counted()
        if sha256_of(counted.over(self._parts_of(payload.reference))) != payload.checksum:
            what = "the blob of a piece does not fit its checksum"
            raise Damaged(path=payload.reference, what=what)
        return replace(piece, size=counted.size, rows=counted.rows)

    def _parts_of(self, blob: str) -> Iterator[bytes]:
        """Read a blob: any length, so any time."""
        for part in self._blobs.read(blob):
            self._troubles.go_on()
            yield part

    def _fail(self, run_id: RunId, reason: str) -> None:
        """Fail a run whose producer contradicts itself. Its queues go when it is swept."""
        run = self._store.read_run(run_id)
        if run is not None and run.state in (RunState.RECEIVING, RunState.COMPLETING):
            state = RunState(run.state)
            to = RunState.FAILED
            # What a producer wrote may be long, and no text that could be stored.
            reason = shortened(reason.encode("ascii", "backslashreplace").decode())
            move(self._store, self._fence, run_id, current=state, to=to, error=reason)
            crashpoint("external.fail.after")
