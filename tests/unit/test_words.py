from __future__ import annotations

import pytest

from holdfast.cli.words import counted, size_of


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 chunks"), (1, "1 chunk"), (2, "2 chunks"), (1234, "1,234 chunks")]
)
def test_a_noun_agrees_with_its_number(number: int, text: str) -> None:
    assert counted(number, "chunk") == text


def test_an_irregular_plural_is_given() -> None:
    assert [counted(n, "batch", "batches") for n in (1, 3)] == ["1 batch", "3 batches"]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (12_345, "12.3 kB"),
        (5_200_000, "5.2 MB"),
        (3_300_000_000, "3.3 GB"),
    ],
)
def test_a_size_is_short(size: int, text: str) -> None:
    assert size_of(size) == text
