"""A delivery on a store in a directory, with a clock that the test turns."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast._base import frames
from holdfast._base.clock import pause
from holdfast._base.frames import Frame
from holdfast._base.ids import Ordinal, RunId
from holdfast.blobs.local import LocalBlobs
from holdfast.config import Config
from holdfast.delivery.log_queues import LogQueues
from holdfast.delivery.loop import Delivery, Means
from holdfast.delivery.messages import Header, Payload, encode
from holdfast.delivery.ports import header_queue, payload_queue
from holdfast.delivery.sweep import Homes
from holdfast.engine.barrier import is_complete
from holdfast.intake.upload import put_chunk
from holdfast.log.contract import Record
from holdfast.log.embedded import EmbeddedBackend
from holdfast.store.rows import Chunk, ChunkKind, Fence, NewRun, SenderDecl
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.clock import VirtualClock

RUN = RunId("run-1")
CLIENT = "acme"
REQUESTS = "requests"


@dataclass
class DeliveryScene:
    """A delivery that is active, and what it works on."""

    root: Path
    store: SqliteStore
    blobs: LocalBlobs
    log: EmbeddedBackend
    clock: VirtualClock
    means: Means
    fence: Fence
    delivery: Delivery
    told: list[str]
    """What was told of trouble."""

    def succeed(self, **changes: Any) -> Delivery:
        """Return a delivery that took over, with some means changed."""
        fence = self.store.take_lease("delivery", "successor")
        means = replace(self.means, queues=fenced_queues(self.store, fence))
        return Delivery(replace(means, **changes), fence)

    def run(self, seconds: float = 0.0) -> None:
        """Let time go by in steps that count; after each, deliver until nothing is left to do.

        No time goes by while a notice is under way: how long that takes is the machine's affair.
        """
        for _ in range(int(seconds / 2)):
            self.clock.advance(2)
            self._deliver()
        self.clock.advance(max(2.0, seconds % 2))
        self._deliver()

    def _deliver(self) -> None:
        for _ in range(30_000):
            if not self.delivery.advance() and not self.delivery.is_sending:
                return
            pause(0.001)
        raise AssertionError("delivery finds no end")

    def state(self, run_id: RunId = RUN) -> str:
        run = self.store.read_run(run_id)
        assert run is not None
        return run.state

    def error(self, run_id: RunId = RUN) -> str:
        run = self.store.read_run(run_id)
        assert run is not None
        return run.error or ""

    def open_run(self, run_id: RunId = RUN, *, producer: str = "", tables: int = 1) -> None:
        """Create a run with one whole table, or none."""
        senders = (SenderDecl("t", "", 1, whole=bool(producer)),) * tables
        self.store.create_run(NewRun(run_id, CLIENT, "p", {}, 1, senders, 0, producer))

    def upload(self, data: bytes, ordinal: int = 1, run_id: RunId = RUN) -> None:
        """Send one chunk of the table."""
        chunk = Chunk("t", "", Ordinal(ordinal), ChunkKind.BLOB, "", 0, "")
        put_chunk(self.store, self.blobs, run_id, chunk, [data], barrier=is_complete)

    def send(self, *messages: Header | Payload) -> None:
        """Say something as the producer."""
        for message in messages:
            of = header_queue if isinstance(message, Header) else payload_queue
            self.log.produce(of(RUN), Record(encode(message)))

    def blobs_below(self, prefix: str) -> list[str]:
        return list(self.blobs.names(prefix))


def fenced_queues(store: SqliteStore, fence: Fence) -> LogQueues:
    """Return the queues that a delivery has on the log of its store."""
    return LogQueues(EmbeddedBackend(store, fence=fence), store)


def framed(kind: int, head: object, data: bytes = b"", version: int = 1) -> bytes:
    """Return a message as a producer may send it that does not use our code."""
    text = json.dumps(head).encode()
    return frames.encode(Frame(kind, 0, struct.pack("<BI", version, len(text)) + text + data))


@contextmanager
def delivering(root: Path, config: Config | None = None) -> Iterator[DeliveryScene]:
    """Open a state in `root`, and be its active delivery."""
    clock = VirtualClock()
    told: list[str] = []
    store = SqliteStore.open(root / "store.sqlite3", clock=clock)
    log = EmbeddedBackend(store)
    blobs = LocalBlobs(root / "blobs")
    fence = store.take_lease("delivery", "test")
    means = Means(
        store=store,
        blobs=blobs,
        queues=fenced_queues(store, fence),
        homes=Homes((root / "runs", root / "inputs"), root / "blobs"),
        secrets=root / "secrets",
        config=config or Config(),
        clock=clock,
        tell=lambda event, message: told.append(f"{event}: {message}"),
    )
    delivery = Delivery(means, fence)
    try:
        yield DeliveryScene(root, store, blobs, log, clock, means, fence, delivery, told)
    finally:
        delivery.close()
        store.close()
