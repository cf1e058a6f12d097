"""What is known of a settled file apart from the file: where its row groups are, and checksums.

It is kept in SQLite as JSON. Format: docs/internals/ledger.md#parquet.
"""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """One row group: where its bytes begin, their checksum, its rows and its first hash."""

    offset: int
    crc: int
    rows: int
    first: bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """What is known of a settled file apart from the file."""

    groups: tuple[Group, ...]
    footer: int
    footer_crc: int
    size: int

    def to_text(self) -> str:
        """Return the layout as it is kept in SQLite."""
        groups = [[g.offset, g.crc, g.rows, g.first.hex()] for g in self.groups]
        whole = {"groups": groups, "footer": self.footer, "crc": self.footer_crc, "size": self.size}
        return json.dumps(whole, sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> Layout:
        """Read what `to_text` wrote."""
        whole = json.loads(text)
        groups = tuple(Group(o, c, r, bytes.fromhex(f)) for o, c, r, f in whole["groups"])
        return cls(groups, whole["footer"], whole["crc"], whole["size"])
