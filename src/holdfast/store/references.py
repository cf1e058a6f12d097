"""References to chunks, as they travel on a run's ingress topics: a reference, never the data.

Format: canonical JSON, version 1 (docs/internals/messages.md). The record's id is a hash of the
chunk's identity, so a relay that sends it twice is found out. The chunk's row in the store is
the binding; a reference only says that it is there.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from holdfast._base.ids import Ordinal, RunId, digest
from holdfast.errors import Damaged, StoreNewer
from holdfast.log.contract import Record
from holdfast.store.rows import Chunk, ChunkKind

VERSION = 1


def reference_to(run_id: RunId, chunk: Chunk) -> Record:
    """Return the record that says that `chunk` of a run is bound."""
    fields: dict[str, Any] = {**asdict(chunk), "version": VERSION}
    value = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    name = digest("chunk", run_id, chunk.table, chunk.sender, chunk.ordinal)
    return Record(value.encode("ascii"), record_id=name)


def chunk_of(record: Record) -> Chunk:
    """Return the chunk a reference speaks of.

    Raises:
        StoreNewer: a newer Holdfast wrote it.
        Damaged: it is no reference.
    """
    try:
        fields: dict[str, Any] = json.loads(record.value)
        version = fields.pop("version")
        if type(version) is int and version > VERSION:
            raise StoreNewer(path="a chunk reference", found=version, known=VERSION)
        if version != VERSION:
            raise ValueError(f"version {version!r}")
        kind, ordinal = ChunkKind(fields.pop("kind")), Ordinal(fields.pop("ordinal"))
        return Chunk(kind=kind, ordinal=ordinal, **fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(path="a chunk reference", what=f"it cannot be read ({error})") from error
