"""Some cases of `make proof-paid`, with their witness, in the tests' own session.

Those that tests/spark/test_pay_once.py does not have, and that need no session of their own.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from tests.proof import asking, cases
from tests.proof.books import Seen, attempts_in, calls_in, judge
from tests.proof.cases import CASES
from tests.proof.trial import Trial, witness

CHEAP = {
    "repartitionByRange",
    "SIGSTOP, a second job, SIGCONT",
    "foreachBatch with two actions",
    "lost commit marker of a checkpoint",
    "reply swallowed after the charge: park",
    "reply swallowed after the charge: reconcile",
}


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.plan.case in CHEAP], ids=lambda case: case.plan.case
)
def test_the_witness_saw_each_slot_once(
    spark: SparkSession, tmp_path: Path, case: cases.Case
) -> None:
    for module in (asking, cases):  # the workers cannot import the tests
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    log = tmp_path / "witness.log"
    with witness(log) as provider:
        trial = Trial(spark, case.plan.case, tmp_path, provider, paid=True)
        case.run(trial)
    calls = calls_in(log)[trial.label]
    attempts, _ = attempts_in(trial.url, case.plan.slots)
    verdict = judge(case.plan, Seen(), Counter(), trial.seen, calls, attempts)
    assert verdict.wrong == ()
    assert verdict.bought_again == 0


def test_every_cheap_case_is_there() -> None:
    assert {case.plan.case for case in CASES} >= CHEAP
