"""QueueMessage as bytes. Format: canonical JSON, version 1; docs/internals/messages.md.

A message is a reference: it says where data is. It is small, and it is read strictly: an unknown
version, a missing field or one too many is refused, never guessed at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from holdfast._base.ids import digest
from holdfast.errors import Damaged, StoreNewer, UsageInvalid
from holdfast.log.contract import QueueMessage, Record

VERSION = 1
MESSAGE_BYTES_MAX = 64 << 10
"""64 KiB. Larger: somebody put data where a reference belongs, and every hop would carry it."""

_TEXTS = ("message_id", "split_id", "data_ref")
_FIELDS = {"version", "metadata", *_TEXTS}


def message_about(
    *, split_id: str, data_ref: str, metadata: Mapping[str, str] | None = None
) -> QueueMessage:
    """Return a message named by a hash of what it says: said again, it has the same name."""
    facts = dict(metadata or {})
    parts = [part for item in sorted(facts.items()) for part in item]
    return QueueMessage(digest("message", split_id, data_ref, *parts), split_id, data_ref, facts)


def encode_message(message: QueueMessage) -> bytes:
    """Return the bytes of a message.

    Raises:
        UsageInvalid: it is larger than a reference may be.
    """
    fields: dict[str, Any] = {
        "version": VERSION,
        "message_id": message.message_id,
        "split_id": message.split_id,
        "data_ref": message.data_ref,
        "metadata": dict(message.metadata),
    }
    data = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")
    if len(data) > MESSAGE_BYTES_MAX:
        raise UsageInvalid(
            what=f"message {message.message_id} has {len(data)} bytes, over {MESSAGE_BYTES_MAX}",
            remedy="Put the data into a blob and send its name.",
        )
    return data


def decode_message(data: bytes) -> QueueMessage:
    """Return the message in `data`.

    Raises:
        StoreNewer: a newer Holdfast wrote it.
        Damaged: it is no message.
    """
    if len(data) > MESSAGE_BYTES_MAX:
        raise _unreadable(f"{len(data)} bytes are over {MESSAGE_BYTES_MAX}")
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _unreadable(str(error)) from error
    if not isinstance(fields, dict):
        raise _unreadable("it is no object")
    version = fields.get("version")
    if type(version) is int and version > VERSION:
        raise StoreNewer(path="a message", found=version, known=VERSION)
    if type(version) is not int or version != VERSION or fields.keys() != _FIELDS:
        raise _unreadable(f"version {version!r} with fields {', '.join(sorted(fields))}")
    metadata = fields["metadata"]
    message_id, split_id, data_ref = (fields[name] for name in _TEXTS)
    if not isinstance(metadata, dict):
        raise _unreadable("its metadata is no object")
    if not all(
        isinstance(text, str) for text in (message_id, split_id, data_ref, *metadata.values())
    ):
        raise _unreadable("a field is no text")
    return QueueMessage(message_id, split_id, data_ref, metadata)


def record_of(message: QueueMessage) -> Record:
    """Return the record that carries a message; the message's id makes a second one idle."""
    return Record(encode_message(message), record_id=message.message_id)


def _unreadable(what: str) -> Damaged:
    return Damaged(path="a message", what=f"it cannot be read: {what}")
