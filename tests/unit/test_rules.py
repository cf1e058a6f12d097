"""What intake accepts, acknowledges again or refuses: every row of the table in the rules."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast._base.ids import Ordinal, RunId
from holdfast.errors import (
    CallerError,
    ChunkConflict,
    EndConflict,
    QuotaReached,
    RunGone,
    UploadSwept,
    UsageInvalid,
)
from holdfast.intake.rules import accept_chunk, accept_end
from holdfast.store.rows import Chunk, ChunkFacts, ChunkKind, End, EndFacts, RunState, Taken

RUN = RunId("run-1")
CLOSED_TO_NEW = [state for state in RunState if state is not RunState.OPEN]
BEFORE_SWEPT = [state for state in RunState if state is not RunState.SWEPT]


def chunk(ordinal: int = 1, checksum: str = "a") -> Chunk:
    return Chunk("t", "s", Ordinal(ordinal), ChunkKind.BLOB, "x", 1, checksum)


def facts(
    *,
    state: RunState = RunState.OPEN,
    declared: bool = True,
    announced: int | None = None,
    stored: Chunk | None = None,
    condemned: bool = False,
) -> ChunkFacts:
    return ChunkFacts(RUN, state, declared, announced, stored, condemned)


def end_facts(
    *,
    state: RunState = RunState.OPEN,
    declared: bool = True,
    announced: int | None = None,
    received: tuple[int, ...] = (),
) -> EndFacts:
    return EndFacts(RUN, state, declared, announced, max(received, default=0))


@pytest.mark.parametrize("announced", [None, 1, 5])
def test_a_new_chunk_that_fits_is_accepted(announced: int | None) -> None:
    assert accept_chunk(chunk(), facts(announced=announced)) is True


@pytest.mark.parametrize("state", BEFORE_SWEPT)
def test_the_same_chunk_is_acknowledged_again_until_the_run_is_swept(state: RunState) -> None:
    assert accept_chunk(chunk(), facts(state=state, stored=chunk(), announced=1)) is False


@pytest.mark.parametrize("state", BEFORE_SWEPT)
def test_other_bytes_under_the_same_ordinal_are_refused_with_both_checksums(
    state: RunState,
) -> None:
    with pytest.raises(ChunkConflict) as caught:
        accept_chunk(chunk(2, "new"), facts(state=state, stored=chunk(2, "old")))
    error = caught.value
    assert (error.table, error.sender, error.ordinal) == ("t", "s", 2)
    assert (error.stored, error.sent) == ("old", "new")


def test_a_chunk_beyond_the_announced_count_is_refused_with_both_numbers() -> None:
    with pytest.raises(ChunkConflict) as caught:
        accept_chunk(chunk(4), facts(announced=3))
    assert (caught.value.stored, caught.value.sent) == ("3", "4")


@pytest.mark.parametrize("ordinal", [0, -1])
def test_ordinals_count_from_one(ordinal: int) -> None:
    with pytest.raises(ChunkConflict) as caught:
        accept_chunk(chunk(ordinal), facts())
    assert caught.value.sent == str(ordinal)


@pytest.mark.parametrize("state", CLOSED_TO_NEW)
def test_a_new_chunk_comes_too_late_once_the_run_is_not_open(state: RunState) -> None:
    with pytest.raises(RunGone) as caught:
        accept_chunk(chunk(), facts(state=state))
    assert (caught.value.run, caught.value.state) == (RUN, state)


def test_a_swept_run_is_gone_also_for_what_it_once_had() -> None:
    with pytest.raises(RunGone) as caught:
        accept_chunk(chunk(), facts(state=RunState.SWEPT, stored=chunk()))
    assert caught.value.state == "SWEPT"


def test_a_chunk_of_an_undeclared_sender_is_refused() -> None:
    with pytest.raises(UsageInvalid) as caught:
        accept_chunk(chunk(), facts(declared=False))
    assert "'s'" in caught.value.what
    assert "'t'" in caught.value.what


def test_a_condemned_blob_is_refused_and_is_to_be_uploaded_again() -> None:
    with pytest.raises(UploadSwept) as caught:
        accept_chunk(chunk(), facts(condemned=True))
    assert (caught.value.table, caught.value.ordinal, caught.value.retryable) == ("t", 1, True)


def test_a_resent_chunk_whose_second_upload_was_condemned_is_still_there() -> None:
    """The bound blob is another one; what was condemned is only the copy."""
    assert accept_chunk(chunk(), facts(stored=chunk(), condemned=True)) is False


@pytest.mark.parametrize(
    ("taken", "what"),
    [(Taken(3, 3, 0, 9), "chunks of one run"), (Taken(0, 3, 9, 9), "bytes kept here")],
)
def test_a_chunk_for_which_its_client_has_no_room_left_is_refused(taken: Taken, what: str) -> None:
    with pytest.raises(QuotaReached) as caught:
        accept_chunk(chunk(), replace(facts(), taken=taken))
    assert caught.value.what == what
    assert accept_chunk(chunk(), replace(facts(stored=chunk()), taken=taken)) is False
    assert accept_chunk(chunk(), replace(facts(), taken=Taken(2, 3, 8, 9))) is True


@pytest.mark.parametrize(("count", "received"), [(0, ()), (3, (1, 2, 3)), (3, (2,)), (3, ())])
def test_an_end_that_fits_is_accepted(count: int, received: tuple[int, ...]) -> None:
    assert accept_end(End("t", "s", count), end_facts(received=received)) is True


@pytest.mark.parametrize("state", BEFORE_SWEPT)
def test_the_same_end_is_acknowledged_again_until_the_run_is_swept(state: RunState) -> None:
    assert accept_end(End("t", "s", 2), end_facts(state=state, announced=2)) is False


@pytest.mark.parametrize("state", BEFORE_SWEPT)
@pytest.mark.parametrize("count", [1, 3])
def test_another_count_is_refused_with_both(count: int, state: RunState) -> None:
    """Neither the greater nor the smaller wins."""
    with pytest.raises(EndConflict) as caught:
        accept_end(End("t", "s", count), end_facts(state=state, announced=2))
    error = caught.value
    assert (error.table, error.sender, error.known, error.sent) == ("t", "s", 2, count)


def test_an_end_below_a_received_ordinal_is_refused() -> None:
    with pytest.raises(EndConflict) as caught:
        accept_end(End("t", "s", 2), end_facts(received=(1, 4)))
    assert (caught.value.known, caught.value.sent) == (4, 2)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(EndConflict) as caught:
        accept_end(End("t", "s", -1), end_facts())
    assert caught.value.sent == -1


@pytest.mark.parametrize("state", CLOSED_TO_NEW)
def test_a_new_end_comes_too_late_once_the_run_is_not_open(state: RunState) -> None:
    with pytest.raises(RunGone) as caught:
        accept_end(End("t", "s", 1), end_facts(state=state))
    assert (caught.value.run, caught.value.state) == (RUN, state)


def test_a_swept_run_is_gone_also_for_its_end() -> None:
    with pytest.raises(RunGone):
        accept_end(End("t", "s", 1), end_facts(state=RunState.SWEPT, announced=1))


def test_an_end_of_an_undeclared_sender_is_refused() -> None:
    with pytest.raises(UsageInvalid):
        accept_end(End("t", "s", 1), end_facts(declared=False))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("chunk"), st.integers(-1, 5), st.sampled_from("ab")),
        st.tuples(st.just("end"), st.integers(-1, 5), st.just("")),
        st.tuples(st.just("state"), st.integers(0, len(RunState) - 1), st.just("")),
    ),
    max_size=25,
)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(steps=STEPS)
def test_no_history_binds_an_identity_twice_or_contradicts_the_announced_count(
    steps: list[tuple[str, int, str]],
) -> None:
    """The model: a dict of bound chunks and one announced count, fed only by accepted steps."""
    state = RunState.OPEN
    bound: dict[int, Chunk] = {}
    announced: int | None = None
    for what, number, checksum in steps:
        try:
            if what == "state":
                state = list(RunState)[number]
            elif what == "chunk":
                sent = chunk(number, checksum)
                known = facts(state=state, announced=announced, stored=bound.get(number))
                if accept_chunk(sent, known):
                    assert number not in bound
                    bound[number] = sent
            elif accept_end(
                End("t", "s", number),
                end_facts(state=state, announced=announced, received=tuple(bound)),
            ):
                assert announced is None
                announced = number
        except CallerError:
            continue
        assert all(ordinal >= 1 for ordinal in bound)
        assert announced is None or (announced >= 0 and all(o <= announced for o in bound))
