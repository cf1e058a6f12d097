"""Chunks counted by table, for whoever watches. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.engine.events import TableCount
from holdfast.store.rows import Chunk, SenderProgress


def counts_of(chunks: Sequence[Chunk], rows: Mapping[str, int]) -> tuple[TableCount, ...]:
    """Return how many chunks of each table are among `chunks`, in the order of their tables."""
    tables = dict.fromkeys(chunk.table for chunk in chunks)
    return tuple(
        TableCount(
            table,
            chunks=sum(chunk.table == table for chunk in chunks),
            size=sum(chunk.size for chunk in chunks if chunk.table == table),
            rows=rows.get(table, 0),
        )
        for table in tables
    )


def standing(progress: Sequence[SenderProgress], chunks: Sequence[Chunk]) -> tuple[TableCount, ...]:
    """Return where each table of a run stands: all its bound chunks, and those applied."""
    found = []
    for table in dict.fromkeys(sender.table for sender in progress):
        applied = {sender.sender: sender.applied for sender in progress if sender.table == table}
        bound = [chunk for chunk in chunks if chunk.table == table]
        done = [chunk for chunk in bound if chunk.ordinal in applied[chunk.sender]]
        found.append(
            TableCount(
                table,
                chunks=len(bound),
                size=sum(chunk.size for chunk in bound),
                applied=len(done),
                applied_size=sum(chunk.size for chunk in done),
                is_open=any(one.announced is None for one in progress if one.table == table),
            )
        )
    return tuple(found)
