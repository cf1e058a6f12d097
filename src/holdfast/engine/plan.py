"""Which chunks go into the next batch. Pure.

A plan's id is a hash of what it will do, so planning the same again after a crash finds the same
plan. Chunks are taken in the order of the log: the offset that is persisted with the plan says
exactly which ones it holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast._base.ids import BatchId, Offset, RunId, digest
from holdfast.config import Config
from holdfast.store.rows import Chunk, Plan, WorkKind


def take(
    chunks: Sequence[tuple[Offset, Chunk]], config: Config, *, batch_bytes: int | None = None
) -> list[tuple[Offset, Chunk]]:
    """Return the longest prefix that fits into a batch; at least one chunk if there is any.

    `batch_bytes`: less than what is configured, while others wait for their turn.
    """
    limit = min(config.batch_bytes, batch_bytes or config.batch_bytes)
    taken: list[tuple[Offset, Chunk]] = []
    size = 0
    for offset, chunk in chunks[: config.batch_chunks]:
        if taken and size + chunk.size > limit:
            break
        taken.append((offset, chunk))
        size += chunk.size
    return taken


def plan_batch(
    run_id: RunId, segment: int, fingerprint: str, taken: Sequence[tuple[Offset, Chunk]]
) -> Plan:
    """Return the plan for chunks taken off a segment's topic."""
    chunks = tuple(chunk for _, chunk in taken)
    names = [part for c in chunks for part in (c.table, c.sender, c.ordinal)]
    return Plan(
        work_id=BatchId(digest("batch", run_id, segment, fingerprint, *names)),
        run_id=run_id,
        kind=WorkKind.BATCH,
        segment=segment,
        name="",
        chunks=chunks,
        offset=Offset(taken[-1][0] + 1),
    )


def plan_series(run_id: RunId, fingerprint: str, name: str) -> Plan:
    """Return the plan for one result after the barrier."""
    work_id = BatchId(digest("series", run_id, fingerprint, name))
    return Plan(work_id=work_id, run_id=run_id, kind=WorkKind.SERIES, segment=0, name=name)
