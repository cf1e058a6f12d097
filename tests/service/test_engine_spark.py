"""`holdfast engine` itself, with Spark: documents of all formats, runs side by side, its end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.service import shop
from tests.service.processes import Process, all_gone, children_of, until

from holdfast._base.ids import RunId, digest
from holdfast.engine.state import Shared, share
from holdfast.spark.load import load_pipeline
from holdfast.store.rows import RunState

pytestmark = pytest.mark.timeout(300)


class Place:
    """A state with a pipeline beside it, and an engine on it."""

    def __init__(self, pipeline: Path, shared: Shared) -> None:
        self.state, self.shared, self.store = pipeline.parent / "state", shared, shared.store
        self.pipeline = pipeline
        self.engines: list[Process] = []

    def engine(self, **environment: str) -> Process:
        arguments = ("--pipeline", str(self.pipeline), "--state", str(self.state))
        self.engines.append(Process("holdfast.cli", "engine", *arguments, **environment))
        return self.engines[-1]

    def run(self, client: str, *documents: tuple[bytes, str]) -> None:
        run_id = shop.create(self.store, self.pipeline, client)
        for ordinal, (data, fmt) in enumerate(documents, 1):
            shop.put(self.shared, run_id, ordinal, data, fmt)
        shop.end(self.shared, run_id, len(documents))

    def states(self) -> dict[str, str]:
        return {run.client: run.state for run in self.store.list_runs()}

    def error(self, client: str) -> str:
        (run,) = [run for run in self.store.list_runs() if run.client == client]
        return run.error or ""

    def report(self, client: str) -> list[list[str]]:
        (run,) = [run for run in self.store.list_runs() if run.client == client]
        return shop.report_of(self.state, self.store, run.run_id)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    pipeline = shop.write_pipeline(tmp_path)
    spec = load_pipeline(str(pipeline)).spec()
    with share(tmp_path / "state", part="test", spec=spec) as shared:
        found = Place(pipeline, shared)
        yield found
        for engine in found.engines:
            below = children_of(engine.pid)
            engine.end()
            until(f"{below} are gone", partial(all_gone, below))


def test_runs_of_all_formats_side_by_side_and_each_fails_alone(place: Place) -> None:
    """CSV, JSON lines, Parquet and a mixture give the same answer; a stage that raises, a wrong
    header and a bad row each fail their own run, by name. The pipeline itself looks at how Spark
    shares the cores: of no setting would anything else here be different.
    """
    sales = [(f"s{n % 3}", n) for n in range(30)]
    # Two of CSV come first: both meet a session that has not read any.
    place.run("first", (shop.document(sales, "csv"), "csv"))
    for fmt in ("csv", "json", "parquet"):
        place.run(fmt, (shop.document(sales[:10], fmt), fmt), (shop.document(sales[10:], fmt), fmt))
    parts = (sales[:10], "csv"), (sales[10:20], "json"), (sales[20:], "parquet")
    place.run("mixed", *((shop.document(some, fmt), fmt) for some, fmt in parts))
    place.run("beast", (shop.document([("s1", 666)], "csv"), "csv"))
    good, other = shop.document(sales, "csv"), shop.document(sales, "csv", "amount,shop")
    place.run("header", (good, "csv"), (other, "csv"))
    place.run("row", (b"shop,amount\ns1,1\ns2,many\n", "csv"))
    engine = place.engine()
    over = {RunState.COMPLETING, RunState.FAILED}
    until("all runs are over", lambda: set(place.states().values()) <= over, 200)
    wanted = {
        "first": "COMPLETING",
        "csv": "COMPLETING",
        "json": "COMPLETING",
        "parquet": "COMPLETING",
    }
    wanted |= {"mixed": "COMPLETING", "beast": "FAILED", "header": "FAILED", "row": "FAILED"}
    assert place.states() == wanted, engine.text
    for client in ("first", "csv", "json", "parquet", "mixed"):
        assert place.report(client) == shop.expected(sales), client
    assert f"{place.pipeline.name}:" in place.error("beast")
    assert "number of the beast" in place.error("beast")
    assert "HEADER_WRONG" in place.error("header")
    assert "BAD_ROWS" in place.error("row")
    assert "many" in place.error("row")
    below = children_of(engine.pid)
    assert len(below) >= 2, "Spark's process and its JVM"
    engine.signal(signal.SIGTERM)
    assert engine.wait(60) == 0, engine.text  # Spark ends slowly on a busy machine
    until("nothing of it is left", partial(all_gone, below), 10)


def test_killed_it_leaves_no_jvm_and_the_next_one_ends_the_runs(place: Place) -> None:
    sales = [(f"s{n % 3}", n) for n in range(30)]
    for client in ("a", "b"):
        place.run(client, *((shop.document([one], "csv"), "csv") for one in sales))
    first = place.engine(HOLDFAST_CRASH="engine.job.after:1")
    first.until_said("starting Spark")
    until("Spark has started", lambda: len(children_of(first.pid)) >= 2 or first.poll() is not None)
    below = children_of(first.pid)
    assert first.wait(120) == -signal.SIGKILL, first.text
    until("nothing of it is left", partial(all_gone, below))
    place.engine()
    until("all runs are over", lambda: set(place.states().values()) == {"COMPLETING"}, 200)
    for client in ("a", "b"):
        assert place.report(client) == shop.expected(sales)


def test_a_small_run_ends_while_a_large_one_is_far_from_it(place: Place) -> None:
    """The large one came first, with fifty batches; the small one comes in when one is done."""
    sales = [(f"s{n % 3}", n) for n in range(50)]
    place.run("large", *((shop.document([one], "csv"), "csv") for one in sales))
    large = RunId(digest("run", "large", "key"))
    engine = place.engine(HOLDFAST_BATCH_CHUNKS="1")

    def done() -> int:
        return len(place.store.list_work(large, committed=True))

    until("the large one has begun", lambda: done() > 0, 120)
    place.run("small", (shop.document(sales[:10], "csv"), "csv"))
    until("the small one is complete", lambda: place.states()["small"] == "COMPLETING", 120)
    assert done() < 40, "it waited behind the other's size"
    assert place.states()["large"] == RunState.OPEN
    assert place.report("small") == shop.expected(sales[:10])
    until("so is the large one", lambda: place.states()["large"] == "COMPLETING", 200)
    assert place.report("large") == shop.expected(sales), engine.text
