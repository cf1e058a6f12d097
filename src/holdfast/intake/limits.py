"""How much a client may hand in, whichever door it comes through.

| what | is refused |
| --- | --- |
| a chunk that is too large, or one too many of its run | for good |
| bytes beyond those that a client may keep here | until something of it is swept |
| a chunk while too much of its client waits to be worked on | until the engine has worked it off |
| anything while the disk has less room than its floor | until somebody makes room |
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from holdfast._base.files import os_errors
from holdfast.config import Config
from holdfast.errors import BacklogFull, BodyTooLarge, DiskNearlyFull, QuotaReached
from holdfast.store.client_rows import ChunkLook, Quotas
from holdfast.store.rows import Taken


@dataclass(frozen=True, slots=True)
class Allowed:
    """What one client may take: its own quotas, else what the settings say."""

    open_runs: int
    stored_bytes: int
    chunk_bytes: int
    run_chunks: int
    request_rate: int

    @classmethod
    def of(cls, own: Quotas, config: Config) -> Allowed:
        """Return what a client with these quotas may take."""
        return cls(
            open_runs=own.open_runs or config.client_open_runs,
            stored_bytes=own.stored_bytes or config.client_stored_bytes,
            chunk_bytes=own.chunk_bytes or config.upload_chunk_bytes,
            run_chunks=own.run_chunks or config.client_run_chunks,
            request_rate=own.request_rate or config.client_request_rate,
        )


def check_size(size: int, limit: int) -> None:
    """Refuse a body that is longer than allowed."""
    if size > limit:
        raise BodyTooLarge(limit=limit)


def check_run_chunks(allowed: Allowed, look: ChunkLook) -> None:
    """Refuse a new chunk of a run that has as many as it may have. It never has fewer."""
    _check_chunks(look.run_chunks, allowed.run_chunks)


def check_stored(allowed: Allowed, *, stored: int, size: int) -> None:
    """Refuse bytes for which a client has no room. `stored` includes what is under way."""
    _check_bytes(stored + size, allowed.stored_bytes)


def check_taken(taken: Taken, size: int) -> None:
    """Refuse a chunk that is one too many, or too large, when it is to be bound.

    What was asked before its bytes came is no promise: others were under way, here and elsewhere.
    """
    _check_chunks(taken.run_chunks, taken.run_chunks_max)
    _check_bytes(taken.stored_bytes + size, taken.stored_bytes_max)


def _check_chunks(used: int, limit: int) -> None:
    if used >= limit:
        raise QuotaReached(what="chunks of one run", used=used, limit=limit)


def _check_bytes(used: int, limit: int) -> None:
    if used > limit:
        raise QuotaReached(what="bytes kept here", used=used, limit=limit)


def check_backlog(waiting: int, look: ChunkLook, limit: int) -> None:
    """Refuse a chunk while too much of its client waits to be worked on.

    Not one of a whole table: the engine may wait for exactly that one.
    """
    if waiting >= limit and not look.whole:
        raise BacklogFull(waiting=waiting, limit=limit)


def free_bytes(root: Path) -> int:
    """Return the room left on the disk of a state."""
    with os_errors(root):
        facts = os.statvfs(root)
    return facts.f_bavail * facts.f_frsize


def check_disk(root: Path, size: int, floor: int) -> None:
    """Refuse to take in `size` bytes if less than the floor would be left on the disk."""
    if free_bytes(root) - size < floor:
        raise DiskNearlyFull(path=str(root))
