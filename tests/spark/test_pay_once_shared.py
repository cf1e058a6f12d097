"""pay_once with a ledger in PostgreSQL: two jobs share slots, secrets stay secret."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from pyspark import cloudpickle
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from tests.postgres_server import PASSWORD, PostgresServer
from tests.spark import paid_provider
from tests.spark.paid_provider import Provider

from holdfast import Budget, Limits, OnTrouble, pay_once
from holdfast.errors import LedgerMismatch, LedgerRefused, from_text
from holdfast.ledger.books import Choice, SlotState
from holdfast.ledger.opening import open_books
from holdfast.ledger.postgres.ledger import PostgresLedger
from holdfast.spark.pay_once import PaidTransform

cloudpickle.register_pickle_by_value(paid_provider)  # type: ignore[no-untyped-call] # PySpark types none of it
ROWS = 60


def test_two_jobs_at_once_share_slots(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path
) -> None:
    """Two jobs, made apart, ask for the same rows in opposite orders at the same time."""
    url = postgres.new_url()
    provider = Provider(tmp_path / "calls.log", delay_s=0.02)

    def job(descending: bool) -> dict[int, str]:
        step = pay_once(
            provider,
            name="ask",
            key="id",
            returns="answer string",
            ledger=url,
            version="1",
            limits=Limits(max_in_flight=4, intent_ahead=4, rate_per_s=500.0),
        )
        rows = spark.range(ROWS).repartition(2)
        ordered = rows.sortWithinPartitions("id", ascending=not descending)
        return {row["id"]: row["answer"] for row in ordered.transform(step).collect()}

    with ThreadPoolExecutor(2) as pool:
        got = list(pool.map(job, (False, True)))
    assert got == [{n: f"answer {n}" for n in range(ROWS)}] * 2
    assert provider.calls() == Counter({str(n): 1 for n in range(ROWS)})
    ledger = PostgresLedger(url)
    totals = ledger.totals(ledger.step("ask", {}, on_change="keep").id)
    assert (totals.calls, totals.open) == (ROWS, 0)
    ledger.close()


def test_questions_to_a_shared_ledger(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path
) -> None:
    """Dry run, receipt, table, and a retry while the workers that wrote the outcomes live."""
    url = postgres.new_url()
    provider = Provider(tmp_path / "calls.log", refuse=3)

    def made() -> PaidTransform:
        return pay_once(
            provider,
            name="ask",
            key="id",
            returns="answer string",
            ledger=url,
            version="1",
            budget=Budget(cost=0.5),
            trouble=OnTrouble(error="dead_letter"),
        )

    step, rows = made(), spark.range(10).repartition(2)
    found = step.dry_run(rows)
    assert (found.recorded, found.to_buy, found.about_usd) == (0, 10, 5.0)
    with psycopg.connect(url) as connection:
        there = connection.execute("SELECT to_regclass('holdfast_ledger_meta')").fetchone()
    assert there == (None,), "a dry run makes no ledger"
    rows.transform(step).collect()
    rows.transform(step).collect()
    found = step.dry_run(rows)
    assert (found.recorded, found.to_buy) == (10, 0)
    receipt = made().receipt()
    assert (receipt.bought, receipt.failed, receipt.reused) == (9, 1, 9)
    table = spark.read.format("holdfast").option("ledger", url).load()
    assert {(row["key"], row["state"]) for row in table.collect()} == {
        (str(n), "failed" if n == 3 else "bought") for n in range(10)
    }
    assert PASSWORD not in table._jdf.queryExecution().toString()
    books = open_books(url)
    assert books.drop(Choice(states=frozenset({SlotState.FAILED}))) == 1
    books.close()
    provider.refuse = None
    answers = {row["id"]: row["answer"] for row in rows.transform(made()).collect()}
    assert answers == {n: f"answer {n}" for n in range(10)}
    assert provider.calls() == Counter([*(str(n) for n in range(10)), "3"])


@pytest.mark.slow
def test_a_killed_python_worker(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path
) -> None:
    """The next job waits until the killed worker counts as dead, and asks what is in doubt."""
    provider = Provider(tmp_path / "calls.log", delay_s=0.02, kill_at=20)
    step = pay_once(
        provider,
        name="ask",
        key="id",
        returns="answer string",
        ledger=postgres.new_url(),
        version="1",
        limits=Limits(max_in_flight=4, intent_ahead=4),
    )
    out = spark.range(ROWS).coalesce(1).transform(step)
    with pytest.raises(Exception, match="worker"):
        out.collect()
    rows = out.collect()
    assert {row["id"]: row["answer"] for row in rows} == {n: f"answer {n}" for n in range(ROWS)}
    calls = provider.calls()
    assert set(calls) == {str(n) for n in range(ROWS)}
    assert sum(calls.values()) - ROWS <= 4 + 4, "more than the killed task's window was repeated"


def test_errors_of_the_server_reach_the_driver_without_a_password(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path
) -> None:
    provider = Provider(tmp_path / "calls.log")
    url = postgres.new_url()

    def step(ledger: str) -> DataFrame:
        paid = pay_once(
            provider, name="ask", key="id", returns="answer string", ledger=ledger, version="1"
        )
        return spark.range(2).transform(paid)

    with pytest.raises(LedgerRefused) as refused:
        step(url.replace(PASSWORD, "canary-wrong"))
    assert "canary" not in str(refused.value)
    out = step(url)
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("UPDATE holdfast_ledger_meta SET ledger = 'another'")
    with pytest.raises(PythonException) as caught:
        out.collect()
    assert isinstance(from_text(str(caught.value)), LedgerMismatch)
    assert PASSWORD not in str(caught.value)
    assert provider.calls() == Counter()
