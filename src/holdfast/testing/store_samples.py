"""Runs, chunks and plans for the store's contract suite, with every default named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdfast._base.ids import START, BatchId, Offset, Ordinal, RunId
from holdfast._base.intervals import Intervals
from holdfast.store.contract import BarrierRule, Store, ingress_topic
from holdfast.store.references import chunk_of
from holdfast.store.rows import (
    Chunk,
    ChunkFacts,
    ChunkKind,
    Commit,
    End,
    EndFacts,
    Fence,
    File,
    NewRun,
    Plan,
    RunState,
    SenderDecl,
    SenderProgress,
    Work,
    WorkKind,
)

RUN = RunId("run-1")
Connect = Callable[[], Store]
Check = Callable[[Connect], None]


def complete(progress: Sequence[SenderProgress]) -> bool:
    """The barrier as a set of sets: written again here, so that the engine's is not its judge."""
    return all(
        sender.announced is not None and set(sender.applied) == set(range(1, sender.announced + 1))
        for sender in progress
    )


def bind(chunk: Chunk, facts: ChunkFacts) -> bool:
    """Bind what is declared and not there."""
    return facts.declared and facts.stored is None and chunk.ordinal >= 1


def announce(end: End, facts: EndFacts) -> bool:
    """Record what is declared and not announced."""
    return facts.declared and facts.announced is None and end.count >= 0


def new_run(
    *senders: SenderDecl, run_id: RunId = RUN, segments: int = 1, created_ms: int = 1000
) -> NewRun:
    """Return a run with one sender of a table `t` unless others are given."""
    return NewRun(
        run_id=run_id,
        client="client",
        pipeline="pipeline",
        fingerprint={"stage": "b", "schema": "a"},
        segments=segments,
        senders=senders or (SenderDecl("t", "", 1),),
        created_ms=created_ms,
    )


def chunk(ordinal: int, *, table: str = "t", sender: str = "", location: str = "") -> Chunk:
    """Return a chunk in a blob of its own."""
    return Chunk(
        table=table,
        sender=sender,
        ordinal=Ordinal(ordinal),
        kind=ChunkKind.BLOB,
        location=location or f"blob/{table}/{sender or 'x'}/{ordinal}",
        size=10,
        checksum=f"sum-{ordinal}",
    )


def file(output: str, path: str, *, rows: int = 1) -> File:
    """Return a file that an attempt wrote."""
    return File(output, path, size=5, checksum=f"sum of {path}", rows=rows)


@dataclass
class Scene:
    """A store with a run that was created, and the engine's lease on it."""

    store: Store
    fence: Fence
    planned: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, store: Store, *senders: SenderDecl, segments: int = 1, bound: int = 0) -> Scene:
        """Create the run; bind `bound` chunks of `t` one by one, without their END."""
        scene = cls(store, store.take_lease("engine", "owner"))
        created = store.create_run(new_run(*senders, segments=segments))
        assert created, "the store is not empty"
        for ordinal in range(1, bound + 1):
            store.bind_chunk(RUN, chunk(ordinal), bind)
        return scene

    def plan(self, work: str, *chunks: Chunk, segment: int = 1) -> Work:
        """Persist a batch that takes `chunks` off its segment's topic."""
        self.planned[segment] = self.planned.get(segment, 0) + len(chunks)
        offset = Offset(self.planned[segment])
        plan = Plan(BatchId(work), RUN, WorkKind.BATCH, segment, "", chunks, offset)
        return self.store.persist_plan(self.fence, plan)

    def plan_series(self, name: str) -> Work:
        """Persist the plan of a result."""
        plan = Plan(BatchId(f"series-{name}"), RUN, WorkKind.SERIES, 0, name)
        return self.store.persist_plan(self.fence, plan)

    def commit(
        self,
        work: str,
        *files: File,
        tables: tuple[str, ...] = (),
        pieces: tuple[str, ...] = (),
        columns: tuple[str, ...] = (),
        rows_read: int = 0,
        bad_rows: int = 0,
        barrier: BarrierRule = complete,
    ) -> None:
        """Start an attempt of a planned work and commit it."""
        attempt = self.store.start_attempt(self.fence, BatchId(work))
        outcome = Commit(
            BatchId(work), attempt, files, tables, pieces, columns, rows_read, bad_rows
        )
        self.store.commit_work(self.fence, outcome, barrier)

    def end(self, count: int, *, table: str = "t", sender: str = "") -> bool:
        """Say END."""
        return self.store.record_end(RUN, End(table, sender, count), announce, complete)

    def state(self) -> str:
        """Return the run's state."""
        run = self.store.read_run(RUN)
        assert run is not None
        return run.state

    def forwarded(self) -> Scene:
        """Complete the run's inputs with one chunk, so that results may be made."""
        self.store.bind_chunk(RUN, chunk(1), bind)
        self.plan("only", chunk(1))
        self.commit("only", file("q", "only/q"), pieces=("q",))
        self.end(1)
        assert self.state() == RunState.FORWARDING
        return self

    def everything(self) -> object:
        """Return all that can be read of the run: equal before and after what must not happen."""
        store = self.store
        return (
            store.read_run(RUN),
            store.read_progress(RUN),
            store.read_barriers(RUN),
            store.list_chunks(RUN),
            store.list_work(RUN),
            [store.read_work_files(work.plan.work_id) for work in store.list_work(RUN)],
            store.list_pieces(RUN, "q"),
            store.read_series(RUN),
            store.read_exports(RUN),
            store.read_counts(RUN),
            {
                topic: (store.topic_bounds(topic, 0), store.list_offsets(topic, 0))
                for topic in store.list_topics()
            },
        )


def received(store: Store, table: str = "t", sender: str = "") -> Intervals:
    """Return the ordinals received of one sender."""
    for progress in store.read_progress(RUN):
        if (progress.table, progress.sender) == (table, sender):
            return progress.received
    raise AssertionError(f"{table}, {sender} is not declared")


def references(store: Store, segment: int = 1) -> list[Chunk]:
    """Return the chunks on a segment's ingress topic."""
    records = store.read_records(ingress_topic(RUN, segment), 0, START, 1000)
    return [chunk_of(stored.record) for stored in records]
