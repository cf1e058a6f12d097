"""What workers tell a coordinator, as payloads of chunks. Format: canonical JSON, version 1.

    {"received":["q3","filter-0",7],"version":1}         this chunk is applied here
    {"sent":[["sum-0","q3",12],["sum-1","q3",0]],"version":1}   I sent as many, and send no more

Reports are chunks like any other: numbered, committed, never counted twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from holdfast.errors import Damaged, StoreNewer
from holdfast.worker.books import Source
from holdfast.worker.messages import Chunk, ChunkId
from holdfast.worker.roles import Output

TABLE_TYPE = "reports"
VERSION = 1

Received = tuple[Source, int]
"""Table type and sender of a chunk, and its ordinal."""


def received_report(chunk_id: ChunkId) -> bytes:
    """Return the report that a chunk is applied."""
    return _encoded({"received": [chunk_id.table_type, chunk_id.sender, chunk_id.ordinal]})


def sent_report(totals: Mapping[Output, int]) -> bytes:
    """Return the report of how many chunks went to each output, when no more will."""
    return _encoded({"sent": [[*output, total] for output, total in sorted(totals.items())]})


def _encoded(fields: dict[str, Any]) -> bytes:
    fields["version"] = VERSION
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")


def read_report(chunk: Chunk) -> Received | dict[Output, int]:
    """Return what a report says.

    Raises:
        StoreNewer: a newer Holdfast wrote it.
        Damaged: it is no report.
    """
    where = f"a report of {chunk.sender}"
    try:
        fields = json.loads(chunk.payload)
        version = fields.pop("version")
        if version == VERSION and fields.keys() == {"received"}:
            table_type, sender, ordinal = fields["received"]
            return (str(table_type), str(sender)), int(ordinal)
        if version == VERSION and fields.keys() == {"sent"}:
            return {Output(str(to), str(table)): int(n) for to, table, n in fields["sent"]}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(path=where, what=f"it cannot be read: {error}") from error
    if isinstance(version, int) and version > VERSION:
        raise StoreNewer(path=where, found=version, known=VERSION)
    raise Damaged(path=where, what="it says neither what was received nor what was sent")
