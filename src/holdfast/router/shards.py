"""How a table is spread over shards, and what a shard is told. Pure.

Ordinal o of n shards goes to shard (o - 1) mod n, and is numbered anew there, from 1, without
gaps. So every shard knows from its own count alone which of its chunks are missing. A shard that
got none is told so: an END with 0.
"""

from __future__ import annotations

from holdfast.errors import ShardsMismatch
from holdfast.router.held import Stream
from holdfast.router.messages import ClientChunk
from holdfast.worker.messages import Chunk, End


def place_of(ordinal: int, shards: int) -> tuple[int, int]:
    """Return the shard of an ordinal, and its number there."""
    own, shard = divmod(ordinal - 1, shards)
    return shard, own + 1


def own_count(count: int, shard: int, shards: int) -> int:
    """Return how many of the first `count` ordinals are a shard's."""
    return (count - shard + shards - 1) // shards


def refuse_other_shards(run: str, kept: tuple[str, ...], given: tuple[str, ...]) -> None:
    """Refuse to go on with a run whose ordinals were made by other shards, or another order.

    Raises:
        ShardsMismatch: they were.
    """
    if kept != given:
        raise ShardsMismatch(run=run, kept=_listed(kept), given=_listed(given))


def _listed(shards: tuple[str, ...]) -> str:
    return ", ".join(shards) or "none"


def chunk_for(chunk: ClientChunk, shards: int) -> tuple[int, Chunk]:
    """Return the shard of a chunk, and the message a worker gets. Its client is the run."""
    shard, ordinal = place_of(chunk.ordinal, shards)
    return shard, Chunk(chunk.run, chunk.table, chunk.sender, ordinal, chunk.payload)


def end_for(stream: Stream, count: int, shard: int, shards: int) -> End:
    """Return what a shard is told of an END: its own count, zero included."""
    return End(stream.run, stream.table, own_count(count, shard, shards), stream.sender)
