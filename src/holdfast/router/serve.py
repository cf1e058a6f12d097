"""The router: consumes every client's queue and hands what comes to intake.

By default an END is committed like a chunk and acked at once: the store is the root, and needs
no broker to remember for it. With `delayed`, ENDs stay at the broker instead (`router.delayed`).
Several routers may serve the same clients: the broker gives each message to one of them, and
intake takes what comes twice once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast._base.clock import Clock
from holdfast._base.crashpoint import crashpoint
from holdfast.amqp.broker import Broker
from holdfast.amqp.consumer import Consumer
from holdfast.amqp.contract import PREFETCH, Handle, Message
from holdfast.amqp.names import client_queue, retry_queue
from holdfast.amqp.topology import QueueSpec
from holdfast.blobs.local import LocalBlobs
from holdfast.config import Config
from holdfast.engine.spec import PipelineSpec
from holdfast.engine.state import Shared
from holdfast.errors import HoldfastError, UsageInvalid
from holdfast.intake.documents import Documents
from holdfast.router.delayed import DelayedAcks
from holdfast.router.door import Door
from holdfast.router.figures import Figures
from holdfast.router.later import later_copy, pause_of, turns_of
from holdfast.router.messages import ClientChunk
from holdfast.router.refusals import Postponed, Stopped
from holdfast.router.room import Room
from holdfast.router.shards import refuse_other_shards

Tell = Callable[[str, dict[str, Any]], None]
REFRESH_S = 1.0
"""Between two looks at who the clients are."""
ALERT_S = 300.0
"""How long an END may be held before somebody should look: a client that died, or a lost chunk."""


@dataclass(frozen=True, slots=True)
class RouterOptions:
    """How a router works. `clients` empty: all that the state knows."""

    clients: tuple[str, ...] = ()
    prefetch: int = PREFETCH
    threads: int = 1
    delayed: bool = False
    shards: tuple[str, ...] = ()
    alert_s: float = ALERT_S

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if self.shards and not self.delayed:
            remedy = "Add --delayed-ack, or leave out --shard."
            raise UsageInvalid(what="shards are given, but ENDs are not delayed", remedy=remedy)
        if self.delayed and self.prefetch < 2:
            remedy = "Use at least 2: one END held, one place for chunks."
            raise UsageInvalid(what=f"delayed ack with prefetch {self.prefetch}", remedy=remedy)
        if len(set(self.shards)) != len(self.shards):
            raise UsageInvalid(what="a shard is named twice", remedy="Name each queue once.")


class Router:
    """Serves clients' queues until it is stopped."""

    def __init__(
        self,
        shared: Shared,
        spec: PipelineSpec,
        broker: Broker,
        options: RouterOptions,
        *,
        config: Config,
        clock: Clock,
        tell: Tell,
    ) -> None:
        """`broker` stays the caller's, to close after `run` returned."""
        store = shared.store
        self._store, self._broker, self._options, self._tell = store, broker, options, tell
        self.figures, self.stopping = Figures(), threading.Event()
        self._room = Room(store, shared.directory.root, config, clock)
        self._door = Door(
            *(store, LocalBlobs(shared.directory.blobs)),
            *(Documents.of(spec.tables, config), self._room),
            stop=self.stopping,
            tell=tell,
        )
        self._consumers: dict[str, Consumer] = {}
        self._delayed: DelayedAcks | None = None
        if options.delayed:
            self._delayed = DelayedAcks(
                *(self._door, store, broker),
                clients=options.clients,
                shards=options.shards,
                prefetch=options.prefetch,
                alert_s=options.alert_s,
                clock=clock,
                figures=self.figures,
                tell=tell,
            )

    def run(self) -> None:
        """Serve until `stopping` is set.

        Raises:
            BrokerUnreachable, BrokerRefused, QueueMismatch: it cannot.
            ShardsMismatch: a run of a client that it serves goes by other shards.
        """
        for one in self._store.list_spread_runs():
            if not self._options.clients or one.client in self._options.clients:
                refuse_other_shards(one.run_id, one.shards, self._options.shards)
        for shard in self._options.shards:
            self._broker.queue(shard)
        if self._delayed is not None:
            self._delayed.start()
        try:
            while not self.stopping.is_set():
                self._refresh()
                self.stopping.wait(REFRESH_S)
        finally:
            self.stopping.set()
            for consumer in self._consumers.values():
                consumer.stop()
            if self._delayed is not None:
                self._delayed.stop()

    def _refresh(self) -> None:
        """Serve clients that are new, leave those that are no more, stop if a queue gave up."""
        known = self._store.list_clients()
        self._room.learn({one.client: one.quotas for one in known})
        wanted = self._options.clients or [one.client for one in known if not one.revoked]
        for client in [one for one in self._consumers if one not in wanted]:
            self._consumers.pop(client).stop()
            self._tell("client left", {"client": client})
        for client in [one for one in wanted if one not in self._consumers]:
            self._consumers[client] = self._consume(client)
            self._tell("serving", {"client": client, "queue": client_queue(client)})
        if self._delayed is not None and (failure := self._delayed.failure()) is not None:
            raise failure
        for consumer in self._consumers.values():
            if (failure := consumer.failure()) is not None:
                raise failure

    def _consume(self, client: str) -> Consumer:
        delayed, name = self._delayed, client_queue(client)

        def take(message: Message, redelivered: bool, handle: Handle) -> bool | None:
            return self._take(client, message, redelivered, handle)

        def lost(channel: int) -> None:
            if delayed is not None:
                delayed.lost(name, channel)

        queue = self._broker.queue(QueueSpec(name))
        return queue.consume(
            take,
            prefetch=self._options.prefetch,
            threads=self._options.threads,
            tell=self._hear,
            lost=lost,
        )

    def _hear(self, event: str, facts: dict[str, Any]) -> None:
        if event == "dead letter":
            self.figures.add("dead_letters_total")
        self._tell(event, facts)

    def _take(
        self, client: str, message: Message, redelivered: bool, handle: Handle
    ) -> bool | None:
        """Take one message of a client. None: committed, ack it. False: it stays un-acked.

        Raises:
            Reject: it goes to the dead letters.
        """
        found = self._door.read(message.body)
        try:
            if isinstance(found, ClientChunk):
                self._door.take_chunk(client, found)
                self.figures.add("chunks_total")
                if self._delayed is not None:
                    self._delayed.forward_chunk(found)
                    self._delayed.look()
                return None
            if self._delayed is not None:
                name = client_queue(client)
                return self._delayed.receive(client, name, found, redelivered, handle)
            self._door.take_end(client, found)
        except Stopped:
            return False
        except Postponed as error:
            return self._postpone(client, message, handle, str(error))
        self.figures.add("ends_received_total")
        self.figures.add("ends_acked_total")
        return None

    def _postpone(self, client: str, message: Message, handle: Handle, reason: str) -> bool | None:
        """Let what stands behind a message pass: what makes room for it may be there.

        1. A copy is confirmed where the broker keeps it for a moment and then puts it at the end
           of the queue. Crash after: the message comes twice, and intake takes it once.
        2. The ack.
        """
        name, turns, error = client_queue(client), turns_of(message), None
        while not self.stopping.wait(pause_of(turns)) and handle.is_live():
            try:
                if error is not None:  # somebody may have deleted the place where it waits
                    self._broker.queue(QueueSpec(name))
                self._broker.publish(retry_queue(name), [later_copy(name, message)])
            except HoldfastError as failed:  # no fault of the message: it counts no attempt
                error = failed
                self._tell("not postponed", {"client": client, "error": str(error)})
                continue
            crashpoint("router.postpone.after")
            self.figures.add("postponed_total")
            if turns == 0:
                facts = {"client": client, "message_id": message.message_id, "reason": reason}
                self._tell("postponed", facts)
            return None
        return False
