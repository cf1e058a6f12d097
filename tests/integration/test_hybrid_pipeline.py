"""Durable, memory, durable: killed in each part of the way, the answers are the same bytes.

The offset of the last durable topic advances with the next durable output and not before, in the
store and on the broker (docs/adr/0015-a-memory-hop-is-part-of-a-batch.md).
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration import hybrid_job
from tests.integration.kafka_server import KafkaServer

from holdfast._base.ids import Offset, RunId, fresh_token
from holdfast.engine.lag import TopicLag
from holdfast.engine.state import look
from holdfast.log.kafka.backend import KafkaBackend
from holdfast.log.relayed import NUMBER_HEADER, READER_GROUP
from holdfast.queries import describe, verify
from holdfast.store.rows import WorkKind

POINTS = {
    "before the hop": ["relay.send.before", "relay.read.after", "engine.plan.after"],
    "within it": ["engine.attempt.after", hybrid_job.HOP],
    "after it": ["engine.job.after", "engine.sync.after", "engine.commit.after"],
    "when the broker is told": ["relay.note.after"],
}


def job(root: Path, url: str, *point: str) -> int:
    command = [sys.executable, "-m", "tests.integration.hybrid_job", str(root), url, *point]
    return subprocess.run(command, check=False, timeout=120).returncode


def exported(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / "out").glob("*.csv")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The answers of a run that nobody killed, with the log in its store."""
    root = tmp_path_factory.mktemp("undisturbed")
    hybrid_job.prepare(root)
    assert job(root, "") == 0
    assert len(exported(root)["all.csv"].splitlines()) > 12
    return exported(root)


def check_hop(root: Path, url: str) -> TopicLag:
    """What must hold right after a kill. Returns how far the topic before the hop is.

    Its committed offset is what has an effect behind the hop; and the broker still holds, from the
    offset on that it was told, all that is planned and has none.
    """
    (view,) = describe(root / "state")
    _, before, behind = view.topics
    with look(root / "state") as (_, store):
        works = store.list_work(RunId(view.run_id), committed=True)
        done = [w for w in works if w.plan.kind is WorkKind.BATCH and w.plan.segment == 2]
        name = f"{store.store_id()}/{before.topic}"
    assert before.committed == sum(len(work.plan.chunks) for work in done)
    assert behind.announced == len(done), "an output behind the hop without its input, or twice"
    assert verify(root / "state").findings == ()
    backend = KafkaBackend(url)
    backend.start()
    try:
        hint = backend.get_committed_offset(name, READER_GROUP)
        held = backend.fetch_batch(name, Offset(hint), count=1000, timeout_s=5)
    finally:
        backend.stop()
    numbers = {int(one.record.headers[NUMBER_HEADER]) for one in held}
    assert before.planned is not None
    assert numbers >= set(range(before.committed, before.planned))
    return before


def check_room_is_given_back(state: Path, url: str) -> None:
    """What both topics held that travelled over the broker was dropped there while the run went."""
    (view,) = describe(state)
    with look(state) as (_, store):
        names = [f"{store.store_id()}/{one.topic}" for one in view.topics[1:]]
    backend = KafkaBackend(url)
    backend.start()
    try:
        for name in names:
            first, end = backend.bounds(name)
            assert 0 < first <= end, name
    finally:
        backend.stop()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", POINTS)
def test_hybrid_pipeline(
    part: str, kafka: KafkaServer, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    """Killed at each point of a part, and the process that takes over there too."""
    for point in POINTS[part]:
        root = tmp_path / point
        hybrid_job.prepare(root)
        url = kafka.url(f"hybrid-{fresh_token()[:8]}")
        seen = []
        for _ in range(2):
            assert job(root, url, point) == -signal.SIGKILL, point
            seen.append(check_hop(root, url))
        assert seen[0].announced > 2 * hybrid_job.SMALL.batch_chunks
        if part in ("before the hop", "within it"):
            assert seen[0].committed == 0
        assert job(root, url) == 0
        assert exported(root) == undisturbed, point
        (view,) = describe(root / "state")
        assert [one.lag for one in view.topics] == [0, 0, 0]
        check_room_is_given_back(root / "state", url)


PIPELINE = """
import os
import signal
from pathlib import Path

from pyspark.sql import functions as f

from holdfast import Pipeline

ROOT = Path(__file__).parent
pipe = Pipeline("hybrid")
pipe.input("sales", schema="shop string, amount int")

@pipe.stage(durable=True)
def priced(sales):
    return sales.withColumn("price", 3 * f.col("amount"))

def dying(batches):
    if (ROOT / "dying").exists():
        (ROOT / "dying").unlink()
        os.kill(int((ROOT / "pid").read_text()), signal.SIGKILL)
    yield from batches

@pipe.stage
def large(priced):
    return priced.where("price % 4 <> 0").mapInArrow(dying, priced.schema)

@pipe.stage
def graded(large):
    return large.withColumn("grade", f.col("price") % 5)

pipe.combine("totals", graded, by=["shop", "grade"], sum=["price"], count="n")

@pipe.result("report", order_by=["shop", "grade"])
def report(totals):
    return totals

@pipe.result("all", streamed=True, order_by=["amount"])
def everything(graded):
    return graded
"""


def spark_run(root: Path, state: str, *more: str) -> tuple[int, str]:
    """`holdfast run`, whose pid the light stage can read."""
    places = ["--input", "in", "--out", f"{state}-out", "--state", state]
    sizes = ["--chunk-bytes", "64", "--batch-bytes", "128"]
    command = [sys.executable, "-m", "holdfast.cli", "run", "hybrid.py", *places, *sizes, *more]
    with subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, text=True) as process:
        (root / "pid").write_text(str(process.pid))
        _, text = process.communicate(timeout=280)
    return process.returncode, text


@pytest.mark.timeout(900)
def test_hybrid_pipeline_with_spark(kafka: KafkaServer, tmp_path: Path) -> None:
    """By holdfast.toml, which also makes the last stage durable; killed inside the light stage."""
    hybrid_job.prepare(tmp_path)
    (tmp_path / "hybrid.py").write_text(PIPELINE)
    code, text = spark_run(tmp_path, "plain")
    assert code == 0, text
    url = kafka.url(f"hybrid-{fresh_token()[:8]}")
    (tmp_path / "settings.toml").write_text(
        f'[stages.priced]\nlog = "{url}"\nbatch_size = 2\n'
        '[stages.large]\nlog = "memory://hop"\n'
        f'[stages.graded]\ndurable = true\nlog = "{url}"\n'
    )
    (tmp_path / "dying").touch()
    code, text = spark_run(tmp_path, "hybrid", "--config", "settings.toml")
    assert code == -signal.SIGKILL, text
    (view,) = describe(tmp_path / "hybrid")
    assert [(one.planned or 0) > one.committed for one in view.topics] == [False, True, False]
    code, text = spark_run(tmp_path, "hybrid", "--config", "settings.toml")
    assert code == 0, text
    plain, made = tmp_path / "plain-out", tmp_path / "hybrid-out"
    assert sorted(path.name for path in made.iterdir()) == ["all.csv", "report.csv"]
    for path in made.iterdir():
        assert path.read_bytes() == (plain / path.name).read_bytes(), path.name
    (view,) = describe(tmp_path / "hybrid")
    assert [one.lag for one in view.topics] == [0, 0, 0]
    check_room_is_given_back(tmp_path / "hybrid", url)
