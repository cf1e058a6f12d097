"""What a failed attempt means for its run, error by error."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from holdfast.engine.failure import Verdict, is_exhausted, judge
from holdfast.errors import HoldfastError, all_errors

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
    assert judge(an("SPARK_LOST"), replaceable=True) is Verdict.COUNT
    assert judge(an("SPARK_LOST"), replaceable=False) is Verdict.RAISE


def test_a_work_is_exhausted_at_its_last_attempt_not_after_it() -> None:
    assert [is_exhausted(failures, 3) for failures in range(5)] == [False, False, False, True, True]
