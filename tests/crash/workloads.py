"""Small workloads for the crash loop: every protocol, a few chunks, answers known beforehand.

The expected answers are written down here by hand or computed from the input alone, never by the
engine.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from holdfast import Pipeline
from holdfast._base.ids import Ordinal, RunId
from holdfast.blobs.local import LocalBlobs
from holdfast.config import Config
from holdfast.engine.barrier import is_complete
from holdfast.engine.drive import Inputs, drive, open_run
from holdfast.engine.events import ignore
from holdfast.engine.executor import BatchWork, SeriesWork
from holdfast.engine.finish import finish
from holdfast.engine.loop import Engine
from holdfast.engine.state import StateDirectory, hold, look
from holdfast.errors import RunFailed, StageFailed
from holdfast.intake.listing import list_tables
from holdfast.intake.upload import put_chunk, put_end, sweep_uploads
from holdfast.log.embedded import EmbeddedBackend
from holdfast.queries import verify
from holdfast.store.rows import Chunk, ChunkKind, End, RunState
from holdfast.testing.plain import PlainExecutor

SMALL = Config(chunk_bytes=16, batch_bytes=40, batch_chunks=3, piece_rows_max=2)
FINAL_STATES = (RunState.FORWARDING, RunState.RECEIVING, RunState.COMPLETING, RunState.DONE)
Rows = list[dict[str, Any]]


def make_pipeline(name: str = "toy", results: str = "csv") -> Pipeline:
    """Streamed result, combine, kept rows, a whole table, a durable stage: two segments.

    `results`: the format of those that are made of numbers.
    """
    pipe = Pipeline(name, version="1")
    pipe.input("sales", schema="shop string, amount int", senders=["", "b"])
    pipe.input("notes", schema="text string", optional=True)
    pipe.input("shops", schema="shop string, title string", whole=True)

    @pipe.stage(durable=True)
    def doubled(sales: Rows) -> Rows:
        return [{**row, "amount": 2 * int(row["amount"])} for row in sales]

    @pipe.result("large", streamed=True, order_by=["amount"], format=results)
    def large(sales: Rows) -> Rows:
        return [row for row in sales if int(row["amount"]) >= 5]

    totals = pipe.combine("totals", doubled, by=["shop"], sum=["amount"], count="n")
    assert totals.name == "totals"

    @pipe.result("report", order_by=["title"], format=results)
    def report(totals: Rows, shops: Rows) -> Rows:
        titles = {row["shop"]: row["title"] for row in shops}
        return [
            {"title": titles[row["shop"]], "total": row["amount"], "n": row["n"]} for row in totals
        ]

    @pipe.result("texts")
    def texts(notes: Rows) -> Rows:
        return [{"text": row["text"]} for row in notes]

    return pipe


SALES = [("a", 1), ("a", 7), ("b", 5), ("b", 5), ("a", 9), ("c", 2), ("b", 3), ("b", 5)]
SHOPS = [("a", "Anchor"), ("b", "Bay"), ("c", "Cove")]
NOTES = ["one", "two"]


def expected() -> dict[str, Counter[tuple[str, ...]]]:
    """The answers, from the input rows alone."""
    total: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for shop, amount in SALES:
        total[shop] += 2 * amount
        count[shop] += 1
    return {
        "large": Counter((s, str(a)) for s, a in SALES if a >= 5),
        "report": Counter((t, str(total[s]), str(count[s])) for s, t in SHOPS),
        "texts": Counter((text,) for text in NOTES),
    }


def write_inputs(directory: Path) -> None:
    """Write the inputs once; a second call finds them there, unchanged."""
    if (directory / "ready").exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    sales = "".join(f"{shop},{amount}\n" for shop, amount in SALES)
    (directory / "sales.csv").write_text("shop,amount\n" + sales)
    (directory / "notes.csv").write_text("text\n" + "\n".join(NOTES))
    (directory / "shops.csv").write_text("shop,title\n" + "".join(f"{a},{b}\n" for a, b in SHOPS))
    (directory / "ready").write_text("")


class FailsOnce:
    """Makes the first attempt at each work fail, as a passing fault would. Durable: a file."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __call__(self, work: BatchWork | SeriesWork) -> None:
        name = Path(work.directory).parent.name
        mark = self._root / f"failed-{name}"
        if not mark.exists():
            mark.write_text("")
            raise StageFailed(stage="toy", where="here", error="a passing fault")


def run_elsewhere(root: Path) -> None:
    """The same with references that travel over another log, a durable one."""
    run_files(root, replace(SMALL, fetch_records=2, log=(root / "elsewhere.db").as_uri()))


def run_restoring(root: Path) -> None:
    """A run with results in Parquet; then one of its exports is damaged, and restored."""
    run_files(root, results="parquet")
    if not (root / "restored").exists():
        part = root / "out" / "report.parquet" / "part-00001.parquet"
        part.write_bytes(part.read_bytes()[:-1])
        run_files(root, results="parquet")
        (root / "restored").write_text("")


def run_files(root: Path, config: Config = SMALL, results: str = "csv") -> None:
    """Bind files in place, run to DONE, export; every work fails once."""
    write_inputs(root / "in")
    pipeline = make_pipeline(results=results)
    spec = pipeline.spec()
    with hold(root / "state", config) as held:
        drive(
            held,
            spec,
            lambda: Inputs(list_tables(root / "in", spec.tables, ignore_unknown=True)),
            lambda: PlainExecutor(pipeline, FailsOnce(root)),
            out=root / "out",
            config=config,
            watch=ignore,
        )


CHUNKS: list[tuple[str, str, int, str]] = [
    # table, sender, ordinal, document; in the order in which they are sent, one of them twice
    ("sales", "", 2, "shop,amount\nb,5\nb,5\n"),
    ("shops", "", 1, "shop,title\n" + "".join(f"{a},{b}\n" for a, b in SHOPS)),
    ("sales", "b", 1, "shop,amount\nb,3\nb,5\n"),
    ("sales", "", 2, "shop,amount\nb,5\nb,5\n"),
    ("notes", "", 1, "text\none\ntwo\n"),
    ("sales", "", 1, "shop,amount\na,1\na,7\n"),
    ("sales", "", 3, "shop,amount\na,9\nc,2\n"),
]
ENDS = [End("sales", "b", 1), End("notes", "", 1), End("sales", "", 3)]
EARLY_END = End("shops", "", 1)
"""Sent before the chunk it announces, as networks do."""


def run_uploads(root: Path) -> None:
    """Two senders upload in odd order, resend what was not acknowledged, say END; engine between.

    `acked` is the senders' own memory of what they were told, written after the ack.
    """
    pipeline = make_pipeline()
    spec = pipeline.spec()
    root.mkdir(parents=True, exist_ok=True)
    acked = root / "acked"
    done = set(acked.read_text().split("\n")) if acked.exists() else set()
    with hold(root / "state", SMALL) as held:
        blobs = LocalBlobs(held.directory.blobs)
        run = open_run(held.store, spec, root)
        sweep_uploads(held.store, blobs, run.run_id)
        engine = Engine(
            held,
            spec,
            PlainExecutor(pipeline),
            log=EmbeddedBackend(held.store),
            blobs=blobs,
            config=SMALL,
        )

        def note(text: str) -> None:
            with acked.open("a") as file:
                file.write(text + "\n")

        put_end(held.store, run.run_id, EARLY_END, is_complete)
        for number, (table, sender, ordinal, text) in enumerate(CHUNKS):
            if f"chunk {number}" not in done:
                chunk = Chunk(table, sender, Ordinal(ordinal), ChunkKind.BLOB, "", 0, "")
                pieces = [text.encode()]
                put_chunk(held.store, blobs, run.run_id, chunk, pieces, barrier=is_complete)
                note(f"chunk {number}")
            if number == 3:
                engine.advance(run.run_id)
        for end in ENDS:
            if f"end {end}" not in done:
                put_end(held.store, run.run_id, end, is_complete)
                note(f"end {end}")
        engine.advance(run.run_id)
        finish(held, run.run_id, root / "out")


def run_failing(root: Path) -> None:
    """A row does not fit: the run must end FAILED, whatever crashes on the way."""
    write_inputs(root / "in")
    sales = root / "in" / "sales.csv"
    if not (root / "bad").exists():
        sales.write_text("shop,amount\na,1\na,7\nb,5\nb\n")
        (root / "bad").write_text("")
    pipeline = make_pipeline()
    spec = pipeline.spec()
    try:
        with hold(root / "state", SMALL) as held:
            drive(
                held,
                spec,
                lambda: Inputs(list_tables(root / "in", spec.tables, ignore_unknown=True)),
                lambda: PlainExecutor(pipeline),
                out=root / "out",
                config=SMALL,
                watch=ignore,
            )
    except RunFailed:
        return
    raise AssertionError("wrong: a run with a bad row did not fail")


def check_settled(root: Path) -> None:
    """What must hold at any moment, right after a crash too: nothing early, nothing damaged."""
    state = root / "state"
    if not StateDirectory(state).store.is_file():
        assert not (root / "out").exists(), "early: an export before there is a run"
        return
    with look(state) as (directory, store):
        for run in store.list_runs():
            complete = is_complete(store.read_progress(run.run_id))
            if run.state in FINAL_STATES:
                assert complete, f"early: {run.state} with chunks missing"
            works = [w for w in store.list_work(run.run_id) if w.plan.name]
            assert complete or not works, "early: a result was planned before the barrier"
            exported = list((root / "out").glob("[!.]*"))
            assert complete or not exported, "early: an export before the barrier"
        del directory
    findings = verify(state).findings
    assert not findings, f"wrong: {findings}"


def check_answers(root: Path) -> None:
    """The exports hold exactly the expected rows, with multiplicity; nothing is left over."""
    check_settled(root)
    for series, wanted in expected().items():
        _compare(series, Counter(exported_rows(root / "out", series)), wanted)
    _check_finished(root / "state")
    left = [p.name for p in (root / "out").iterdir() if p.name.startswith(".")]
    assert not left, f"wrong: left over {left}"


def exported_rows(out: Path, series: str) -> list[tuple[str, ...]]:
    """Return the rows of an export in their order: of a file of CSV, or of the parts of Parquet."""
    if (out / f"{series}.csv").exists():
        with (out / f"{series}.csv").open() as file:
            return [tuple(row) for row in list(csv.reader(file))[1:]]
    parts = sorted((out / f"{series}.parquet").iterdir())
    tables = [pq.read_table(part).to_pylist() for part in parts]
    return [tuple(str(value) for value in row.values()) for table in tables for row in table]


def _compare(series: str, rows: Counter[tuple[str, ...]], wanted: Counter[tuple[str, ...]]) -> None:
    missing, extra = wanted - rows, rows - wanted
    if missing and not extra:
        raise AssertionError(f"lost: {series} lacks {dict(missing)}")
    if extra and not missing:
        word = "duplicated" if set(extra) <= set(wanted) else "wrong"
        raise AssertionError(f"{word}: {series} has {dict(extra)} too many")
    assert not missing, f"wrong: {series} lacks {dict(missing)}, has {dict(extra)}"


def _check_finished(state: Path) -> None:
    with look(state) as (_, store):
        (run,) = store.list_runs()
        assert run.state == RunState.DONE, f"wrong: the run is {run.state}"
        pieces = store.list_pieces(RunId(run.run_id), "large")
        assert all(piece.final for piece in pieces), "wrong: a DONE run has provisional pieces"
    found = verify(state, state.parent / "out")
    assert not found.findings, f"wrong: {found.findings}"
    assert found.orphans == 0, f"wrong: {found.orphans} orphans left over"


def check_failed(root: Path) -> None:
    """The run is FAILED with its reason, its streamed pieces are void, nothing was exported."""
    check_settled(root)
    with look(root / "state") as (_, store):
        (run,) = store.list_runs()
        assert run.state == RunState.FAILED, f"wrong: the run is {run.state}"
        assert "BAD_ROWS" in (run.error or ""), f"wrong: {run.error}"
        assert store.list_pieces(run.run_id, "large") == [], "early: pieces of a failed run"
    assert not list((root / "out").glob("*")), "early: a failed run was exported"
