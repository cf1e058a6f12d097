"""Who is taken for dead, and what may be said of a ledger's URL."""

from __future__ import annotations

import pytest

from holdfast.errors import UsageInvalid
from holdfast.ledger.opening import check_url
from holdfast.ledger.postgres.address import address_of, is_address
from holdfast.ledger.postgres.watch import Watch


def looks(watch: Watch, *moments: tuple[float, int]) -> list[bool]:
    return [watch.is_dead(7, beat, at_s) for at_s, beat in moments]


def test_silence_is_death_only_after_the_whole_time() -> None:
    watch = Watch(10.0)
    assert looks(watch, *((float(s), 5) for s in range(10))) == [False] * 10
    assert looks(watch, (10.0, 5)) == [True]


def test_a_beat_is_life() -> None:
    watch = Watch(10.0)
    looks(watch, *((float(s), 5) for s in range(10)))
    assert looks(watch, (10.0, 6), (19.9, 6)) == [False, False]


def test_a_gap_between_looks_convicts_nobody() -> None:
    """The server was away for an hour, or the watcher stood still: the owner was not watched."""
    watch = Watch(10.0)
    assert looks(watch, (0.0, 5), (3600.0, 5), (7200.0, 5)) == [False, False, False]
    assert looks(watch, *((7200.0 + s, 5) for s in range(1, 9))) == [False] * 7 + [True]


def test_owners_are_watched_apart_and_forgotten() -> None:
    watch = Watch(1.0)
    assert not any(watch.is_dead(1, 0, n / 10) for n in range(10))
    assert not watch.is_dead(2, 0, 1.0)
    watch.forget([1])
    assert not watch.is_dead(1, 0, 2.0)


CANARY = "canary314"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{CANARY}@x@h/d",
        f"postgresql://u:x@{CANARY}@h/d",
        f"postgresql://u:1/{CANARY}@h/d",
        f"postgresql://u:{CANARY}/x@h/d",
        f"postgresql://u:1?{CANARY}@h/d",
        f"postgresql://u:{CANARY}#x@h/d",
        f"postgresql://u:p@h/d#{CANARY}",
        f"postgresql://u:p@[{CANARY}/d",
        f"postgresql+x://u:{CANARY}@h/d",
        f"mysql://u:{CANARY}@h/d",
    ],
)
def test_an_unreadable_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageInvalid) as caught:
        check_url(url)
    assert CANARY not in str(caught.value)


def test_a_label_has_no_secret() -> None:
    for url in (
        f"postgresql://u:{CANARY}@h:5433/d?sslmode=require",
        f"postgres://u@h:5433/d?password={CANARY}",
    ):
        assert is_address(url)
        address = address_of(url)
        assert address.label == "postgresql://u@h:5433/d"
        assert CANARY not in repr(address)
        assert address.safe(f"a\n  line with {CANARY}.") == "a line with ***"
    assert address_of("postgresql://u:a%40b@h/d").safe("a@b") == "***"
    assert not is_address("file:///postgresql")
