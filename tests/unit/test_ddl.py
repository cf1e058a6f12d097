"""Column names of a schema in Spark's DDL, found without Spark."""

from __future__ import annotations

import pytest

from holdfast.errors import UsageInvalid
from holdfast.intake.ddl import column_names

GOOD: dict[str, list[str]] = {
    "a int": ["a"],
    "a int, b string": ["a", "b"],
    " a  int ,\n\tb string ": ["a", "b"],
    "a: int, b : string": ["a", "b"],
    "a decimal(10, 2), b decimal(9,3)": ["a", "b"],
    "a map<string, int>, b int": ["a", "b"],
    "a struct<x: int, y: map<string, array<decimal(5, 1)>>>, b int": ["a", "b"],
    "a struct<`x, y`: int>, b int": ["a", "b"],
    "`a b` int, `c,d` int, `e``f` int, `g<h` int, `i)` int": ["a b", "c,d", "e`f", "g<h", "i)"],
    "a int NOT NULL, b timestamp_ntz": ["a", "b"],
    "_x int, X1 int": ["_x", "X1"],
    "n\u00e4me string": ["n\u00e4me"],
}


@pytest.mark.parametrize("schema", GOOD)
def test_names_come_in_order_whatever_the_types_hold(schema: str) -> None:
    assert column_names(schema) == GOOD[schema]


@pytest.mark.parametrize(
    "schema", ["", "  ", "a", "a int,", ", a int", "a int,, b int", "a-b int", "`a int", "``int"]
)
def test_a_part_that_is_not_name_and_type_is_refused(schema: str) -> None:
    with pytest.raises(UsageInvalid) as caught:
        column_names(schema)
    assert repr(schema) in caught.value.what
    assert caught.value.remedy
