"""One turn of an engine: how much is done in it, and what is left for the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.workloads import CHUNKS, EARLY_END, ENDS, SMALL, expected, make_pipeline
from tests.unit.plain_runs import answers_in

from holdfast._base.ids import Ordinal
from holdfast.blobs.local import LocalBlobs
from holdfast.engine.barrier import is_complete
from holdfast.engine.drive import open_run
from holdfast.engine.executor import BatchWork, SeriesWork
from holdfast.engine.finish import finish
from holdfast.engine.loop import Engine
from holdfast.engine.state import Held, hold
from holdfast.intake.upload import put_chunk, put_end
from holdfast.log.embedded import EmbeddedBackend
from holdfast.store.rows import Chunk, ChunkKind, RunState, WorkKind
from holdfast.testing.plain import PlainExecutor


class Turn:
    """A run whose inputs are complete, and an engine that takes turns on it."""

    def __init__(self, held: Held, root: Path) -> None:
        self.held, self.root, self.store = held, root, held.store
        self.pipeline = make_pipeline()
        self.blobs = LocalBlobs(held.directory.blobs)
        self.run_id = open_run(held.store, self.pipeline.spec(), root).run_id
        self.computed: list[str] = []
        for table, sender, ordinal, text in CHUNKS:
            chunk = Chunk(table, sender, Ordinal(ordinal), ChunkKind.BLOB, "", 0, "")
            pieces = [text.encode()]
            put_chunk(self.store, self.blobs, self.run_id, chunk, pieces, barrier=is_complete)
        for end in (EARLY_END, *ENDS):
            put_end(self.store, self.run_id, end, is_complete)
        self.engine = self.make_engine()
        while self.state() == RunState.OPEN:
            self.engine.step(self.run_id)

    def make_engine(self) -> Engine:
        def before(work: BatchWork | SeriesWork) -> None:
            if isinstance(work, SeriesWork):
                self.computed.append(work.name)

        executor = PlainExecutor(self.pipeline, before)
        log = EmbeddedBackend(self.store)
        return Engine(
            self.held, self.pipeline.spec(), executor, log=log, blobs=self.blobs, config=SMALL
        )

    def state(self) -> str:
        run = self.store.read_run(self.run_id)
        assert run is not None
        return run.state

    def committed(self) -> int:
        works = self.store.list_work(self.run_id, committed=True)
        return sum(work.plan.kind is WorkKind.SERIES for work in works)


@pytest.fixture
def turn(tmp_path: Path) -> Iterator[Turn]:
    with hold(tmp_path / "state", SMALL) as held:
        yield Turn(held, tmp_path)


def test_all_results_are_one_turn_while_nobody_waits(turn: Turn) -> None:
    """Side by side they are done sooner."""
    assert turn.engine.step(turn.run_id)
    assert turn.state() == RunState.COMPLETING
    assert turn.committed() == len(turn.computed) == 3


def test_a_result_is_a_turn_while_others_wait(turn: Turn) -> None:
    """All are planned before the first is committed; an engine that was killed is no matter."""
    for done in (1, 2, 3):
        assert turn.engine.step(turn.run_id, batch_bytes=1) is not None
        assert turn.committed() == done
        works = turn.store.list_work(turn.run_id)
        assert sum(work.plan.kind is WorkKind.SERIES for work in works) == 3
        assert turn.state() == (RunState.RECEIVING if done < 3 else RunState.COMPLETING)
        turn.engine = turn.make_engine() if done == 1 else turn.engine
    assert turn.engine.step(turn.run_id, batch_bytes=1) is None
    assert Counter(turn.computed) == Counter(dict.fromkeys(turn.computed, 1))
    finish(turn.held, turn.run_id, turn.root / "out")
    assert answers_in(turn.root / "out") == expected()
