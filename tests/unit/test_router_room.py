"""Which chunks a router takes, postpones or rejects, by the quotas of their client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.workloads import SMALL

from holdfast._base.ids import Ordinal, RunId
from holdfast.amqp.contract import Reject
from holdfast.blobs.local import LocalBlobs
from holdfast.config import DEFAULT, Config
from holdfast.engine.barrier import is_complete
from holdfast.engine.state import Held, hold
from holdfast.errors import BacklogFull, BodyTooLarge, DiskNearlyFull, QuotaReached
from holdfast.intake.upload import put_chunk
from holdfast.router.room import Room
from holdfast.store.client_rows import ChunkLook, Quotas
from holdfast.store.rows import Chunk, ChunkKind, NewRun, SenderDecl
from holdfast.testing.clock import VirtualClock

RUN = RunId("r")


class Scene:
    """A run of a client `ada` with a stream and a whole table, and the room that is left for it."""

    def __init__(self, held: Held) -> None:
        self.held, self.clock = held, VirtualClock()
        declared = (SenderDecl("sales", "", 1), SenderDecl("shops", "", 1, whole=True))
        held.store.create_run(NewRun(RUN, "ada", "toy", {}, 1, declared, 0))

    def room(
        self,
        quotas: Quotas,
        *,
        backlog_bytes: int = DEFAULT.backlog_bytes,
        disk_floor_bytes: int = 0,
    ) -> Room:
        config = Config(backlog_bytes=backlog_bytes, disk_floor_bytes=disk_floor_bytes)
        room = Room(self.held.store, self.held.directory.root, config, self.clock)
        room.learn({"ada": quotas})
        return room

    def chunk(self, ordinal: int, table: str) -> Chunk:
        return Chunk(table, "", Ordinal(ordinal), ChunkKind.BLOB, "", 0, "")

    def put(self, ordinal: int, data: bytes, table: str = "sales") -> None:
        blobs = LocalBlobs(self.held.directory.blobs)
        chunk = self.chunk(ordinal, table)
        put_chunk(self.held.store, blobs, RUN, chunk, [data], barrier=is_complete)

    def look(self, table: str = "sales") -> ChunkLook:
        found = self.held.store.look_at_chunk("ada", RUN, self.chunk(99, table))
        assert found is not None
        return found


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with hold(tmp_path / "state", SMALL) as held:
        yield Scene(held)


def test_a_chunk_that_is_too_large_is_refused(scene: Scene) -> None:
    room = scene.room(Quotas(chunk_bytes=10))
    room.check("ada", scene.look(), 10)
    with pytest.raises(BodyTooLarge):
        room.check("ada", scene.look(), 11)
    room.check("bob", scene.look(), 11)


def test_a_chunk_too_many_and_bytes_that_never_fit_are_rejected(scene: Scene) -> None:
    room = scene.room(Quotas(run_chunks=1, stored_bytes=20))
    with pytest.raises(Reject) as never:
        room.check("ada", scene.look(), 21)
    assert never.value.code == "QUOTA_REACHED"
    scene.put(1, b"0123456789")
    with pytest.raises(Reject) as many:
        room.check("ada", scene.look(), 1)
    assert many.value.code == "QUOTA_REACHED"


def test_bytes_that_may_fit_later_are_postponed(scene: Scene) -> None:
    room = scene.room(Quotas(stored_bytes=20))
    room.check("ada", scene.look(), 15)
    room.took("ada", scene.look(), 15)
    with pytest.raises(QuotaReached):
        room.check("ada", scene.look(), 6)
    scene.clock.advance(2)  # nothing was bound: what the store says counts
    room.check("ada", scene.look(), 20)


def test_a_backlog_holds_streams_and_no_whole_table(scene: Scene) -> None:
    room = scene.room(Quotas(), backlog_bytes=10)
    scene.put(1, b"0123456789")
    with pytest.raises(BacklogFull):
        room.check("ada", scene.look(), 1)
    room.check("ada", scene.look("shops"), 1)


def test_a_disk_near_its_floor_takes_nothing(scene: Scene) -> None:
    with pytest.raises(DiskNearlyFull):
        scene.room(Quotas(), disk_floor_bytes=1 << 49).check("ada", scene.look(), 1)
