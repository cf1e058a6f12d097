"""Which chunks a batch takes, and that planning the same again gives the same id."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast._base.ids import Offset, Ordinal, RunId
from holdfast.config import Config
from holdfast.engine.plan import plan_batch, plan_series, take
from holdfast.store.rows import Chunk, ChunkKind, WorkKind

RUN = RunId("r")
Pending = list[tuple[Offset, Chunk]]


def chunk(ordinal: int, size: int = 10, *, table: str = "t", sender: str = "") -> Chunk:
    return Chunk(table, sender, Ordinal(ordinal), ChunkKind.RANGE, "/f", size, f"sum-{ordinal}")


def pending(sizes: Sequence[int], first: int = 0) -> Pending:
    return [(Offset(first + n), chunk(n + 1, size)) for n, size in enumerate(sizes)]


def test_a_batch_is_the_longest_prefix_that_fits() -> None:
    some = pending([10, 10, 10, 10])
    assert take(some, Config(batch_bytes=30)) == some[:3]
    assert take(some, Config(batch_bytes=29)) == some[:2]


def test_a_chunk_larger_than_a_batch_is_a_batch_of_its_own() -> None:
    some = pending([100, 1])
    assert take(some, Config(batch_bytes=30)) == some[:1]


def test_chunks_without_bytes_are_bounded_by_their_number() -> None:
    some = pending([0] * 5)
    assert take(some, Config(batch_bytes=1, batch_chunks=3)) == some[:3]


def test_nothing_pending_is_nothing_taken() -> None:
    assert take([], Config()) == []


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 50), max_size=20),
    batch_bytes=st.integers(1, 60),
    batch_chunks=st.integers(1, 5),
)
def test_batches_together_hold_every_chunk_once_and_in_order(
    sizes: list[int], batch_bytes: int, batch_chunks: int
) -> None:
    config = Config(batch_bytes=batch_bytes, batch_chunks=batch_chunks)
    some = pending(sizes)
    left, batches = some, []
    while taken := take(left, config):
        batches.append(taken)
        left = left[len(taken) :]
    assert [entry for batch in batches for entry in batch] == some
    for batch in batches:
        assert 1 <= len(batch) <= batch_chunks
        assert len(batch) == 1 or sum(c.size for _, c in batch) <= batch_bytes


def test_a_plan_ends_just_behind_its_last_chunk() -> None:
    plan = plan_batch(RUN, 1, "f", pending([1, 1, 1], first=7))
    assert plan.offset == 10
    assert plan.kind is WorkKind.BATCH
    assert [c.ordinal for c in plan.chunks] == [1, 2, 3]
    assert plan.name == ""


def test_the_same_plan_has_the_same_id_and_any_difference_another() -> None:
    some = pending([1, 1])
    plan = plan_batch(RUN, 1, "f", some)
    assert plan_batch(RUN, 1, "f", pending([1, 1])).work_id == plan.work_id
    others = [
        plan_batch(RunId("q"), 1, "f", some),
        plan_batch(RUN, 2, "f", some),
        plan_batch(RUN, 1, "g", some),
        plan_batch(RUN, 1, "f", some[:1]),
        plan_batch(RUN, 1, "f", some[::-1]),
        plan_batch(RUN, 1, "f", [(Offset(0), chunk(1, table="u")), some[1]]),
        plan_batch(RUN, 1, "f", [(Offset(0), chunk(1, sender="b")), some[1]]),
        plan_series(RUN, "f", "t"),
    ]
    ids = {plan.work_id, *(other.work_id for other in others)}
    assert len(ids) == 1 + len(others)


def test_where_chunks_lie_in_the_log_does_not_name_the_plan() -> None:
    """Identity is what is done, not the offset at which it was found."""
    one, two = plan_batch(RUN, 1, "f", pending([1])), plan_batch(RUN, 1, "f", pending([1], first=4))
    assert one.work_id == two.work_id


def test_a_series_plan_takes_no_chunks() -> None:
    plan = plan_series(RUN, "f", "q1")
    assert (plan.kind, plan.segment, plan.name, plan.chunks) == (WorkKind.SERIES, 0, "q1", ())
    assert plan_series(RUN, "f", "q1") == plan
    assert len({plan_series(RUN, f, n).work_id for f in "fg" for n in ("q1", "q2")}) == 4
