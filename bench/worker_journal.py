"""How long a worker needs to open its journal, by what the journal holds.

    python bench/worker_journal.py

Writes each journal without fsync (in one rewrite), then opens it as a restarted worker does.
Best of three, 64-byte payloads.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast.worker.books import KIND_DATA, covers_of, message_record, state_record
from holdfast.worker.journal import Journal, Record
from holdfast.worker.messages import Chunk
from holdfast.worker.persistence import COMMIT_INTERVAL, PersistenceService

CHUNKS = 100_000


def chunks() -> Iterator[Chunk]:
    return (Chunk("ada", "sales", "north", n, b"x" * 64) for n in range(1, CHUNKS + 1))


def uncounted() -> Iterator[Record]:
    """Every chunk came, none is in a state commit: the most a worker may find."""
    return (message_record(KIND_DATA, chunk) for chunk in chunks())


def counted() -> Iterator[Record]:
    """Every chunk came, with a state commit every ten, and nothing was ever compacted."""
    ids = []
    for chunk in chunks():
        yield message_record(KIND_DATA, chunk)
        ids.append(chunk.id)
        if len(ids) == COMMIT_INTERVAL:
            yield state_record(ids[-1], covers_of(ids), b"state" * 20)
            ids.clear()


def opening_s(directory: Path) -> float:
    begin = time.perf_counter()
    service = PersistenceService(directory, "bench")
    took = time.perf_counter() - begin
    service.close()
    return took


def main() -> None:
    """Print one line per journal."""
    for name, records in (("uncounted", uncounted()), ("counted", counted())):
        with tempfile.TemporaryDirectory() as scratch:
            journal = Journal(Path(scratch), "bench")
            journal.rewrite(records)
            journal.close()
            best = min(opening_s(Path(scratch)) for _ in range(3))
            size = journal.size / 1e6
        print(f"{CHUNKS:,} chunks {name}: {size:.1f} MB, opened in {best:.2f} s")


if __name__ == "__main__":
    main()
