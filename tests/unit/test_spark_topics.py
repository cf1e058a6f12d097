"""Topics in Spark, without Spark: how ranges, limits and shards are chosen."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import (
    BinaryType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from holdfast._base.ids import Offset
from holdfast.errors import RecordsDropped, UsageInvalid
from holdfast.log.contract import Capability, Record, StoredRecord
from holdfast.log.embedded import EmbeddedBackend
from holdfast.log.kafka.backend import KafkaBackend
from holdfast.log.memory import MemoryBackend
from holdfast.spark import topic_source
from holdfast.spark.topic_options import opened, read_options, write_options
from holdfast.spark.topic_sink import prepare, shard_of
from holdfast.spark.topic_source import TopicRange, TopicStream, cut, limited

PLACES = st.dictionaries(st.sampled_from("0123"), st.integers(0, 40), min_size=1)


def test_ranges_cover_each_record_once() -> None:
    found = cut({"0": 3, "1": 5}, {"0": 10, "1": 5, "2": 1}, 4)
    assert found == [TopicRange(0, 3, 7), TopicRange(0, 7, 10), TopicRange(2, 0, 1)]


@given(PLACES, PLACES, st.integers(1, 60))
def test_a_limit_is_kept_and_used(start: dict[str, int], more: dict[str, int], most: int) -> None:
    """Never more than the limit or than there is, never back, and all of it if there is enough."""
    end = {name: start.get(name, 0) + more.get(name, 0) for name in {*start, *more}}
    found = limited(start, end, most)
    taken = {name: found[name] - start.get(name, 0) for name in end}
    left = sum(end[name] - start.get(name, 0) for name in end)
    assert all(0 <= taken[name] <= end[name] - start.get(name, 0) for name in end)
    assert sum(taken.values()) == min(most, left)


class Joining(MemoryBackend):
    """A log that joins what it reads before and after something happens, as a broker's may."""

    def __init__(self, *, drops: bool) -> None:
        super().__init__("joining")
        self._drops = drops
        self.create_topic("t")
        self.produce_batch("t", [Record(b"%d" % number) for number in range(10)])

    def fetch_batch(self, topic: str, offset: Offset, **more: Any) -> list[StoredRecord]:
        found = super().fetch_batch(topic, offset, **{**more, "count": 10})
        if self._drops:
            self.commit_offset(topic, "g", Offset(6))
            self.truncate_before(topic, Offset(6))
        return [one for one in found if not 4 <= one.offset < 6]


def read_joined(
    monkeypatch: pytest.MonkeyPatch, *, drops: bool, start: int = 2, stop: int = 10
) -> list[int]:
    options = read_options(CaseInsensitiveDict({"url": "memory://joining", "topic": "t"}))
    monkeypatch.setattr(topic_source, "opened", lambda _: nullcontext(Joining(drops=drops)))
    batches = topic_source.read_range(options, TopicRange(0, start, stop))
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_records_that_are_dropped_inside_of_a_fetch_are_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RecordsDropped) as caught:
        read_joined(monkeypatch, drops=True)
    assert (caught.value.wanted, caught.value.first) == (4, 6)


def test_offsets_that_no_record_ever_had_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that died had given them to a batch that was not confirmed."""
    assert read_joined(monkeypatch, drops=False) == [2, 3, 6, 7, 8, 9]


def test_what_lies_behind_a_range_is_left_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch that finds a gap at the end of its range goes on behind it."""
    found = [
        read_joined(monkeypatch, drops=False, start=start, stop=stop)
        for start, stop in ((0, 5), (5, 10))
    ]
    assert found == [[0, 1, 2, 3], [6, 7, 8, 9]]


def test_a_limit_is_fair() -> None:
    assert limited({}, {"0": 100, "1": 100, "2": 4}, 24) == {"0": 10, "1": 10, "2": 4}


def test_an_id_has_one_shard_for_good() -> None:
    """These never change: else a record written again would be there twice."""
    assert [shard_of(f"n{n}", 4) for n in range(8)] == SHARDS
    spread = Counter(shard_of(str(n), 4) for n in range(4000))
    assert min(spread.values()) > 850


COLUMNS = StructType(
    [
        StructField("id", LongType()),
        StructField("value", StringType()),
        StructField("half", DoubleType()),
        StructField("data", BinaryType()),
    ]
)
GOOD = {"topic": "t", "url": "file:///x", "idColumn": "id"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"idColumn": "nothing"},
        {"idColumn": "half"},
        {"idColumn": "data"},
        {"valueColumn": "half"},
        {"keyColumn": "id"},
        {"idColum": "id"},
        {"delivery": "exactly-once"},
        {"partitions": "0"},
        {"partitions": "many"},
        {"topic": ""},
        {"maxRecordsPerBatch": "5"},
    ],
)
def test_what_a_writer_refuses(wrong: dict[str, str]) -> None:
    with pytest.raises(UsageInvalid):
        write_options({**GOOD, **wrong}, COLUMNS)


def test_what_a_writer_takes() -> None:
    """Spark hands over names in lower case, in a mapping that does not mind."""
    options = CaseInsensitiveDict({**GOOD, "keyColumn": "data", "checkpointLocation": "/c"})
    assert write_options(options, COLUMNS).id_column == "id"
    with pytest.raises(UsageInvalid, match="no idColumn"):
        write_options({"topic": "t", "url": "file:///x"}, COLUMNS)
    some = write_options({"topic": "t", "url": "u", "delivery": "at-least-once"}, COLUMNS)
    assert some.id_column is None


@pytest.mark.parametrize(
    "wrong",
    [{"maxRecordsPerBatch": "0"}, {"startingOffsets": "7"}, {"idColumn": "id"}, {"url": ""}],
)
def test_what_a_reader_refuses(wrong: dict[str, str]) -> None:
    with pytest.raises(UsageInvalid):
        read_options({"topic": "t", "url": "file:///x", **wrong})


def test_a_log_that_tasks_cannot_share_is_refused(tmp_path: Path) -> None:
    """And a file that is not there is not made: another machine would fill a log of its own."""
    for url in ("memory://here", f"file://{tmp_path}/missing"):
        with pytest.raises(UsageInvalid), opened(url):
            pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("write", [False, True])
def test_a_log_that_is_not_durable_is_only_read(
    monkeypatch: pytest.MonkeyPatch, write: bool
) -> None:
    """As the endpoint of Tansu on memory or SQLite: Spark does not write again what it loses."""
    monkeypatch.setattr(KafkaBackend, "start", lambda _: None)
    url = "kafka://127.0.0.1:1/p?flush=broker&truncate=mark"
    if not write:
        with opened(url) as log:
            assert Capability.DURABLE not in log.capabilities
        return
    with pytest.raises(UsageInvalid) as caught:
        prepare({**GOOD, "url": url, "delivery": "at-least-once"}, COLUMNS, overwrite=False)
    assert "is not durable" in caught.value.what


def test_a_url_that_starts_a_broker_is_refused() -> None:
    """One of it is durable and shared, but every task would start its own."""
    with pytest.raises(UsageInvalid) as caught, opened("tansu+s3://bucket"):
        pass
    assert "endpoint" in caught.value.remedy


def test_a_group_is_known_from_the_first_look_on(tmp_path: Path) -> None:
    """A query that has a checkpoint is never asked where it begins."""
    url = (tmp_path / "log").as_uri()
    with opened(url, create=True) as log:
        log.create_topic("t")
        log.produce_batch("t", [Record(b"x")] * 5)
        log.commit_offset("t", "other", Offset(5))
        stream = TopicStream(read_options({"topic": "t", "url": url, "group": "new"}))
        assert stream.reportLatestOffset() == {"0": 5}
        assert log.truncate_before("t", Offset(5)) == 0


def test_a_log_that_takes_copies_is_refused_unless_they_are_accepted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on Kafka: readers drop copies by id there."""
    url = (tmp_path / "log").as_uri()
    monkeypatch.setattr(
        EmbeddedBackend, "capabilities", frozenset(Capability) - {Capability.IDEMPOTENT}
    )
    options = {**GOOD, "url": url, "partitions": "1"}
    with pytest.raises(UsageInvalid, match="does not take an id once"):
        prepare(options, COLUMNS, overwrite=False)
    prepare({**options, "delivery": "at-least-once"}, COLUMNS, overwrite=False)


SHARDS = [2, 3, 3, 3, 2, 1, 3, 2]
