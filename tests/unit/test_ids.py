"""Names of replayable things: equal for equal things, different for different ones."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast._base.ids import digest, fresh_token

PARTS = st.lists(st.text() | st.integers() | st.binary(), max_size=4)


def test_a_name_never_changes() -> None:
    """Names stand in stores that were written long ago: this value is part of the format."""
    assert digest("run", 1, b"x") == "a15f9db024c8763ea7d7d4a47d0d9575"
    assert digest() == "cae66941d9efbd404e4d88758ea67670"


def test_joints_and_types_matter() -> None:
    names = {digest(*parts) for parts in ((), ("",), ("", ""), ("ab", "c"), ("a", "bc"), ("abc",))}
    assert len(names) == 6
    assert len({digest("1"), digest(1), digest(b"1")}) == 3


@given(PARTS, PARTS)
def test_equal_names_mean_equal_parts(
    first: list[str | int | bytes], second: list[str | int | bytes]
) -> None:
    same = [(type(part), part) for part in first] == [(type(part), part) for part in second]
    assert (digest(*first) == digest(*second)) is same


def test_fresh_tokens_differ() -> None:
    assert len({fresh_token() for _ in range(100)}) == 100
