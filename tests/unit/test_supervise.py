"""What travels between the engine's process and Spark's: nothing is lost on the way."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.executor import BatchWork, Outcome, SeriesWork, Source
from holdfast.errors import BadRows, HoldfastError, StageFailed, from_text
from holdfast.spark.load import search_path
from holdfast.spark.wire import Start, line, pack, unpack_batch, unpack_outcome, unpack_series

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SOURCES = st.builds(
    Source,
    path=TEXT,
    start=st.integers(0, 2**40),
    stop=st.integers(0, 2**40),
    checksum=TEXT,
    format=st.sampled_from(["csv", "json", "parquet", "binaryFile"]),
    header=TEXT,
)
TABLES = st.dictionaries(TEXT, st.lists(SOURCES, max_size=2).map(tuple), max_size=3)


def through(**message: Any) -> Any:
    """Send a message as it is sent: one line of bytes, decoded at the other end."""
    data = line(**message)
    assert data.endswith(b"\n")
    assert data.count(b"\n") == 1
    return json.loads(data)


@settings(derandomize=True, max_examples=40, deadline=None)
@given(directory=TEXT, segment=st.integers(1, 9), chunks=TABLES, pins=TABLES)
def test_a_batch_arrives_as_it_was_sent(
    directory: str, segment: int, chunks: dict[str, Any], pins: dict[str, Any]
) -> None:
    work = BatchWork(directory, segment, chunks, pins, 7)
    assert unpack_batch(through(batch=pack(work))["batch"]) == work


@settings(derandomize=True, max_examples=40, deadline=None)
@given(
    directory=TEXT,
    name=TEXT,
    datasets=st.dictionaries(TEXT, st.lists(TEXT, max_size=3).map(tuple), max_size=3),
    pins=TABLES,
)
def test_a_series_arrives_as_it_was_sent(
    directory: str, name: str, datasets: dict[str, Any], pins: dict[str, Any]
) -> None:
    work = SeriesWork(directory, name, datasets, pins, 7)
    assert unpack_series(through(series=pack(work))["series"]) == work


@pytest.mark.parametrize(
    "outcome", [Outcome(), Outcome({"sales": 7, "\u00e4": 0}, ("a", "b c", "\u00e4\n"))]
)
def test_an_outcome_arrives_as_it_was_sent(outcome: Outcome) -> None:
    assert unpack_outcome(through(outcome=asdict(outcome))["outcome"]) == outcome


def test_a_start_arrives_as_it_was_sent() -> None:
    start = Start("a.py:pipe", "/log", "local[2]", {"spark.x": "1=2"}, short=True)
    assert Start(**through(start=asdict(start))["start"]) == start
    assert Start(**through(start=asdict(Start("coffee", "l")))["start"]) == Start("coffee", "l")


@pytest.mark.parametrize(
    "error",
    [
        StageFailed(stage="s", where="f.py:3", error='say "no"\n{x}'),
        BadRows(path="/p", line=3, reason="r", count=2),
    ],
    ids=lambda error: error.code,
)
def test_an_error_arrives_with_its_class_and_attributes(error: HoldfastError) -> None:
    found = from_text(through(error=error.wire_text())["error"])
    assert found is not None
    assert type(found) is type(error)
    assert found.facts() == error.facts()


def test_workers_are_told_where_a_pipeline_file_lies() -> None:
    assert search_path("/a/b/p.py") == "/a/b"
    assert search_path("/a/b/p.py:pipe") == "/a/b"
    assert search_path("coffee") is None
    assert search_path("module:pipe") is None
