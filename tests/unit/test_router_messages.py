"""What clients send over queues: versioned, strict, named; and how shards are told."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast._base import frames
from holdfast._base.frames import Frame
from holdfast._base.ids import Ordinal, RunId
from holdfast.errors import Damaged, HoldfastError, StoreNewer, UsageInvalid
from holdfast.router.held import Stream
from holdfast.router.messages import (
    KIND_CHUNK,
    KIND_END,
    NUMBER_MAX,
    ClientChunk,
    ClientEnd,
    ClientMessage,
    decode,
    encode,
)
from holdfast.router.shards import chunk_for, end_for, own_count, place_of
from holdfast.worker.messages import Chunk, End

GOLDEN = Path(__file__).parents[1] / "golden" / "router-v1" / "messages.txt"


def chunk(
    run: str, table: str, sender: str, ordinal: int, format_name: str, payload: bytes
) -> ClientChunk:
    checksum = sha256(payload).hexdigest()
    return ClientChunk(RunId(run), table, sender, Ordinal(ordinal), format_name, checksum, payload)


SAMPLES: list[ClientMessage] = [
    chunk("0a1b", "sales", "north", 1, "csv", b"shop,amount\na,1\n"),
    chunk("r", "", "", NUMBER_MAX, "json", b""),
    chunk("R_-9", "\u00e9", "s", 7, "parquet", bytes(range(256))),
    ClientEnd(RunId("0a1b"), "sales", "north", 0),
    ClientEnd(RunId("0a1b"), "sales", "\u00e9", 12),
]
RUN = st.from_regex(r"\A[A-Za-z0-9_-]{1,64}\Z")
TEXT = st.text(max_size=20)
MESSAGES: st.SearchStrategy[ClientMessage] = st.one_of(
    st.builds(
        chunk,
        RUN,
        TEXT,
        TEXT,
        st.integers(1, NUMBER_MAX),
        st.sampled_from(["csv", "json", "parquet"]),
        st.binary(max_size=200),
    ),
    st.builds(ClientEnd, RUN.map(RunId), TEXT, TEXT, st.integers(0, NUMBER_MAX)),
)


def test_the_format_and_the_names_never_change() -> None:
    """Queues hold these bytes, and other people's clients make them. Never made again."""
    lines = [f"{one.message_id} {encode(one).hex()}" for one in SAMPLES]
    assert lines == GOLDEN.read_text(encoding="ascii").splitlines()


@given(MESSAGES)
def test_what_was_sent_is_read(message: ClientMessage) -> None:
    assert decode(encode(message)) == message


@given(MESSAGES, st.data())
def test_a_flipped_bit_is_found(message: ClientMessage, data: st.DataObject) -> None:
    raw = bytearray(encode(message))
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(HoldfastError):
        decode(bytes(raw))


@given(st.binary(max_size=100))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    for raw in (data, *(frames.encode(Frame(kind, 0, data)) for kind in (0, 1, 2, 3))):
        try:
            assert encode(decode(raw)) == raw
        except (Damaged, StoreNewer):
            continue


def test_a_newer_version_is_named_and_a_cut_one_refused() -> None:
    body = frames.scan(encode(SAMPLES[3]), path="x").frames[0].payload
    with pytest.raises(StoreNewer):
        decode(frames.encode(Frame(KIND_END, 0, b"\x02" + body[1:])))
    for stop in range(len(body)):
        with pytest.raises(Damaged):
            decode(frames.encode(Frame(KIND_END, 0, body[:stop])))
    with pytest.raises(Damaged):
        decode(frames.encode(Frame(KIND_END, 0, body + b"x")))
    with pytest.raises(Damaged):
        decode(frames.encode(Frame(KIND_CHUNK, 0, body)))


@pytest.mark.parametrize("run", ["", "a/b", "..", "x" * 65, "a b"])
def test_a_run_that_is_no_name_is_refused_before_anyone_looks_for_it(run: str) -> None:
    with pytest.raises(Damaged):
        decode(encode(ClientEnd(RunId(run), "t", "", 1)))


def test_what_cannot_be_sent_is_refused_by_name() -> None:
    with pytest.raises(UsageInvalid):
        encode(chunk("r", "t", "", 0, "csv", b""))
    with pytest.raises(UsageInvalid):
        encode(chunk("r", "t", "", 1, "xml", b""))
    with pytest.raises(UsageInvalid):
        encode(ClientEnd(RunId("r"), "t", "", -1))
    with pytest.raises(UsageInvalid):
        encode(ClientEnd(RunId("r"), "t" * 70_000, "", 1))


@given(st.integers(0, 300), st.integers(1, 7))
def test_every_shard_can_count_its_own_chunks(count: int, shards: int) -> None:
    """Numbered from 1 without gaps, and the END of each shard says exactly how many."""
    found: dict[int, list[int]] = {shard: [] for shard in range(shards)}
    for ordinal in range(1, count + 1):
        shard, own = place_of(ordinal, shards)
        found[shard].append(own)
    for shard, own_ordinals in found.items():
        assert own_ordinals == list(range(1, own_count(count, shard, shards) + 1))


def test_a_shard_gets_workers_messages_whose_client_is_the_run() -> None:
    sent = chunk("0a1b", "sales", "north", 5, "csv", b"x")
    assert chunk_for(sent, 2) == (0, Chunk("0a1b", "sales", "north", 3, b"x"))
    stream = Stream("ada", "0a1b", "sales", "north")
    assert [end_for(stream, 1, shard, 2) for shard in (0, 1)] == [
        End("0a1b", "sales", 1, "north"),
        End("0a1b", "sales", 0, "north"),
    ]
