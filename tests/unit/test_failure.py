"""What a failed attempt means for its run, error by error."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from holdfast._base.ids import BatchId, Offset, RunId
from holdfast.config import Config
from holdfast.engine.failure import Verdict, is_exhausted, judge
from holdfast.errors import HoldfastError, all_errors
from holdfast.store.rows import Plan, Work, WorkKind

COUNTED = {"STAGE_FAILED"}
FAILS_AT_ONCE = {"BAD_ROWS", "HEADER_WRONG", "STAGE_INVALID"}
ERRORS = all_errors()


def an(code: str) -> HoldfastError:
    """Return an error of this code, its attributes filled in by their type."""
    cls = ERRORS[code]
    values: dict[str, Any] = {"int": 1, "float": 1.0, "str": "x"}
    return cls(**{field.name: values[str(field.type)] for field in fields(cls)})


@pytest.mark.parametrize("replaceable", [True, False])
@pytest.mark.parametrize("code", sorted(set(ERRORS) - {"SPARK_LOST"}))
def test_only_stages_are_counted_and_only_hopeless_data_fails_at_once(
    code: str, replaceable: bool
) -> None:
    """All other errors leave the run as it is: environment, changed inputs, damage, our bugs."""
    wanted = Verdict.COUNT if code in COUNTED else Verdict.RAISE
    wanted = Verdict.FAIL if code in FAILS_AT_ONCE else wanted
    assert judge(an(code), replaceable=replaceable) is wanted


def test_a_lost_spark_counts_only_where_another_can_be_started() -> None:
    """And apart from what speaks against the work itself."""
    assert judge(an("SPARK_LOST"), replaceable=True) is Verdict.LOST
    assert judge(an("SPARK_LOST"), replaceable=False) is Verdict.RAISE


@pytest.mark.parametrize(
    ("own", "losses", "exhausted"),
    [
        (0, 0, False),
        (2, 0, False),
        (3, 0, True),
        (4, 0, True),
        (0, 4, False),
        (2, 4, False),
        (0, 5, True),
        (0, 6, True),
        (3, 1, True),
    ],
)
def test_a_work_is_exhausted_by_its_own_failures_or_by_lost_sparks_each_with_its_limit(
    own: int, losses: int, exhausted: bool
) -> None:
    """At the last one, not after it; the two are not added up."""
    plan = Plan(BatchId("w"), RunId("r"), WorkKind.SERIES, 0, "s", (), Offset(0))
    failures = own + losses
    work = Work(plan, 1, False, failures, failures, "x", losses=losses)
    assert is_exhausted(work, Config(attempts_max=3, spark_losses_max=5)) is exhausted
