"""Worker messages: versioned, strict, named by what they identify."""

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast._base import frames
from holdfast._base.frames import Frame
from holdfast.errors import Damaged, HoldfastError, StoreNewer, UsageInvalid
from holdfast.worker.messages import (
    KIND_CHUNK,
    NUMBER_MAX,
    Chunk,
    ChunkId,
    End,
    Message,
    QueryEnd,
    decode,
    encode,
    encode_body,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "worker-v1" / "messages.txt"
SAMPLES: list[Message] = [
    Chunk("ada", "sales", "north", 1, b"a,b\n1,2\n"),
    Chunk("", "", "", NUMBER_MAX, b""),
    Chunk("\u00e9", "t", "s", 7, bytes(range(256))),
    End("ada", "sales", 0, "north"),
    End("ada", "sales", 12, "\u00e9"),
    QueryEnd("ada", "q1", "sum-2"),
]

TEXT = st.text(max_size=20)
MESSAGES = st.one_of(
    st.builds(Chunk, TEXT, TEXT, TEXT, st.integers(1, NUMBER_MAX), st.binary(max_size=200)),
    st.builds(End, TEXT, TEXT, st.integers(0, NUMBER_MAX), TEXT),
    st.builds(QueryEnd, TEXT, TEXT, TEXT),
)


def test_the_format_and_the_names_never_change() -> None:
    """Queues and journals hold these bytes. The file is never made again."""
    lines = [f"{one.message_id} {encode(one).hex()}" for one in SAMPLES]
    assert lines == GOLDEN.read_text(encoding="ascii").splitlines()


@given(MESSAGES)
def test_what_was_sent_is_read(message: Message) -> None:
    assert decode(encode(message)) == message


@given(MESSAGES, MESSAGES)
def test_a_name_belongs_to_one_thing(one: Message, other: Message) -> None:
    def identity(message: Message) -> object:
        return message.id if isinstance(message, Chunk) else message

    assert (one.message_id == other.message_id) == (identity(one) == identity(other))


def test_a_chunk_is_named_by_its_identity_never_its_content() -> None:
    one, other = Chunk("c", "t", "s", 1, b"x"), Chunk("c", "t", "s", 1, b"y")
    assert one.id == ChunkId("c", "t", "s", 1)
    assert one.message_id == other.message_id


def test_an_end_with_another_count_has_another_name() -> None:
    """A log drops a known name: the contradiction would never arrive."""
    assert End("c", "t", 1, "s").message_id != End("c", "t", 2, "s").message_id


@given(MESSAGES, st.data())
def test_a_flipped_bit_is_found(message: Message, data: st.DataObject) -> None:
    raw = bytearray(encode(message))
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(HoldfastError):
        decode(bytes(raw))


@given(st.integers(0, 255), st.binary(max_size=60))
def test_any_body_is_read_or_refused_by_name(kind: int, body: bytes) -> None:
    """With a good checksum: what a wrong or hostile program sends."""
    try:
        message = decode(frames.encode(Frame(kind, 0, body)))
    except (Damaged, StoreNewer):
        return
    assert encode_body(message) == (kind, body)


def test_other_things_are_refused() -> None:
    good = encode(SAMPLES[0])
    kind, body = encode_body(End("c", "t", 1, "s"))
    refused = [b"", good[:-1], good + b"x", good + good, pickle.dumps(SAMPLES[0])]
    refused.append(frames.encode(Frame(kind, 0, body + b"x")))
    refused.append(frames.encode(Frame(KIND_CHUNK, 0, body[:-1])))
    for data in refused:
        with pytest.raises(Damaged):
            decode(data)
    with pytest.raises(StoreNewer) as newer:
        decode(frames.encode(Frame(kind, 0, b"\x02" + body[1:])))
    assert (newer.value.found, newer.value.known) == (2, 1)


@pytest.mark.parametrize(
    "message",
    [
        Chunk("c", "t", "s", 0, b""),
        Chunk("c", "t", "s", NUMBER_MAX + 1, b""),
        End("c", "t", -1, "s"),
        QueryEnd("c" * 65_536, "q", "s"),
    ],
)
def test_what_cannot_be_written_is_refused(message: Message) -> None:
    with pytest.raises(UsageInvalid):
        encode(message)
