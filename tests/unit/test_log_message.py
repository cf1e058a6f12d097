"""Messages: small, canonical, read strictly."""

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Damaged, StoreNewer, UsageInvalid
from holdfast.log.contract import QueueMessage, Record
from holdfast.log.message import (
    MESSAGE_BYTES_MAX,
    decode_message,
    encode_message,
    message_about,
    record_of,
)

MESSAGE = QueueMessage("m1", "s1", "blob/x", {"b": "2", "a": "\u00e9"})
TEXT = st.text(max_size=20)


def test_the_format_never_changes() -> None:
    """Queues hold these bytes: see docs/internals/messages.md."""
    assert encode_message(MESSAGE) == (
        b'{"data_ref":"blob/x","message_id":"m1","metadata":{"a":"\\u00e9","b":"2"},'
        b'"split_id":"s1","version":1}'
    )


@given(TEXT, TEXT, TEXT, st.dictionaries(TEXT, TEXT, max_size=4))
def test_what_was_sent_is_read(
    message_id: str, split_id: str, data_ref: str, metadata: dict[str, str]
) -> None:
    message = QueueMessage(message_id, split_id, data_ref, metadata)
    data = encode_message(message)
    assert decode_message(data) == message
    turned = dict(reversed(metadata.items()))
    assert encode_message(QueueMessage(message_id, split_id, data_ref, turned)) == data


def test_the_name_says_what_the_message_says() -> None:
    first = message_about(split_id="1", data_ref="a", metadata={"x": "1", "y": "2"})
    assert first == message_about(split_id="1", data_ref="a", metadata={"y": "2", "x": "1"})
    others = [
        message_about(split_id="2", data_ref="a", metadata={"x": "1", "y": "2"}),
        message_about(split_id="1", data_ref="a", metadata={"x": "1", "y": "3"}),
        message_about(split_id="1", data_ref="a"),
    ]
    assert len({message.message_id for message in (first, *others)}) == 4
    assert record_of(first) == Record(encode_message(first), record_id=first.message_id)


def test_data_is_refused_where_a_reference_belongs() -> None:
    room = MESSAGE_BYTES_MAX - len(encode_message(QueueMessage("m", "s", "")))
    assert len(encode_message(QueueMessage("m", "s", "x" * room))) == MESSAGE_BYTES_MAX
    with pytest.raises(UsageInvalid):
        encode_message(QueueMessage("m", "s", "x" * (room + 1)))
    with pytest.raises(Damaged):
        decode_message(b" " * (MESSAGE_BYTES_MAX + 1))


def test_a_newer_version_is_refused_by_name() -> None:
    with pytest.raises(StoreNewer) as caught:
        decode_message(b'{"version": 2, "anything": 1}')
    assert (caught.value.found, caught.value.known) == (2, 1)


def changed(**fields: Any) -> bytes:
    known = json.loads(encode_message(MESSAGE))
    known.update(fields)
    return json.dumps({k: v for k, v in known.items() if v is not None}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff\xfe",
        b"[" * 60_000,
        pickle.dumps(MESSAGE),
        changed(version=None),
        changed(version=0),
        changed(version="1"),
        changed(version=True),
        changed(version=1.0, extra="x"),
        changed(data_ref=None),
        changed(data_ref=5),
        changed(extra="x"),
        changed(metadata=[]),
        changed(metadata={"a": 1}),
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(Damaged):
        decode_message(data)
