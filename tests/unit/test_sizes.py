from __future__ import annotations

import pytest

from holdfast.cli.sizes import exact_size, parse_size
from holdfast.cli.words import size_of


def test_a_size_that_was_shown_can_be_given() -> None:
    for size in (1000, 12_300, 4_500_000, 3_300_000_000):
        assert parse_size(size_of(size)) == size


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0"),
        (1023, "1023"),
        (1024, "1KiB"),
        (64 << 20, "64MiB"),
        (4000, "4000"),
        (3 << 30, "3GiB"),
    ],
)
def test_an_exact_size_can_be_given(size: int, text: str) -> None:
    assert exact_size(size) == text
    assert parse_size(text) == size
