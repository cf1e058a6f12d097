"""Frames: a torn end is cut off, damage in the middle is an error, and nothing is ever skipped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast._base.frames import (
    HEADER_BYTES,
    MAGIC,
    PAYLOAD_BYTES_MAX,
    VERSION,
    Frame,
    Scan,
    encode,
    scan,
)
from holdfast.errors import Damaged, UsageInvalid

FRAMES = (Frame(1, 0, b"first"), Frame(2, 1, b""), Frame(250, 2, b"the last one"))
BYTES = [encode(frame) for frame in FRAMES]
WHOLE = b"".join(BYTES)
LAST = len(BYTES[0]) + len(BYTES[1])


def found(data: bytes) -> Scan:
    return scan(data, path="f")


def test_the_format_never_changes() -> None:
    """Files that were written long ago hold these bytes: see docs/internals/frames.md."""
    assert (
        BYTES[0].hex()
        == "f5480101" + "00" * 8 + "05000000" + BYTES[0][16:20].hex() + b"first".hex()
    )
    assert HEADER_BYTES == 20
    assert (MAGIC, VERSION) == (b"\xf5H", 1)


def test_what_was_written_is_read() -> None:
    assert found(WHOLE) == Scan(FRAMES, len(WHOLE))
    assert found(b"") == Scan((), 0)
    assert scan(BYTES[2], path="f", first_sequence=2) == Scan(FRAMES[2:], len(BYTES[2]))


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=50)), max_size=6))
def test_any_frames_are_read(contents: list[tuple[int, bytes]]) -> None:
    frames = tuple(Frame(kind, number, data) for number, (kind, data) in enumerate(contents))
    data = b"".join(encode(frame) for frame in frames)
    assert found(data) == Scan(frames, len(data))


@pytest.mark.parametrize("cut", range(len(BYTES[2])))
def test_the_last_record_cut_at_every_byte_is_a_torn_tail(cut: int) -> None:
    assert found(WHOLE[: LAST + cut]) == Scan(FRAMES[:2], LAST)


@pytest.mark.parametrize("byte", range(len(WHOLE)))
def test_every_flipped_bit_is_found(byte: int) -> None:
    """In the last record it is a torn tail; before that it raises. Never another record."""
    for bit in range(8):
        data = bytearray(WHOLE)
        data[byte] ^= 1 << bit
        if byte >= LAST:
            assert found(bytes(data)) == Scan(FRAMES[:2], LAST)
        else:
            with pytest.raises(Damaged) as caught:
                found(bytes(data))
            assert caught.value.path == "f"


@pytest.mark.parametrize("start", [n for n in range(LAST - 7) if any(WHOLE[n : n + 7])])
def test_a_hole_in_the_middle_raises(start: int) -> None:
    """Zeros, as a file system leaves for pages that never reached the disk."""
    stop = start + 7
    data = WHOLE[:start] + bytes(stop - start) + WHOLE[stop:]
    with pytest.raises(Damaged):
        found(data)


@pytest.mark.parametrize("garbage", [b"\x00" * 64, MAGIC, MAGIC * 20, b"\xf5", WHOLE[:10]])
def test_garbage_behind_the_last_record_is_a_torn_tail(garbage: bytes) -> None:
    assert found(WHOLE + garbage) == Scan(FRAMES, len(WHOLE))


@pytest.mark.parametrize(
    "order", [(1,), (0, 2), (0, 0, 1), (1, 0, 2), (0, 1, 2, 1), (2, 1, 0)], ids=str
)
def test_missing_repeated_and_moved_records_raise(order: tuple[int, ...]) -> None:
    with pytest.raises(Damaged):
        found(b"".join(BYTES[number] for number in order))


def test_a_length_cannot_ask_for_more_memory_than_the_limit() -> None:
    huge = bytearray(BYTES[0])
    huge[12:16] = (0xFFFFFFFF).to_bytes(4, "little")
    assert found(bytes(huge)) == Scan((), 0)


def test_too_large_a_record_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast._base.frames.PAYLOAD_BYTES_MAX", 4)
    assert encode(Frame(1, 0, b"four"))
    with pytest.raises(UsageInvalid):
        encode(Frame(1, 0, b"fives"))
    assert PAYLOAD_BYTES_MAX == 64 << 20
