"""Runs of several clients on one state, handed in chunk by chunk; their answers, known beforehand.

The answers are computed from the input alone, never by the engine.
"""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from holdfast import Pipeline
from holdfast._base.ids import Ordinal, RunId, digest
from holdfast.blobs.local import LocalBlobs
from holdfast.config import Config
from holdfast.engine.barrier import is_complete
from holdfast.engine.state import Shared, StateDirectory, share
from holdfast.intake.upload import put_chunk, put_end
from holdfast.store.contract import Store
from holdfast.store.rows import Chunk, ChunkKind, End, NewRun, RunState, SenderDecl

SMALL = Config(batch_bytes=400, batch_chunks=4, piece_rows_max=2, lease_patience_s=1.0)
Rows = list[dict[str, Any]]
Sales = list[tuple[str, int]]
Answers = dict[str, Counter[tuple[str, ...]]]


def make_pipeline() -> Pipeline:
    """A streamed result that joins a whole table, a combine with its report, a durable stage."""
    pipe = Pipeline("floor", version="1")
    pipe.input("sales", schema="shop string, amount int", senders=["", "b"])
    pipe.input("shops", schema="shop string, title string", whole=True)

    @pipe.stage(durable=True)
    def doubled(sales: Rows) -> Rows:
        return [{**row, "amount": 2 * int(row["amount"])} for row in sales]

    @pipe.result("large", streamed=True, order_by=["amount"])
    def large(sales: Rows, shops: Rows) -> Rows:
        known = {row["shop"] for row in shops}
        return [row for row in sales if int(row["amount"]) >= 50 and row["shop"] in known]

    pipe.combine("totals", doubled, by=["shop"], sum=["amount"], count="n")

    @pipe.result("report", order_by=["title"])
    def report(totals: Rows, shops: Rows) -> Rows:
        titles = {row["shop"]: row["title"] for row in shops}
        return [
            {"title": titles[row["shop"]], "total": row["amount"], "n": row["n"]} for row in totals
        ]

    return pipe


def sales_of(client: str, rows: int) -> Sales:
    """Return a client's own rows, the same each time."""
    draw = random.Random(client)
    return [(f"s{draw.randrange(4)}", draw.randrange(100)) for _ in range(rows)]


def expected(sales: Sales) -> Answers:
    total: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for shop, amount in sales:
        total[shop] += 2 * amount
        count[shop] += 1
    return {
        "large": Counter((shop, str(amount)) for shop, amount in sales if amount >= 50),
        "report": Counter((f"title {s}", str(total[s]), str(count[s])) for s in total),
    }


def run_id_of(client: str) -> RunId:
    return RunId(digest("run", client, "key"))


def create(store: Store, client: str) -> RunId:
    spec = make_pipeline().spec()
    senders = tuple(
        SenderDecl(table.name, sender, table.segment, table.whole, table.produced)
        for table in spec.tables
        for sender in table.senders
    )
    run_id = run_id_of(client)
    run = NewRun(run_id, client, spec.name, spec.fingerprint, len(spec.segments), senders, 0)
    store.create_run(run)
    return run_id


def put(shared: Shared, run_id: RunId, text: str, ordinal: int, **place: str) -> None:
    table, sender = place.get("table", "sales"), place.get("sender", "")
    chunk = Chunk(table, sender, Ordinal(ordinal), ChunkKind.BLOB, "", 0, "")
    blobs = LocalBlobs(shared.directory.blobs)
    put_chunk(shared.store, blobs, run_id, chunk, [text.encode()], barrier=is_complete)


def hand_in(shared: Shared, client: str, *, rows: int = 60, per_chunk: int = 5) -> RunId:
    """Hand in all of a client's chunks, the last first, from two senders; then the ENDs."""
    run_id = create(shared.store, client)
    sales = sales_of(client, rows)
    pieces = [sales[n : n + per_chunk] for n in range(0, rows, per_chunk)]
    counts = {"": 0, "b": 0}
    documents = []
    for number, piece in enumerate(pieces):
        sender = "b" if number % 3 == 0 else ""
        counts[sender] += 1
        text = "shop,amount\n" + "".join(f"{shop},{amount}\n" for shop, amount in piece)
        documents.append((text, counts[sender], sender))
    for text, ordinal, sender in reversed(documents):
        put(shared, run_id, text, ordinal, sender=sender)
    titles = "".join(f"s{n},title s{n}\n" for n in range(4))
    put(shared, run_id, "shop,title\n" + titles, 1, table="shops")
    for sender, count in counts.items():
        put_end(shared.store, run_id, End("sales", sender, count), is_complete)
    put_end(shared.store, run_id, End("shops", "", 1), is_complete)
    return run_id


def open_state(root: Path, clients: Iterable[str], **options: int) -> None:
    """Make a state with a complete run of each client, and leave it."""
    with share(root, SMALL, part="gateway", spec=make_pipeline().spec()) as shared:
        for client in clients:
            hand_in(shared, client, **options)


def states(store: Store) -> dict[str, str]:
    return {run.client: run.state for run in store.list_runs()}


def answers(root: Path, store: Store, client: str) -> Answers:
    """Return the committed rows of a client's results, with multiplicity."""
    found: Answers = {}
    for series in store.read_series(run_id_of(client)):
        rows: Counter[tuple[str, ...]] = Counter()
        for file in series.files:
            with (root / file.path).open(newline="") as lines:
                rows.update(tuple(row) for row in csv.reader(lines))
        found[series.series] = rows
    return found


def check(root: Path, store: Store, client: str, *, rows: int = 60) -> None:
    """The client's run is complete, and its answers are those of its own rows."""
    run_id = run_id_of(client)
    run = store.read_run(run_id)
    assert run is not None
    assert run.state in (RunState.COMPLETING, RunState.DONE), (client, run.state, run.error)
    assert answers(root, store, client) == expected(sales_of(client, rows)), client
    for progress in store.read_progress(run_id):
        assert progress.applied == progress.received, (client, progress)
    effects = Counter(
        (chunk.table, chunk.sender, chunk.ordinal)
        for work in store.list_work(run_id, committed=True)
        for chunk in work.plan.chunks
    )
    assert set(effects.values()) == {1}, "a chunk has two committed effects"


def directory(root: Path) -> StateDirectory:
    return StateDirectory(root.resolve())
