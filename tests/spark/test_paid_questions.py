"""Receipts, dry runs, retried outcomes and the ledger as a table, against the provider's books."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from tests.spark import paid_provider
from tests.spark.paid_provider import Provider

from holdfast import Budget, OnTrouble, Pipeline, pay_once
from holdfast.errors import KeyInvalid, StepChanged, UsageInvalid, from_text
from holdfast.ledger.books import Choice, SlotState
from holdfast.ledger.file_ledger import FileLedger
from holdfast.ledger.opening import open_books
from holdfast.spark.dry_run import dry
from holdfast.spark.pay_once import PaidTransform

cloudpickle.register_pickle_by_value(paid_provider)  # type: ignore[no-untyped-call]
ROWS = 40


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return Provider(tmp_path / "calls.log")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/ledger"


def ask(provider: Callable[..., Any], url: str, **options: Any) -> PaidTransform:
    settings: dict[str, Any] = {"name": "ask", "key": "id", "returns": "answer string"}
    return pay_once(provider, ledger=url, **{**settings, "version": "1", **options})


def test_receipt_of_the_last_job_and_of_all(
    spark: SparkSession, provider: Provider, url: str
) -> None:
    step = ask(provider, url, budget=Budget(cost=0.01))
    assert step.receipt().bought == 0, "never used: nothing to tell, and no ledger is made"
    assert not Path(url.removeprefix("file://")).exists()
    spark.range(10).transform(step).collect()
    out = spark.range(30).transform(step)
    out.collect()
    out.collect()
    last, whole = step.receipt(), step.receipt(ever=True)
    assert (last.bought, last.reused) == (20, 10 + 30)
    assert (last.spent_usd, last.saved_usd) == (0.2, 0.4)
    assert (whole.bought, whole.reused, whole.spent_usd) == (30, 40, 0.3)
    assert whole.bought == sum(provider.calls().values())
    assert str(last).startswith("ask: bought 20, reused 40, in doubt 0, parked 0, failed 0, spent")
    again = ask(provider, url)
    assert again.receipt() == whole, "in another process it reads the same ledger"


def test_dry_run_counts_and_buys_nothing(spark: SparkSession, provider: Provider, url: str) -> None:
    frame = spark.range(ROWS).select((sf.col("id") % 20).alias("id"), sf.lit("a").alias("word"))
    step = ask(provider, url, budget=Budget(cost=0.5))
    found = step.dry_run(frame)
    assert (found.rows, found.slots, found.recorded, found.to_buy) == (ROWS, 20, 0, 20)
    assert found.about_usd == 10.0
    assert not Path(url.removeprefix("file://")).exists(), "a dry run makes no ledger"
    frame.where("id < 5").transform(step).collect()
    found = step.dry_run(frame)
    assert (found.slots, found.recorded, found.to_buy, found.about_usd) == (20, 5, 15, 7.5)
    assert ask(provider, url).dry_run(frame).about_usd == 7.5, "the price paid so far"
    assert provider.calls() == Counter(str(n) for n in range(5))


def test_dry_run_of_changed_inputs_and_steps(
    spark: SparkSession, provider: Provider, url: str
) -> None:
    frame = spark.range(4).withColumn("word", sf.lit("a"))
    frame.transform(ask(provider, url)).collect()
    other = frame.withColumn("word", sf.when(sf.col("id") < 1, "b").otherwise("a"))
    both = frame.union(other)

    def counts(policy: str) -> tuple[int, int, int]:
        trouble = OnTrouble(input_change=policy)  # type: ignore[arg-type]  # parametrised
        found = ask(provider, url, trouble=trouble).dry_run(both)
        assert found.about_usd in (None, 0.0)
        return found.recorded, found.to_buy, found.changed

    assert counts("refuse") == (4, 0, 1)
    assert counts("keep") == (4, 0, 0)
    assert counts("new") == (4, 1, 0)
    with pytest.raises(StepChanged):
        ask(provider, url, version="2").dry_run(frame)
    new = ask(provider, url, version="2", trouble=OnTrouble(change="new"))
    assert new.dry_run(frame).to_buy == 4
    nulls = spark.createDataFrame([(None,)], "id long")
    with pytest.raises(KeyInvalid):
        ask(provider, url, inputs=["id"], name="other").dry_run(nulls)
    assert sum(provider.calls().values()) == 4


def test_retried_outcomes_are_asked_again_and_no_others(
    spark: SparkSession, tmp_path: Path, url: str
) -> None:
    provider = Provider(tmp_path / "calls.log", refuse=3)
    step = ask(provider, url, trouble=OnTrouble(error="dead_letter"))
    spark.range(10).transform(step).collect()
    _end_workers(url)
    books = open_books(url)
    assert books.drop(Choice(states=frozenset({SlotState.FAILED}))) == 1
    books.close()
    provider.refuse = None
    step = ask(provider, url, trouble=OnTrouble(error="dead_letter"))
    rows = {row["id"]: row for row in spark.range(10).transform(step).collect()}
    assert (rows[3]["answer"], rows[3]["ask_status"]) == ("answer 3", "bought")
    assert provider.calls() == Counter([*(str(n) for n in range(10)), "3"])


def _end_workers(url: str) -> None:
    """End the Python workers that hold the ledger: idle ones would end by themselves later."""
    import os
    import signal

    import psutil

    ledger = FileLedger(url)
    with ledger._database.reading() as connection:
        pids = [pid for (pid,) in connection.execute("SELECT pid FROM owner")]
    ledger.close()
    workers = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    for worker in workers:
        os.kill(worker.pid, signal.SIGKILL)
    psutil.wait_procs(workers, timeout=20)


def paid_pipeline(provider: Provider, url: str) -> Pipeline:
    pipe = Pipeline("paid", version="1")
    pipe.input("docs", schema="id bigint, text string")
    first = ask(provider, url, inputs=["id"])
    second = ask(provider, url, inputs=["id"], name="then", returns="more string")

    @pipe.stage
    def asked(docs: Any) -> Any:
        return docs.where("text <> ''").transform(first)

    @pipe.result("out", order_by=["id"])
    def out(asked: Any) -> Any:
        return asked.transform(second).select("id", "answer", "more")

    return pipe


def test_a_pipeline_has_a_receipt(
    spark: SparkSession, provider: Provider, url: str, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "docs.csv").write_text("id,text\n1,a\n2,b\n3,\n")
    pipe = paid_pipeline(provider, url)
    report = pipe.run(spark, inputs=tmp_path / "in", state=tmp_path / "state", out=tmp_path / "out")
    assert {one.step: (one.bought, one.in_doubt) for one in report.receipts} == {
        "ask": (2, 0),
        "then": (2, 0),
    }
    assert sum(provider.calls().values()) == 4


def test_a_result_is_built_where_its_session_is_active_and_its_steps_are_counted(
    spark: SparkSession, provider: Provider, url: str, tmp_path: Path
) -> None:
    """Without a declared schema nothing is built before the run: only its results count."""
    spark.range(3).selectExpr("id", "cast(id as string) as text").write.parquet(f"{tmp_path}/in")
    pipe = Pipeline("late", version="1")
    pipe.input("docs", format="parquet")

    @pipe.stage
    def kept(docs: DataFrame) -> DataFrame:
        return docs

    @pipe.result("out")
    def out(kept: DataFrame) -> DataFrame:
        active = SparkSession.getActiveSession()
        assert active is not None
        return kept.transform(ask(provider, url, inputs=["id"])).select("id", "answer")

    files = {"docs": f"{tmp_path}/in"}
    report = pipe.run(spark, inputs=files, state=tmp_path / "state", out=tmp_path / "out")
    assert [(one.step, one.bought) for one in report.receipts] == [("ask", 3)]


def test_a_dry_pipeline_knows_the_first_unbought_step(
    spark: SparkSession, provider: Provider, url: str
) -> None:
    pipe = paid_pipeline(provider, url)
    docs = {"docs": [(1, "a"), (2, "b"), (3, "")]}

    def build() -> Any:
        with dry() as runs:
            frames = pipe.test(docs, spark)
        return runs, frames["out"]

    runs, _ = build()
    # `test` cuts its rows into two batches: the first one met already has something to buy.
    assert runs.known[0].step == "ask"
    assert runs.unknown["then"] == "ask"
    assert not provider.calls()
    frame = spark.createDataFrame([(1,), (2,)], "id long")
    frame.transform(ask(provider, url, inputs=["id"])).collect()
    runs, out = build()
    assert [run.to_buy for run in runs.known if run.step == "ask"] == [0] * 2
    assert runs.known[-1].step == "then"
    assert runs.known[-1].to_buy > 0
    assert [row["more"] for row in out.collect()] == [None, None]
    assert provider.calls() == Counter(["1", "2"])


@pytest.mark.parametrize(
    "options",
    [
        {"key": []},
        {"key": ["id", "id"]},
        {"inputs": [""]},
        {"budget": Budget(usd=5.0)},
        {"budget": Budget(calls=-1)},
        {"setup": lambda: 1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_refused_when_the_step_is_made(
    provider: Provider, url: str, options: dict[str, Any]
) -> None:
    with pytest.raises(UsageInvalid):
        ask(provider, url, **options)


def test_what_is_not_a_function_is_refused(url: str) -> None:
    for bad in (lambda: 1, lambda row, more, *, must: 1, "text"):
        with pytest.raises(UsageInvalid):
            ask(bad, url)  # type: ignore[arg-type]  # on purpose
    assert ask(len, url).name == "ask"


def test_the_ledger_from_the_environment(
    spark: SparkSession, provider: Provider, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_LEDGER", url)
    step = pay_once(provider, name="plain", key="id", returns="answer string")
    assert spark.range(2).transform(step).columns == ["id", "answer", "plain_status"]
    step = ask(provider, None, status=False)  # type: ignore[arg-type]  # from the environment
    assert spark.range(2).transform(step).columns == ["id", "answer"]


def test_unpicklable_options_are_refused(
    spark: SparkSession, provider: Provider, url: str, tmp_path: Path
) -> None:
    with (tmp_path / "file").open("w") as file:
        for options in (
            {"budget": Budget(cost=lambda answer: file.tell())},
            {"trouble": OnTrouble(retryable=lambda error: file.closed)},
            {"trouble": OnTrouble(unknown=lambda row, key: file.tell())},
        ):
            with pytest.raises(UsageInvalid):
                spark.range(1).transform(ask(provider, url, **options))


def test_a_ledger_is_a_table(spark: SparkSession, tmp_path: Path, url: str) -> None:
    provider = Provider(tmp_path / "calls.log", refuse=3)
    step = ask(provider, url, trouble=OnTrouble(error="null"), budget=Budget(cost=0.25))
    spark.range(ROWS).transform(step).collect()
    spark.range(2).transform(ask(provider, url, name="other")).collect()
    table = spark.read.format("holdfast").option("ledger", url).load()
    counts = {
        (r["step"], r["state"]): r["count"]
        for r in table.groupBy("step", "state").count().collect()
    }
    assert counts == {("ask", "bought"): ROWS - 1, ("ask", "failed"): 1, ("other", "bought"): 2}
    only = spark.read.format("holdfast").option("ledger", url).option("step", "ask").load()
    assert only.count() == ROWS
    row = only.where("key = '7'").select("answer", "cost_usd", "attempts").first()
    assert row is not None
    assert (row["answer"], float(row["cost_usd"]), row["attempts"]) == ('["answer 7"]', 0.25, 1)
    answers = only.where("state = 'bought'").select(sf.get_json_object("answer", "$[0]"))
    assert answers.distinct().count() == ROWS - 1


@pytest.mark.parametrize(
    "options", [{}, {"topic": "t"}, {"ledger": "relative"}, {"ledger": "LEDGER", "step": "none"}]
)
def test_a_table_of_nothing_known_is_refused(
    spark: SparkSession, provider: Provider, url: str, options: dict[str, str]
) -> None:
    spark.range(1).transform(ask(provider, url)).collect()
    options = {name: url if value == "LEDGER" else value for name, value in options.items()}
    with pytest.raises(PySparkException) as caught:
        spark.read.format("holdfast").options(**options).load().collect()
    assert isinstance(from_text(str(caught.value)), UsageInvalid)
