"""The loop of a worker: consume, data commit, ack, apply, send, send commit, state commit.

Messages are dealt with in batches: one fsync makes all data commits of a batch durable, one ack
covers them. What a crash between two steps means:

* before the data commit: the messages come again;
* before the ack: they come again, are known, and are only acked;
* before the send commit: the messages go out again under the same ids;
* before the state commit: chunks are applied again, to the state that does not hold them, and what
  they send is known to be sent. The state commit forgets it: they are not applied again.

A client is finished when the chunks of every declared sender *equal* what its END announced. Then,
in this order: the state is committed, the results are sent, `results_sent` is committed, the ENDs
are sent, `end_sent` is committed, the state is deleted. A worker that starts goes on at that step.

`apply` and `results` must depend on the state and the chunk alone: they are called again after a
crash, and what they gave before may be with the next worker already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from holdfast._base.crashpoint import crashpoint
from holdfast._base.ids import digest
from holdfast.errors import HoldfastError, UsageInvalid
from holdfast.worker.crashes import crash_after_end_processed, crash_after_two_chunks
from holdfast.worker.messages import Chunk, End, Message
from holdfast.worker.persistence import COMMIT_INTERVAL, PersistenceService
from holdfast.worker.ports import Delivery, Inbox, Outbox
from holdfast.worker.reports import TABLE_TYPE as REPORTS
from holdfast.worker.reports import received_report, sent_report
from holdfast.worker.roles import Numbered, Output, Part, RawState, Release, Role, S, Sent


@dataclass(frozen=True, slots=True)
class Reporting:
    """To whom a worker reports what it applied, and which outputs get no END from itself.

    The coordinator says the ENDs of the outputs that are `held`, when it releases their shards.
    """

    to: str
    held: Sequence[Output] = ()


class Worker(Generic[S]):
    """One worker: a role, its journal, where messages come from and where they go.

    `senders` declares who fills each table; anybody else is refused. `outboxes` leads to each
    destination that the role names. `batch_size` messages share a data commit and an ack; more of
    them are applied again after a crash.
    """

    def __init__(
        self,
        name: str,
        role: Role[S],
        persistence: PersistenceService,
        inbox: Inbox,
        outboxes: Mapping[str, Outbox],
        *,
        senders: Mapping[str, Sequence[str]],
        reporting: Reporting | None = None,
        batch_size: int = COMMIT_INTERVAL,
    ) -> None:
        self._name, self._role, self._persistence = name, role, persistence
        self._inbox, self._outboxes, self._batch_size = inbox, outboxes, batch_size
        self._sources = [(table, sender) for table in senders for sender in senders[table]]
        self._reporting = reporting
        self._outputs = [*role.outputs, *([Output(reporting.to, REPORTS)] if reporting else [])]
        self._check_declarations(senders)
        self._states: dict[str, Numbered[S]] = {}
        self._outgoing: list[tuple[str, Message]] = []
        self._left: list[Delivery] = []
        self._applied, self._failed = 0, False
        self._recover()
        self._resume_pending_finalization()

    def _check_declarations(self, senders: Mapping[str, Sequence[str]]) -> None:
        for table in self._role.first:
            if table not in senders:
                what = f"worker {self._name} waits for table {table}, which nobody fills"
                raise UsageInvalid(what=what, remedy=f"Declare the senders of {table}.")
        for output in self._outputs:
            if output.to not in self._outboxes:
                what = f"worker {self._name} sends to {output.to}, which it has no outbox for"
                raise UsageInvalid(what=what, remedy=f"Give it an outbox {output.to}.")

    def run_until_idle(self) -> None:
        """Deal with messages until the inbox has none."""
        while self.handle_batch():
            pass

    def handle_batch(self) -> bool:
        """Deal with the next messages. False: there are none.

        1. Data commit of all. 2. Ack. 3. Apply those that need not wait, send what they give.
        4. State commit, where due. 5. See what is complete.

        Raises:
            HoldfastError: the first of them cannot be taken: it is not acked, and is met again. Or
                something failed later: then make the worker again, as after an interrupt.
        """
        self._refuse_after_failure()
        # Until the end: an interrupt anywhere leaves messages that came and were not dealt with.
        self._failed = True
        self._receive()
        if not self._left:
            self._failed = False
            return False
        crashpoint("worker.data.before")
        taken, ready = self._commit_data(self._left)
        self._left = self._left[len(taken) :]
        crashpoint("worker.data.after")
        self._inbox.ack(taken)
        crashpoint("worker.ack.after")
        self._apply_all(ready)
        if any(isinstance(delivery.message, End) for delivery in taken):
            crash_after_end_processed()
            crashpoint("worker.end.after")
        for client in dict.fromkeys(delivery.message.client for delivery in taken):
            self._check(client)
        self._failed = False
        return True

    def _receive(self) -> None:
        """Get the next messages, unless one that was refused, and those behind it, are left.

        It must be met again, not passed over.
        """
        try:
            self._left = self._left or self._inbox.receive(self._batch_size)
        except HoldfastError:
            # Nothing came: whoever asks again misses nothing.
            self._failed = False
            raise

    def _refuse_after_failure(self) -> None:
        """Refuse to go on where an error struck: chunks would be counted that were not applied."""
        if self._failed:
            what = f"worker {self._name} was stopped by an error"
            raise UsageInvalid(what=what, remedy="Make it again: it recovers from its journal.")

    def _commit_data(
        self, deliveries: Sequence[Delivery]
    ) -> tuple[Sequence[Delivery], list[Chunk]]:
        """Commit what came: all, or those before one that is refused.

        Returns them, and the chunks among them that are to be applied now.
        """
        ready: list[Chunk] = []
        with self._persistence.grouped():
            for place, delivery in enumerate(deliveries):
                try:
                    ready += self._commit_message(delivery.message)
                except HoldfastError:
                    if place == 0:
                        # Nothing is committed: the worker stands where it stood.
                        self._failed = False
                        raise
                    return deliveries[:place], ready
        return deliveries, ready

    def _commit_message(self, message: Message) -> list[Chunk]:
        """Commit one message. An END is never buffered. Returns the chunk if it need not wait."""
        self._guard(message)
        if isinstance(message, End):
            self._persistence.commit_end(message)
        elif isinstance(message, Chunk) and not self._persistence.chunk_has_come(message.id):
            if self._may_apply(message):
                self._persistence.commit_processing_chunk(message)
                return [message]
            self._persistence.append_chunk_to_buffer(message)
        return []

    def _guard(self, message: Message) -> None:
        """Refuse what this worker does not expect: acking it would lose it without a word."""
        table_type = message.table_type if isinstance(message, Chunk | End) else ""
        if not table_type or (table_type, message.sender) not in self._sources:
            what = (
                f"worker {self._name} got {type(message).__name__} of client {message.client},"
                f" table {table_type or 'none'}, sender {message.sender}, which is not declared"
            )
            raise UsageInvalid(what=what, remedy="Declare it in senders, or route it elsewhere.")

    def _state(self, client: str) -> Numbered[S]:
        if client not in self._states:
            fresh = self._role.start()
            found = self._persistence.recover_working_state(client, RawState)
            self._states[client] = (
                Numbered(fresh) if found is None else Numbered.of(type(fresh), found.data)
            )
        return self._states[client]

    def _may_apply(self, chunk: Chunk) -> bool:
        first = self._role.first
        return not first or chunk.table_type in first or self._has_all(chunk.client, first)

    def _has_all(self, client: str, tables: Sequence[str] = ()) -> bool:
        """Tell whether all senders of some tables, or of all tables, are complete."""
        return all(
            self._persistence.is_complete(client, source)
            for source in self._sources
            if not tables or source[0] in tables
        )

    def _apply_all(self, chunks: Sequence[Chunk]) -> None:
        """Apply chunks in order, send what they give, and commit the states that are due.

        A state commit counts chunks, so what they sent is safe before it.
        """
        last: dict[str, Chunk] = {}
        for chunk in chunks:
            self._apply(chunk)
            last[chunk.client] = chunk
        self._flush()
        for client, chunk in last.items():
            if self._persistence.should_commit_state(client):
                self._commit_state(chunk)

    def _apply(self, chunk: Chunk) -> None:
        crashpoint("worker.apply.before")
        numbered = self._state(chunk.client)
        self._queue(chunk.client, numbered, self._role.apply(numbered.state, chunk))
        if self._reporting is not None:
            report = Part(self._reporting.to, REPORTS, received_report(chunk.id))
            self._queue(chunk.client, numbered, [report])
        crashpoint("worker.apply.after")
        self._applied += 1
        crash_after_two_chunks(self._applied)

    def _queue(self, client: str, numbered: Numbered[S], sent: Iterable[Sent]) -> None:
        """Give what is to be sent its number, and put it in line."""
        for one in sent:
            if isinstance(one, Release):
                self._outgoing.append((one.to, one.end))
                continue
            if (one.to, one.table_type) not in self._outputs:
                what = f"worker {self._name} sends {one.table_type} to {one.to}"
                raise UsageInvalid(what=what, remedy="Declare it in the role's outputs.")
            ordinal = numbered.number(one)
            chunk = Chunk(client, one.table_type, self._name, ordinal, one.payload)
            self._outgoing.append((one.to, chunk))

    def _commit_state(self, last: Chunk) -> None:
        """Count all chunks of a client that were applied; what they gave is sent.

        Results are sent after the last of these commits, so it forgets no send that is met again.
        """
        state = RawState(self._state(last.client).to_bytes())
        self._persistence.commit_working_state(state, last.id, forget_sends=True)
        crashpoint("worker.state.after")

    def _flush(self) -> None:
        """1. Send. 2. Send commit. Crash between: they go out again under the same ids."""
        queued, self._outgoing = self._outgoing, []
        unsent: dict[str, list[Message]] = {}
        for to, one in queued:
            if not self._persistence.send_has_been_acknowledged(one.client, _send_id(to, one)):
                unsent.setdefault(to, []).append(one)
        for to, messages in unsent.items():
            crashpoint("worker.send.before")
            self._outboxes[to].send(messages)
            crashpoint("worker.send.after")
            sent: dict[str, list[str]] = {}
            for one in messages:
                sent.setdefault(one.client, []).append(_send_id(to, one))
            with self._persistence.grouped():
                for client, ids in sent.items():
                    self._persistence.commit_send_ack(client, *ids)

    def _check(self, client: str) -> None:
        """Apply what no longer has to wait; finish the client if nothing is missing."""
        crashpoint("worker.check.before")
        if self._role.first and self._has_all(client, self._role.first):
            waiting = self._persistence.recover_buffered_chunks(client)
            for chunk in waiting:
                self._apply(chunk)
            if waiting:
                crashpoint("worker.buffer.applied")
                self._flush()
                self._commit_state(waiting[-1])
        if self._has_all(client):
            self._finalize(client)

    def _finalize(self, client: str) -> None:
        """Publish and forget a client. Each step is left out if a commit says it was done.

        1. Its last state is committed: what is published is what stands.
        2. Results are sent, each with its send commit; `results_sent`.
        3. The ENDs are sent, after all results, to every output; `end_sent`.
        4. Both flags stand: the state is deleted.
        """
        last = self._persistence.recover_last_processing_chunk(client)
        if last is not None:
            self._commit_state(last)
        crashpoint("worker.publish.before")
        totals = self._queue_results(client)
        if not self._is_flagged(client, "results_sent"):
            self._flush()
            crashpoint("worker.results.before")
            self._flag(client, "results_sent")
        self._outgoing = []
        crashpoint("worker.results.after")
        if not self._is_flagged(client, "end_sent"):
            self._outgoing = [(output.to, end) for output, end in self._ends(client, totals)]
            self._flush()
            crashpoint("worker.finish.before")
            self._flag(client, "end_sent")
        crashpoint("worker.finish.after")
        self._persistence.finish(client)
        self._states.pop(client, None)
        crashpoint("worker.clear.after")

    def _queue_results(self, client: str) -> Counter[Output]:
        """Put results in line, numbered on from the committed state; return all totals."""
        committed = self._state(client)
        numbered = Numbered(committed.state, committed.counts.copy())
        self._queue(client, numbered, self._role.results(committed.state))
        if self._reporting is not None:
            totals = {output: numbered.counts[output] for output in self._reporting.held}
            report = Part(self._reporting.to, REPORTS, sent_report(totals))
            self._queue(client, numbered, [report])
        return numbered.counts

    def _ends(self, client: str, totals: Counter[Output]) -> list[tuple[Output, End]]:
        """Return the ENDs to send: for every output with its own count, save those held."""
        held = self._reporting.held if self._reporting else ()
        return [
            (output, End(client, output.table_type, totals[output], self._name))
            for output in self._outputs
            if output not in held
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
                self._flush()
                self._commit_state(came[-1])
            crashpoint("worker.recover.each")

    def _resume_pending_finalization(self) -> None:
        """Send what a crash kept back: waiting chunks, results, the ENDs; or only delete."""
        for client in self._persistence.clients():
            self._check(client)


def _send_id(to: str, message: Message) -> str:
    """Return the name of a send: the same message may go to two destinations."""
    return digest("send", to, message.message_id)
