from __future__ import annotations

import pytest

from holdfast.cli.words import counted, exact_size, parse_size, size_of


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 chunks"), (1, "1 chunk"), (2, "2 chunks"), (1234, "1,234 chunks")]
)
def test_a_noun_agrees_with_its_number(number: int, text: str) -> None:
    assert counted(number, "chunk") == text


def test_an_irregular_plural_is_given() -> None:
    assert [counted(n, "batch", "batches") for n in (1, 3)] == ["1 batch", "3 batches"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.0 KB"),
        (12_345, "12.3 KB"),
        (999_949, "999.9 KB"),
        (999_950, "1.0 MB"),
        (3_300_000_000, "3.3 GB"),
        (5 * 10**15, "5,000.0 TB"),
    ],
)
def test_a_size_is_short(count: int, text: str) -> None:
    assert size_of(count) == text


def test_a_size_that_was_shown_can_be_given() -> None:
    for count in (1000, 12_300, 4_500_000):
        assert parse_size(size_of(count)) == count


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (1023, "1023"),
        (1024, "1KiB"),
        (64 << 20, "64MiB"),
        (4000, "4000"),
        (3 << 30, "3GiB"),
    ],
)
def test_an_exact_size_can_be_given(count: int, text: str) -> None:
    assert exact_size(count) == text
    assert parse_size(text) == count
