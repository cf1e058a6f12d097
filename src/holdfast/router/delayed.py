"""Delayed ack: holds ENDs at the broker until they are complete and forwarded everywhere.

`HeldEnds` decides; here its decisions are carried out by one thread, in order, and what the world
answers is told to it. The log says: END received, redelivered, deferred, forwarded, acked.

1. An END is committed in intake, which owes it to the shards from the same transaction on. Crash
   before: it comes again, `redelivered`, and what is missing of it is read from intake.
2. It is forwarded to each shard. Crash between two: it comes again, or is recalled, and is
   forwarded to all of them again, under the same name.
3. Intake records that it owes it no more. Crash before: as above. After: it comes again if it was
   held, and is forwarded again.
4. It is acked. One that was spilled was acked after 1: whatever becomes of its router and its run,
   it is owed, and any router that serves its client recalls it, now and then.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast._base.clock import Clock
from holdfast._base.crashpoint import crashpoint
from holdfast._base.ids import RunId
from holdfast.amqp.broker import Broker
from holdfast.amqp.contract import Handle, Message, Reject
from holdfast.errors import EnvironmentFailed, HoldfastError, InvariantViolated, ShardsMismatch
from holdfast.router.door import Door, conflict
from holdfast.router.figures import Figures
from holdfast.router.held import (
    Ack,
    Commit,
    Done,
    Effect,
    Forward,
    HeldEnds,
    HeldTag,
    Refuse,
    Stream,
)
from holdfast.router.messages import ClientChunk, ClientEnd
from holdfast.router.refusals import Stopped
from holdfast.router.shards import chunk_for, end_for, refuse_other_shards
from holdfast.store.contract import Store
from holdfast.worker.messages import encode

Tell = Callable[[str, dict[str, Any]], None]
LOOK_S = 0.25
"""Between two looks at what is missing: another router may have committed it."""
RECALL_S = 5.0
"""Between two looks at what is owed, and at runs that are over. Shorter: more questions for no use.
Longer: an END of a router that died waits longer. One that another router has may come to a shard
twice."""
RUNS_MAX = 10_000
"""Runs whose shards are known to be ours. More of them open at once: the store is asked again."""
RETRY_S = 0.5
"""Before a shard that did not take an END is tried again."""
KIND_CHUNK, KIND_END = "holdfast.chunk", "holdfast.end"


class DelayedAcks:
    """The ENDs that this router holds, and the shards they go to."""

    def __init__(
        self,
        door: Door,
        store: Store,
        broker: Broker,
        *,
        clients: tuple[str, ...],
        shards: tuple[str, ...],
        prefetch: int,
        alert_s: float,
        clock: Clock,
        figures: Figures,
        tell: Tell,
    ) -> None:
        """`shards` are queues, which exist. `clients`: whose owed ENDs are recalled; empty: all.
        `alert_s`: how long an END may be held in silence.
        """
        self._door, self._store, self._broker, self._shards = door, store, broker, shards
        self._clock, self._figures, self._tell, self._alert_s = clock, figures, tell, alert_s
        self._clients, self._recalled_s = clients, -math.inf
        self._known: set[str] = set()
        self._failure: HoldfastError | None = None
        self._held = HeldEnds(shards=len(shards), prefetch=prefetch)
        self._tags: dict[HeldTag, tuple[Handle, ClientEnd, float]] = {}
        self._overdue: set[HeldTag] = set()
        self._effects: deque[Effect] = deque()
        self._guard, self._wake, self._ended = (
            *(threading.RLock(), threading.Event(), threading.Event()),
        )
        figures.gauges = self._gauges
        self._thread = threading.Thread(target=self._work, name="held-ends", daemon=True)

    def start(self) -> None:
        """Begin, with the ENDs that are owed."""
        self._thread.start()

    def failure(self) -> HoldfastError | None:
        """Return why nothing is forwarded any more; None while it is."""
        return self._failure

    def forward_chunk(self, chunk: ClientChunk) -> None:
        """Send a committed chunk to its shard; returns when it is confirmed there.

        A shard that is away is waited for: the chunk stays un-acked, and the queue behind it.

        Raises:
            Reject: its run is gone.
            Stopped: it is not forwarded, and comes again.
        """
        if not self._shards:
            return
        try:
            self._check_shards(chunk.run)
        except ShardsMismatch as error:
            self._failure = error
            raise Stopped from error
        shard, message = chunk_for(chunk, len(self._shards))
        sent = Message(encode(message), message.message_id, KIND_CHUNK)
        self._door.patiently(lambda: self._broker.publish(self._shards[shard], [sent]))
        crashpoint("router.chunk.forwarded")

    def receive(
        self, client: str, link: str, end: ClientEnd, redelivered: bool, handle: Handle
    ) -> bool:
        """Hold an END. Returns False: it is acked later.

        Raises:
            Reject: intake would refuse it.
        """
        stream = Stream(client, end.run, end.table, end.sender)
        facts = _facts(stream, end.count)
        self._figures.add("ends_received_total")
        self._tell("END received", facts)
        if redelivered:
            self._figures.add("ends_redelivered_total")
            self._tell("END redelivered, recovering state", facts)
        missing = self._door.missing(client, end)
        tag = HeldTag(link, *handle.tag)
        with self._guard:
            if not handle.is_live():
                return False
            self._tags[tag] = (handle, end, self._clock.monotonic_s())
            effects = self._held.receive(stream, end.count, tag, missing)
            self._effects += effects
        if effects and isinstance(effects[0], Commit) and len(missing):
            self._figures.add("ends_spilled_total")
            self._tell("END spilled", {**facts, "pending": len(missing)})
        elif not effects:
            self._tell("END deferred", {**facts, "pending": len(missing)})
        self._wake.set()
        return False

    def look(self) -> None:
        """Look soon at what is missing: something was committed."""
        self._wake.set()

    def lost(self, link: str, channel: int) -> None:
        """Forget the tags of a dead channel; their ENDs come again."""
        self._figures.add("lost_channels_total")
        with self._guard:
            self._held.lost(link, channel)
            for tag in [tag for tag in self._tags if (tag.link, tag.channel) == (link, channel)]:
                del self._tags[tag]
            self._overdue &= self._tags.keys()

    def stop(self) -> None:
        """End. What is held stays un-acked, and comes again."""
        self._ended.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def _gauges(self) -> dict[str, float]:
        with self._guard:
            now_s = self._clock.monotonic_s()
            ages = [now_s - since_s for _, _, since_s in self._tags.values()]
            return {
                "ends_held": len(self._tags),
                "ends_waiting": len(self._held.streams()),
                "ends_overdue": sum(age > self._alert_s for age in ages),
                "end_held_seconds_max": max(ages, default=0.0),
            }

    # The one thread that acts.

    def _work(self) -> None:
        while not self._ended.is_set():
            try:
                self._turn()
            except Stopped:
                return
            except EnvironmentFailed as error:
                self._tell("waiting", {"error": str(error)})
            except HoldfastError as error:
                self._failure = error
                return
            except Exception as error:  # ours: ENDs must not stay un-acked with nobody at work
                what = f"held ENDs: {type(error).__name__}: {error}"
                self._failure = InvariantViolated(what=what)
                raise
            self._wake.wait(LOOK_S)
            self._wake.clear()

    def _turn(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._recalled_s >= RECALL_S:
            self._recall()
            self._give_up()
            self._recalled_s = now_s
        self._look_at_all()
        again: list[Effect] = []
        while not self._ended.is_set():
            with self._guard:
                if not self._effects:
                    break
                effect = self._effects.popleft()
            if not self._act(effect):
                again.append(effect)
        if again and not self._ended.wait(RETRY_S):
            with self._guard:
                self._effects.extend(again)

    def _recall(self) -> None:
        """Take up every END that is owed, whatever its run's state; forget those that are not."""
        if not self._shards:
            return
        owed = {
            Stream(one.client, one.run_id, one.table, one.sender): one.count
            for one in self._store.list_owed_ends()
            if not self._clients or one.client in self._clients
        }
        with self._guard:
            self._held.keep(owed)
            known = self._held.streams()
        for stream, count in owed.items():
            if stream in known:
                continue
            try:
                self._check_shards(stream.run)
            except Reject:
                continue  # swept meanwhile
            missing = self._door.still_missing(stream, count)
            with self._guard:
                self._effects += self._held.recall(stream, count, missing)
            self._tell("END recalled", {**_facts(stream, count), "pending": len(missing)})

    def _give_up(self) -> None:
        """Hold no END whose run was cancelled or failed: what it waits for never comes."""
        with self._guard:
            streams = self._held.incomplete()
        for stream, _ in streams:
            if not self._door.takes_more(stream.run):
                with self._guard:
                    self._effects += self._held.given_up(stream)

    def _check_shards(self, run: str) -> None:
        """Make sure that a run's chunks are numbered by our shards, by whichever router.

        Raises:
            ShardsMismatch: by others.
            Reject: the run is gone.
            Stopped: nobody could be asked.
        """
        if run in self._known:
            return
        kept = self._door.patiently(lambda: self._store.keep_shards(RunId(run), self._shards))
        refuse_other_shards(run, kept, self._shards)
        if len(self._known) >= RUNS_MAX:
            self._known.clear()
        self._known.add(run)

    def _look_at_all(self) -> None:
        with self._guard:
            streams = self._held.incomplete()
        for stream, count in streams:
            missing = self._door.still_missing(stream, count)
            with self._guard:
                self._effects += self._held.progress(stream, missing)
        self._alert()

    def _alert(self) -> None:
        with self._guard:
            now_s = self._clock.monotonic_s()
            late = {
                tag: end
                for tag, (_, end, since_s) in self._tags.items()
                if now_s - since_s > self._alert_s and tag not in self._overdue
            }
            self._overdue |= late.keys()
        for tag, end in late.items():
            stream = Stream(tag.link, end.run, end.table, end.sender)
            pending = len(self._door.still_missing(stream, end.count))
            facts = {**_facts(stream, end.count), "pending": pending}
            self._tell("ALERT: END held too long", facts)

    def _act(self, effect: Effect) -> bool:
        """Carry out one decision. False: not now, try again."""
        match effect:
            case Commit(stream, count):
                return self._commit(stream, count)
            case Forward(stream, count, shard):
                return self._forward(stream, count, shard)
            case Done(stream):
                run = RunId(stream.run)
                self._door.patiently(
                    lambda: self._store.record_forwarded(run, stream.table, stream.sender)
                )
                crashpoint("router.end.recorded")
            case Ack(tag):
                self._ack(tag)
            case Refuse(tag, known):
                self._refuse(tag, known)
        return True

    def _commit(self, stream: Stream, count: int) -> bool:
        end = ClientEnd(RunId(stream.run), stream.table, stream.sender, count)
        try:
            if self._shards:
                self._check_shards(stream.run)
            self._door.take_end(stream.client, end, owed=bool(self._shards))
        except Reject as error:
            with self._guard:
                tags = [self._tags.pop(tag, None) for tag in self._held.refused(stream)]
            for found in tags:
                if found is not None:
                    found[0].reject(error.reason, code=error.code)
            return True
        with self._guard:
            self._effects += self._held.committed(stream)
        return True

    def _forward(self, stream: Stream, count: int, shard: int) -> bool:
        """Forward to one shard. A stream that is forgotten meanwhile is left to whoever has it."""
        with self._guard:
            if stream not in self._held.streams():
                return True
        message = end_for(stream, count, shard, len(self._shards))
        sent = Message(encode(message), message.message_id, KIND_END)
        try:
            self._broker.publish(self._shards[shard], [sent])
        except HoldfastError as error:
            facts = {**_facts(stream, count), "shard": self._shards[shard], "error": str(error)}
            self._tell("END not forwarded", facts)
            return False
        crashpoint("router.end.forwarded")
        self._figures.add("ends_forwarded_total")
        with self._guard:
            self._effects.extendleft(reversed(self._held.forwarded(stream, shard)))
            is_last = stream not in self._held.streams()
        if is_last:
            self._tell("END forwarded", {**_facts(stream, count), "shards": len(self._shards)})
        return True

    def _ack(self, tag: HeldTag) -> None:
        with self._guard:
            found = self._tags.pop(tag, None)
            self._overdue.discard(tag)
        if found is None:
            return
        handle, end, _ = found
        if handle.ack():
            self._figures.add("ends_acked_total")
            self._tell("END acked", {"run": end.run, "table": end.table, "sender": end.sender})

    def _refuse(self, tag: HeldTag, known: int) -> None:
        with self._guard:
            found = self._tags.pop(tag, None)
        if found is not None:
            handle, end, _ = found
            error = conflict(end, known)
            handle.reject(str(error), code=error.code)


def _facts(stream: Stream, count: int) -> dict[str, Any]:
    return {"run": stream.run, "table": stream.table, "sender": stream.sender, "count": count}
