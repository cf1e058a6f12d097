"""pay_once on Spark: however often Spark asks, the provider's own books show each slot once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from tests.spark import paid_provider
from tests.spark.paid_provider import Provider

from holdfast import Budget, Limits, OnTrouble, pay_once
from holdfast.errors import (
    BudgetSpent,
    CallFailed,
    CallInputChanged,
    ClusterNeedsSharedState,
    FailureRecorded,
    HoldfastError,
    KeyInvalid,
    StepChanged,
    UsageInvalid,
    from_text,
)
from holdfast.ledger.file_ledger import FileLedger

cloudpickle.register_pickle_by_value(paid_provider)  # type: ignore[no-untyped-call] # PySpark types none of it  # type: ignore[no-untyped-call]
ROWS = 40


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return Provider(tmp_path / "calls.log")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/ledger"


def ask(provider: Callable[..., Any], url: str, **options: Any) -> Callable[..., DataFrame]:
    settings: dict[str, Any] = {"name": "ask", "key": "id", "returns": "answer string"}
    return pay_once(provider, ledger=url, version="1", **{**settings, **options})


def once(count: int = ROWS) -> Counter[str]:
    return Counter({str(number): 1 for number in range(count)})


def error_of(action: Callable[[], Any]) -> HoldfastError:
    with pytest.raises(PythonException) as caught:
        action()
    found = from_text(str(caught.value))
    assert found is not None, str(caught.value)
    return found


def test_filter_order_union_and_self_join(
    spark: SparkSession, provider: Provider, url: str
) -> None:
    """Plain Spark evaluates a paid column again for each of these."""
    out = spark.range(ROWS).transform(ask(provider, url))
    assert out.filter(sf.col("answer") != "answer 3").count() == ROWS - 1
    first = out.orderBy("answer").first()
    assert first is not None
    assert first["answer"] == "answer 0"
    assert out.union(out).count() == 2 * ROWS
    assert out.alias("a").join(out.alias("b"), "id").count() == ROWS
    assert provider.calls() == once()


def test_an_instant_is_the_same_slot_in_every_time_zone(
    spark: SparkSession, provider: Provider, url: str
) -> None:
    """Spark hands timestamps over in the session's zone, which is the machine's by default."""
    frame = spark.range(3).selectExpr("id", "timestamp_seconds(id * 86400) as at")
    for zone in ("UTC", "Europe/Berlin", "America/New_York"):
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            assert frame.transform(ask(provider, url, key="at")).count() == 3
            frame.transform(ask(provider, url, key="at")).collect()
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert sum(provider.calls().values()) == 3


def test_a_self_join_that_asks_first(spark: SparkSession, provider: Provider, url: str) -> None:
    """Two tasks ask for the same slots at the same time: one buys, the other waits and reads."""
    provider.delay_s = 0.02
    out = spark.range(ROWS).transform(ask(provider, url))
    rows = out.alias("a").join(out.withColumnRenamed("answer", "other"), "id").collect()
    assert all(row["answer"] == row["other"] == f"answer {row['id']}" for row in rows)
    assert provider.calls() == once()


def test_two_actions_at_once(spark: SparkSession, provider: Provider, url: str) -> None:
    provider.delay_s = 0.02
    out = spark.range(ROWS).transform(ask(provider, url))
    with ThreadPoolExecutor(2) as pool:
        counts = list(pool.map(lambda _: len(out.collect()), range(2)))
    assert counts == [ROWS, ROWS]
    assert provider.calls() == once()


def test_two_chained_steps_in_one_task(spark: SparkSession, tmp_path: Path, url: str) -> None:
    first, second = Provider(tmp_path / "first.log"), Provider(tmp_path / "second.log")
    narrow = Limits(max_in_flight=2, intent_ahead=1)
    out = (
        spark.range(ROWS)
        .coalesce(1)
        .transform(ask(first, url, limits=narrow))
        .transform(ask(second, url, name="then", returns="more string", limits=narrow))
    )
    assert out.filter("more = answer").count() == ROWS
    assert first.calls() == once()
    assert second.calls() == once()


def test_tasks_that_share_keys_in_opposite_orders(
    spark: SparkSession, provider: Provider, url: str
) -> None:
    """Two tasks that locked what they hold until they are read would wait for each other."""
    provider.delay_s = 0.01
    up = spark.range(ROWS).coalesce(1)
    down = spark.range(ROWS - 1, -1, -1).coalesce(1)
    step = ask(provider, url, limits=Limits(max_in_flight=4, intent_ahead=4))
    assert up.union(down).transform(step).count() == 2 * ROWS
    assert provider.calls() == once()


def test_rows_with_one_key_are_one_slot(spark: SparkSession, provider: Provider, url: str) -> None:
    frame = spark.range(ROWS).select((sf.col("id") % 5).alias("id"), sf.lit(1).alias("other"))
    rows = frame.transform(ask(provider, url, inputs=["id"])).collect()
    assert [row["answer"] for row in rows] == [f"answer {n % 5}" for n in range(ROWS)]
    assert provider.calls() == once(5)


def test_limit_buys_little(spark: SparkSession, tmp_path: Path, url: str) -> None:
    """One slice, the window behind it, and what Spark's buffer of 64 KiB takes of 4 KiB answers."""
    provider = Provider(tmp_path / "calls.log", delay_s=0.01, answer_bytes=4096)
    limits = Limits(max_in_flight=8, intent_ahead=8)
    out = spark.range(4000).coalesce(1).transform(ask(provider, url, limits=limits))
    assert len(out.limit(5).collect()) == 5
    assert sum(provider.calls().values()) <= 200
    assert max(provider.calls().values()) == 1
    bought = provider.calls()
    again = spark.range(4000).coalesce(1).transform(ask(provider, url, limits=limits)).limit(20)
    statuses = {str(row["id"]): row["ask_status"] for row in again.collect()}
    assert {status for key, status in statuses.items() if key in bought} == {"reused"}
    assert sum(provider.calls().values()) - sum(bought.values()) <= 200
    assert max(provider.calls().values()) == 1, "what was called was settled, not abandoned"


def test_a_task_that_fails_half_way(spark: SparkSession, provider: Provider, url: str) -> None:
    """One bad row never loses the others' answers."""
    provider.refuse = 20
    out = spark.range(ROWS).coalesce(1).transform(ask(provider, url))
    failed = error_of(out.collect)
    assert isinstance(failed, CallFailed)
    assert failed.key == "20"
    before = provider.calls()
    assert {str(n) for n in range(20)} <= set(before)
    provider.refuse = None
    out = spark.range(ROWS).coalesce(1).transform(ask(provider, url))
    assert out.count() == ROWS
    assert provider.calls() - once() == Counter({"20": 1}), "only the refused row is asked again"


def test_an_answer_of_the_wrong_type_is_bought_once(
    spark: SparkSession, provider: Provider, url: str
) -> None:
    """It was paid: neither a retry of Spark's nor the next run buys it again."""
    for _ in range(2):
        step = ask(provider, url, returns="answer int")
        failed = error_of(spark.range(1).transform(step).collect)
        assert isinstance(failed, FailureRecorded)
        assert failed.key == "0"
    step = ask(provider, url, returns="answer int", trouble=OnTrouble(error="null"))
    rows = spark.range(1).transform(step).collect()
    assert [(row["answer"], row["ask_status"]) for row in rows] == [(None, "failed")]
    assert provider.calls() == once(1)


def test_a_step_shows_itself_without_its_secrets(provider: Provider) -> None:
    url = "postgresql://me:secret@host/books"
    step = ask(provider, url, key=["id", "day"], fingerprint={"prompt": "a secret prompt"})
    assert repr(step) == (
        "pay_once(Provider, name='ask', key='id, day', returns='answer string',"
        " ledger='postgresql://me@host/books')"
    )
    plain = pay_once(len, name="size", key="id", returns="n int", ledger="file:///l", version="1")
    assert repr(plain).startswith("pay_once(len, name='size', key='id'")


def test_a_killed_python_worker(spark: SparkSession, tmp_path: Path, url: str) -> None:
    """What was recorded stands; what was on its way is asked again, counted, and no more."""
    provider = Provider(tmp_path / "calls.log", kill_at=25)
    limits = Limits(max_in_flight=4, intent_ahead=4)
    out = spark.range(ROWS).coalesce(1).transform(ask(provider, url, limits=limits))
    with pytest.raises(Exception, match="worker"):
        out.collect()
    out = spark.range(ROWS).coalesce(1).transform(ask(provider, url, limits=limits))
    rows = out.collect()
    assert [row["answer"] for row in rows] == [f"answer {n}" for n in range(ROWS)]
    again = provider.calls() - once()
    assert set(provider.calls()) == set(once())
    assert again["25"] == 1
    assert sum(again.values()) <= 8
    assert max(again.values()) == 1


def test_parked_and_dead_letters(spark: SparkSession, tmp_path: Path, url: str) -> None:
    provider = Provider(tmp_path / "calls.log", kill_at=5, refuse=3)
    trouble = OnTrouble(unknown="park", error="dead_letter")
    step = ask(provider, url, trouble=trouble, limits=Limits(max_in_flight=1, intent_ahead=0))
    with pytest.raises(Exception, match="worker"):
        spark.range(10).coalesce(1).transform(step).collect()
    out = spark.range(10).coalesce(1).transform(step)
    for _ in range(2):  # a recompute gives the same answer
        statuses = {row["id"]: (row["ask_status"], row["answer"]) for row in out.collect()}
        assert statuses[3] == ("failed", None)
        assert statuses[5] == ("parked", None)
        assert statuses[6][1] == "answer 6"
    assert provider.calls() == once(10)
    ledger = FileLedger(url)
    assert [letter.key for letter in ledger.dead_letters(1)] == ["3"]
    ledger.close()


def test_async_batch_setup_and_key(spark: SparkSession, tmp_path: Path, url: str) -> None:
    """The rarer options, together: a coroutine of a list of rows with a client made once."""
    provider = Provider(tmp_path / "calls.log")

    async def many(rows: list[Any], prefix: str, idempotency_key: list[str]) -> list[Any]:
        for row, _key in zip(rows, idempotency_key, strict=True):
            provider.book(str(row.id))
        return [{"text": f"{prefix}{row.id}", "size": len(rows)} for row in rows]

    def make() -> str:
        provider.book("setup")
        return "x"

    step = ask(many, url, returns="text string, size int", batch=8, setup=make, inputs=["id"])
    rows = spark.range(ROWS).coalesce(1).transform(step).collect()
    assert [row["text"] for row in rows] == [f"x{n}" for n in range(ROWS)]
    assert {row["size"] for row in rows} <= set(range(1, 9))
    assert provider.calls() == once() + Counter({"setup": 1})


def test_budget_stops_cleanly_and_goes_on(
    spark: SparkSession, provider: Provider, url: str
) -> None:
    frame = spark.range(ROWS).coalesce(1)
    spent = error_of(frame.transform(ask(provider, url, budget=Budget(calls=10))).collect)
    assert isinstance(spent, BudgetSpent)
    assert spent.calls == 10
    assert sum(provider.calls().values()) == 10
    cheap = Budget(usd=0.05, cost=0.01)
    spent = error_of(frame.transform(ask(provider, url, budget=cheap)).collect)
    assert isinstance(spent, BudgetSpent)
    assert float(spent.usd) == 0.05
    assert sum(provider.calls().values()) == 15
    assert frame.transform(ask(provider, url)).count() == ROWS
    assert provider.calls() == once()


def test_changed_inputs_and_changed_steps(
    spark: SparkSession, provider: Provider, url: str
) -> None:
    def frame(word: str) -> DataFrame:
        return spark.range(3).coalesce(1).withColumn("word", sf.lit(word))

    frame("a").transform(ask(provider, url)).collect()
    changed = error_of(frame("b").transform(ask(provider, url)).collect)
    assert isinstance(changed, CallInputChanged)
    assert changed.key == "0"
    keep = OnTrouble(input_change="keep")
    assert frame("b").transform(ask(provider, url, trouble=keep)).count() == 3
    assert provider.calls() == once(3)
    new = OnTrouble(input_change="new")
    assert frame("b").transform(ask(provider, url, trouble=new)).count() == 3
    assert frame("b").transform(ask(provider, url, trouble=new)).count() == 3
    assert provider.calls() == once(3) + once(3)
    with pytest.raises(StepChanged) as caught:
        frame("a").transform(ask(provider, url, fingerprint={"model": "2"}))
    assert caught.value.fields == "fingerprint.model"
    anew = ask(provider, url, fingerprint={"model": "2"}, trouble=OnTrouble(change="new"))
    frame("a").transform(anew).collect()
    assert provider.calls() == once(3) + once(3) + once(3)


def test_null_key(spark: SparkSession, provider: Provider, url: str) -> None:
    frame = spark.createDataFrame([(1, "a"), (2, None)], "id int, k string").coalesce(1)
    found = error_of(frame.transform(ask(provider, url, key="k")).collect)
    assert isinstance(found, KeyInvalid)
    assert found.column == "k"
    assert not provider.calls()


@pytest.mark.parametrize(
    "options",
    [
        {"key": "nothing"},
        {"inputs": ["nothing"]},
        {"returns": "what is this"},
        {"returns": "int"},
        {"returns": "answer interval day"},
        {"returns": "ID string"},
        {"name": "no name"},
        {"name": "x", "returns": "x_status string"},
        {"batch": 64},
        {"trouble": OnTrouble(error="explode")},  # type: ignore[arg-type]  # on purpose
        {"limits": Limits(max_in_flight=0)},
    ],
    ids=str,
)
def test_refused_before_any_call(
    spark: SparkSession, provider: Provider, url: str, options: dict[str, Any]
) -> None:
    with pytest.raises(UsageInvalid):
        spark.range(3).transform(ask(provider, url, **options))


def test_refused_places_and_functions(
    spark: SparkSession, provider: Provider, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_LEDGER", raising=False)
    for bad in (None, "relative/path", "file:relative"):
        with pytest.raises(UsageInvalid):
            ask(provider, bad)  # type: ignore[arg-type]  # on purpose
    lock = os.popen("true")
    with pytest.raises(UsageInvalid):
        spark.range(3).transform(ask(lambda row: lock, url))
    lock.close()
    monkeypatch.setattr(type(spark.conf), "get", lambda *_: "spark://elsewhere:7077")
    with pytest.raises(ClusterNeedsSharedState):
        spark.range(3).transform(ask(provider, url))


def test_streaming(spark: SparkSession, provider: Provider, url: str, tmp_path: Path) -> None:
    """A stream whose checkpoint is thrown away buys nothing again."""
    spark.range(ROWS).write.json(f"{tmp_path}/in")
    for turn in range(2):
        stream = spark.readStream.schema("id long").json(f"{tmp_path}/in")
        query = (
            stream.transform(ask(provider, url))
            .writeStream.format("parquet")
            .option("checkpointLocation", f"{tmp_path}/checkpoint{turn}")
            .trigger(availableNow=True)
            .start(f"{tmp_path}/out{turn}")
        )
        assert query.awaitTermination(120)
        assert spark.read.parquet(f"{tmp_path}/out{turn}").count() == ROWS
    assert provider.calls() == once()
