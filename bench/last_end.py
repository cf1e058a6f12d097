"""How long the answers take after the last END: everything else was worked off while it came in.

The files are uploaded as a sender would: all chunks but the last one of transactions, then all ENDs
but that table's. The engine works off what is there. Then the last chunk comes and is bound, and
the clock starts as its sender says END. It stops when the last result file stands. So the last
chunk's own batch is in the time, as is the computation of all five answers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from holdfast._base.files import read_pieces
from holdfast._base.ids import Ordinal
from holdfast.apps.coffee.pipeline import pipe
from holdfast.blobs.local import LocalBlobs
from holdfast.cli.coffee_race import BATCHES_MIN, CoffeeRace
from holdfast.engine.barrier import is_complete
from holdfast.engine.drive import open_run
from holdfast.engine.finish import finish
from holdfast.engine.loop import Engine
from holdfast.engine.state import hold
from holdfast.intake.listing import list_tables
from holdfast.intake.upload import put_chunk, put_end
from holdfast.log.embedded import EmbeddedBackend
from holdfast.spark.execute import SparkExecutor
from holdfast.store.rows import Chunk, ChunkKind, End, RunState

LAST = "transactions"


def after_last_end(race: CoffeeRace) -> float:
    """Return the seconds from the last END to the last result."""
    found: list[float] = []
    race.checked(lambda: found.append(upload_and_finish(race)))
    return found[0]


def upload_and_finish(race: CoffeeRace) -> float:
    spec = pipe.spec()
    with hold(race.state, race.config) as held:
        store, blobs = held.store, LocalBlobs(held.directory.blobs)
        run_id = open_run(store, spec, race.state).run_id
        engine = Engine(
            held,
            spec,
            SparkExecutor(race.spark, pipe),
            log=EmbeddedBackend(store),
            blobs=blobs,
            config=race.config,
        )

        def send(chunk: Chunk, path: Path) -> None:
            put_chunk(store, blobs, run_id, chunk, read_pieces(path), barrier=is_complete)

        files = list_tables(race.data, spec.tables)
        *chunks, last = chunks_of(files[LAST], LAST)
        for table, paths in files.items():
            if table != LAST:
                for chunk, path in chunks_of(paths, table):
                    send(chunk, path)
                put_end(store, run_id, End(table, "", len(paths)), is_complete)
        for chunk, path in chunks:
            send(chunk, path)
        assert engine.advance(run_id) is RunState.OPEN
        assert len(store.list_work(run_id)) >= BATCHES_MIN
        send(*last)
        started = time.perf_counter()
        put_end(store, run_id, End(LAST, "", len(files[LAST])), is_complete)
        engine.advance(run_id)
        finish(held, run_id, race.out)
        return time.perf_counter() - started


def chunks_of(paths: list[Path], table: str) -> Iterator[tuple[Chunk, Path]]:
    """Yield a chunk per file, numbered from 1."""
    for number, path in enumerate(paths, 1):
        yield Chunk(table, "", Ordinal(number), ChunkKind.BLOB, "", 0, ""), path
