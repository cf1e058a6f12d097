"""What external producers and delivery say to each other: whole, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.delivery_scene import framed

from holdfast._base.ids import RunId
from holdfast.delivery.messages import (
    DATA_BYTES_MAX,
    KIND_HEADER,
    KIND_PAYLOAD,
    KIND_REQUEST,
    Header,
    Message,
    Payload,
    Request,
    decode,
    encode,
    payload_of,
)
from holdfast.errors import Damaged, HoldfastError, StoreNewer, UsageInvalid
from holdfast.store.result_rows import SeriesDecl

RUN = RunId("r1")
GOLDEN = Path(__file__).parents[1] / "golden" / "producer-messages.json"
MESSAGES: dict[str, Message] = {
    "request": Request(RUN, "acme", "results/r1/header", "results/r1/payload"),
    "header": Header(RUN, (SeriesDecl("q1", ("a", "b")), SeriesDecl("q2", (), "parquet"))),
    "no series": Header(RUN, ()),
    "data": payload_of(RUN, "q1", 2, 3, b"1,x\n2,y\n"),
    "reference": Payload(RUN, "q2", 1, 1, "ab" * 32, reference="external/r1/x"),
    "empty series": payload_of(RUN, "q1", 0, 0, b""),
}
"""The golden file was written by version 1 of the format and is never made again."""


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_is_read_as_it_was_said(name: str) -> None:
    message = MESSAGES[name]
    assert decode(encode(message)) == message


def test_bytes_of_version_1_are_read_and_written_for_ever() -> None:
    golden = {name: bytes.fromhex(text) for name, text in json.loads(GOLDEN.read_text()).items()}
    assert set(golden) == set(MESSAGES)
    for name, data in golden.items():
        assert decode(data) == MESSAGES[name]
        assert encode(MESSAGES[name]) == data


@pytest.mark.parametrize("name", MESSAGES)
def test_no_flipped_or_missing_byte_goes_unnoticed(name: str) -> None:
    data = encode(MESSAGES[name])
    for place in range(len(data)):
        with pytest.raises(HoldfastError):
            decode(data[:place])
        flipped = data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]
        with pytest.raises(HoldfastError):
            decode(flipped)
    with pytest.raises(Damaged):
        decode(data + b"x")
    with pytest.raises(Damaged):
        decode(data + data)


PAYLOAD = {
    "run": "r1",
    "series": "q",
    "ordinal": 1,
    "total": 1,
    "checksum": "c",
    "reference": "",
}
SERIES = {"series": "q", "columns": ["a"], "format": "csv"}
HEADER = {"run": "r1", "series": [SERIES]}


@pytest.mark.parametrize(
    ("kind", "head", "data"),
    [
        (KIND_PAYLOAD, [], b"x"),
        (KIND_PAYLOAD, {**PAYLOAD, "extra": 1}, b"x"),
        (KIND_PAYLOAD, {name: PAYLOAD[name] for name in list(PAYLOAD)[1:]}, b"x"),
        (KIND_PAYLOAD, {**PAYLOAD, "ordinal": "1"}, b"x"),
        (KIND_PAYLOAD, {**PAYLOAD, "ordinal": True}, b"x"),
        (KIND_PAYLOAD, {**PAYLOAD, "ordinal": 0}, b"x"),
        (KIND_PAYLOAD, {**PAYLOAD, "ordinal": 0, "total": 0}, b"x"),
        (KIND_PAYLOAD, {**PAYLOAD, "ordinal": 2}, b"x"),
        (KIND_PAYLOAD, {**PAYLOAD, "ordinal": -1}, b"x"),
        (KIND_PAYLOAD, {**PAYLOAD, "total": 1 << 63, "ordinal": 1}, b"x"),
        (KIND_PAYLOAD, {**PAYLOAD, "reference": "b"}, b"x"),
        (KIND_PAYLOAD, {**PAYLOAD, "run": 7}, b"x"),
        (KIND_PAYLOAD, {**PAYLOAD, "series": "daily.totals"}, b"x"),
        (KIND_PAYLOAD, {**PAYLOAD, "checksum": "\ud800"}, b"x"),
        (KIND_HEADER, {"run": "r1", "series": [{**SERIES, "series": ""}]}, b""),
        (KIND_HEADER, {"run": "r1", "series": [{**SERIES, "columns": ["\ud800"]}]}, b""),
        (KIND_HEADER, {**HEADER, "series": "q"}, b""),
        (KIND_HEADER, {**HEADER, "series": ["q"]}, b""),
        (KIND_HEADER, {**HEADER, "series": [{**SERIES, "columns": [1]}]}, b""),
        (KIND_HEADER, {**HEADER, "series": [{**SERIES, "format": "text/csv"}]}, b""),
        (KIND_HEADER, {**HEADER, "series": [{**SERIES, "format": "CSV"}]}, b""),
        (KIND_HEADER, HEADER, b"data"),
        (KIND_REQUEST, {"run": "r1"}, b""),
        (9, PAYLOAD, b"x"),
    ],
)
def test_what_does_not_fit_its_schema_is_damage(kind: int, head: object, data: bytes) -> None:
    with pytest.raises(Damaged):
        decode(framed(kind, head, data))


def test_the_samples_fit_but_for_their_fault() -> None:
    """The cases above fail for the fault they name, not for something else."""
    assert isinstance(decode(framed(KIND_PAYLOAD, PAYLOAD, b"x")), Payload)
    assert isinstance(decode(framed(KIND_HEADER, HEADER)), Header)


def test_a_newer_version_is_named() -> None:
    with pytest.raises(StoreNewer) as caught:
        decode(framed(KIND_PAYLOAD, PAYLOAD, b"x", version=2))
    assert (caught.value.found, caught.value.known) == (2, 1)
    with pytest.raises(Damaged):
        decode(framed(KIND_PAYLOAD, PAYLOAD, b"x", version=0))


def test_ids_depend_on_what_is_said() -> None:
    """The same again has the same id; another count, checksum or list of series has another."""
    piece = payload_of(RUN, "q", 1, 2, b"x")
    others: list[Message] = [
        payload_of(RUN, "q", 1, 2, b"y"),
        payload_of(RUN, "q", 1, 3, b"x"),
        payload_of(RUN, "q", 2, 2, b"x"),
        payload_of(RUN, "p", 1, 2, b"x"),
        payload_of(RunId("r2"), "q", 1, 2, b"x"),
        Header(RUN, ()),
        Header(RUN, (SeriesDecl("q"),)),
        Header(RUN, (SeriesDecl("q", ("a",)),)),
        MESSAGES["request"],
    ]
    ids = [one.message_id for one in (piece, *others)]
    assert len(set(ids)) == len(ids)
    assert payload_of(RUN, "q", 1, 2, b"x").message_id == piece.message_id


def test_what_is_too_large_for_a_message_is_refused_before_it_travels() -> None:
    payload_ok = payload_of(RUN, "q", 1, 1, b"x" * DATA_BYTES_MAX)
    assert decode(encode(payload_ok)) == payload_ok
    with pytest.raises(UsageInvalid):
        encode(payload_of(RUN, "q", 1, 1, b"x" * (DATA_BYTES_MAX + 1)))
    with pytest.raises(UsageInvalid):
        encode(Header(RUN, tuple(SeriesDecl("n" * 1000) for _ in range(2000))))
    with pytest.raises(UsageInvalid):
        encode(payload_of(RUN, "q", 3, 2, b"x"))


def test_a_producer_hears_of_what_nobody_could_fetch_before_it_sends() -> None:
    messages: tuple[Message, ...] = (
        payload_of(RUN, "daily.totals", 1, 1, b"x"),
        Header(RUN, (SeriesDecl("a b"),)),
        Header(RUN, (SeriesDecl("a", (), "text/csv"),)),
    )
    for message in messages:
        with pytest.raises(UsageInvalid):
            encode(message)
