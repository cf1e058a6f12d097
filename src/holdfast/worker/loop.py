"""The loop of a worker: consume, data commit, ack, apply, state commit, send, send commit.

What a crash between two of them means:

* before the data commit: the message comes again;
* before the ack: it comes again, is known, and is only acked;
* before the state commit: it is applied again, to the state that does not hold it;
* before the send commit: the message goes out again under the same id.

A client is finished when the chunks of every declared sender *equal* what its END announced. Then,
in this order: the state is committed, the results are sent, `results_sent` is committed, the END is
sent, `end_sent` is committed, the state is deleted. A worker that starts goes on at that step.

`apply` and `results` must depend on the state and the chunk alone: they are called again after a
crash, and what they gave before may be with the next worker already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from holdfast._base.crashpoint import crashpoint
from holdfast._base.ids import digest
from holdfast._base.invariant import invariant
from holdfast.errors import UsageInvalid
from holdfast.worker.crashes import crash_after_end_processed, crash_after_two_chunks
from holdfast.worker.messages import Chunk, End, Message
from holdfast.worker.persistence import PersistenceService, WorkingState
from holdfast.worker.ports import Delivery, Inbox, Outbox

S = TypeVar("S", bound=WorkingState)


class Role(Protocol[S]):
    """What a worker does with chunks: the part that users write."""

    output: str
    """The table type of what is sent."""
    forwards: bool
    """True: `apply` answers each chunk, which is sent on at once under the chunk's own ordinal by
    the sender `worker/sender`. False: `apply` only changes the state, and `results` are sent."""
    first: str
    """The table type that must be complete before chunks of others are applied; "" for none."""

    def start(self) -> S:
        """Return the state of a client of whom nothing came."""

    def apply(self, state: S, chunk: Chunk) -> bytes:
        """Change the state by one chunk; return what to send on, if the role forwards."""

    def results(self, state: S) -> Sequence[bytes]:
        """Return the results, when all chunks are applied; none if the role forwards."""


class Worker(Generic[S]):
    """One worker: a role, its journal, where messages come from and where they go.

    `senders` declares who fills each table; anybody else is refused.
    """

    def __init__(
        self,
        name: str,
        role: Role[S],
        persistence: PersistenceService,
        inbox: Inbox,
        outbox: Outbox,
        *,
        senders: Mapping[str, Sequence[str]],
    ) -> None:
        self._name, self._role, self._persistence = name, role, persistence
        self._inbox, self._outbox = inbox, outbox
        self._sources = [(table, sender) for table in senders for sender in senders[table]]
        if role.first and role.first not in senders:
            what = f"worker {name} waits for table {role.first}, which nobody fills"
            raise UsageInvalid(what=what, remedy=f"Declare the senders of {role.first}.")
        if role.forwards and len(senders) != 1:
            what = f"worker {name} forwards chunks of {len(senders)} tables under one name"
            raise UsageInvalid(what=what, remedy="Give each table a worker of its own.")
        self._states: dict[str, S] = {}
        self._applied = 0
        self._recover()
        self._resume_pending_finalization()

    def run_until_idle(self) -> None:
        """Deal with messages until the inbox has none."""
        while self.handle_next():
            pass

    def handle_next(self) -> bool:
        """Deal with the next message. False: there is none."""
        delivery = self._inbox.receive()
        if delivery is None:
            return False
        message = delivery.message
        if isinstance(message, Chunk):
            self._guard(message, message.table_type)
            self._handle_chunk(delivery, message)
        elif isinstance(message, End):
            self._guard(message, message.table_type)
            self._handle_end(delivery, message)
        else:
            self._guard(message, "")
        return True

    def _guard(self, message: Message, table_type: str) -> None:
        """Refuse what this worker does not expect: acking it would lose it without a word."""
        if (table_type, message.sender) not in self._sources:
            what = (
                f"worker {self._name} got {type(message).__name__} of client {message.client},"
                f" table {table_type or 'none'}, sender {message.sender}, which is not declared"
            )
            raise UsageInvalid(what=what, remedy="Declare it in senders, or route it elsewhere.")

    def _handle_chunk(self, delivery: Delivery, chunk: Chunk) -> None:
        """1. Data commit. 2. Ack. 3. Apply, unless it has to wait. 4. State commit, when due."""
        if self._persistence.chunk_has_come(chunk.id):
            self._inbox.ack(delivery)
            return
        waits = not self._may_apply(chunk)
        crashpoint("worker.data.before")
        if waits:
            self._persistence.append_chunk_to_buffer(chunk)
        else:
            self._persistence.commit_processing_chunk(chunk)
        crashpoint("worker.data.after")
        self._inbox.ack(delivery)
        crashpoint("worker.ack.after")
        if not waits:
            self._apply(chunk)
            if self._persistence.should_commit_state(chunk.client):
                self._commit_state(chunk)
        self._check(chunk.client)

    def _handle_end(self, delivery: Delivery, end: End) -> None:
        """1. The END is committed at once, never buffered. 2. Ack. 3. See what it completes."""
        crashpoint("worker.end.before")
        self._persistence.commit_end(end)
        crashpoint("worker.end.after")
        self._inbox.ack(delivery)
        crash_after_end_processed()
        self._check(end.client)

    def _state(self, client: str) -> S:
        if client not in self._states:
            fresh = self._role.start()
            found = self._persistence.recover_working_state(client, type(fresh))
            self._states[client] = fresh if found is None else found
        return self._states[client]

    def _may_apply(self, chunk: Chunk) -> bool:
        first = self._role.first
        return not first or chunk.table_type == first or self._has_all(chunk.client, first)

    def _has_all(self, client: str, table_type: str = "") -> bool:
        """Tell whether all senders of a table, or of all tables, are complete."""
        return all(
            self._persistence.is_complete(client, source)
            for source in self._sources
            if not table_type or source[0] == table_type
        )

    def _apply(self, chunk: Chunk) -> None:
        answer = self._role.apply(self._state(chunk.client), chunk)
        if self._role.forwards:
            sender = self._sender_for(chunk.sender)
            self._send(Chunk(chunk.client, self._role.output, sender, chunk.ordinal, answer))
        crashpoint("worker.apply.after")
        self._applied += 1
        crash_after_two_chunks(self._applied)

    def _sender_for(self, sender: str) -> str:
        """Return under whose name a forwarded chunk goes: its ordinals stay without a gap."""
        return f"{self._name}/{sender}"

    def _commit_state(self, last: Chunk) -> None:
        self._persistence.commit_working_state(self._state(last.client), last.id)
        crashpoint("worker.state.after")

    def _send(self, message: Message) -> None:
        """1. Send. 2. Send commit. Crash between: it goes out again under the same id."""
        if self._persistence.send_has_been_acknowledged(message.client, message.message_id):
            return
        crashpoint("worker.send.before")
        self._outbox.send(message)
        crashpoint("worker.send.after")
        self._persistence.commit_send_ack(message.client, message.message_id)

    def _check(self, client: str) -> None:
        """Apply what no longer has to wait; finish the client if nothing is missing."""
        crashpoint("worker.check.before")
        if self._role.first and self._has_all(client, self._role.first):
            waiting = self._persistence.recover_buffered_chunks(client)
            for chunk in waiting:
                self._apply(chunk)
            if waiting:
                crashpoint("worker.buffer.applied")
                self._commit_state(waiting[-1])
        if self._has_all(client):
            self._finalize(client)

    def _finalize(self, client: str) -> None:
        """Publish and forget a client. Each step is left out if a commit says it was done.

        1. Its last state is committed: what is published is what stands.
        2. Results are sent, each with its send commit; `results_sent`.
        3. The END is sent, after all results; `end_sent`.
        4. Both flags stand: the state is deleted.
        """
        last = self._persistence.recover_last_processing_chunk(client)
        if last is not None:
            self._commit_state(last)
        crashpoint("worker.publish.before")
        results = self._role.results(self._state(client))
        invariant(not (results and self._role.forwards), "a role that forwards has no results")
        if not self._is_flagged(client, "results_sent"):
            for ordinal, payload in enumerate(results, 1):
                self._send(Chunk(client, self._role.output, self._name, ordinal, payload))
            crashpoint("worker.results.before")
            self._flag(client, "results_sent")
        crashpoint("worker.results.after")
        if not self._is_flagged(client, "end_sent"):
            for end in self._ends(client, len(results)):
                self._send(end)
            crashpoint("worker.finish.before")
            self._flag(client, "end_sent")
        crashpoint("worker.finish.after")
        self._persistence.finish(client)
        self._states.pop(client, None)
        crashpoint("worker.clear.after")

    def _ends(self, client: str, results: int) -> list[End]:
        """Return the ENDs to send: one, or for a role that forwards one per sender of its own."""
        output = self._role.output
        if not self._role.forwards:
            return [End(client, output, results, self._name)]
        return [
            End(client, output, total, self._sender_for(sender))
            for (_, sender), total in sorted(self._persistence.announced(client).items())
        ]

    def _is_flagged(self, client: str, flag: str) -> bool:
        return self._persistence.send_has_been_acknowledged(client, digest(flag, client))

    def _flag(self, client: str, flag: str) -> None:
        self._persistence.commit_send_ack(client, digest(flag, client))

    def _recover(self) -> None:
        """Apply again, in order, what came and is not counted."""
        for client in self._persistence.clients():
            came = self._persistence.recover_processing_chunks(client)
            for chunk in came:
                self._apply(chunk)
            if came:
                self._commit_state(came[-1])
            crashpoint("worker.recover.each")

    def _resume_pending_finalization(self) -> None:
        """Send what a crash kept back: waiting chunks, results, the END; or only delete."""
        for client in self._persistence.clients():
            self._check(client)
