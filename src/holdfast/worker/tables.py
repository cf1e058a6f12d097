"""A state per table as one working state: the two of a joiner, one for each of its sides.

Format: docs/internals/worker-journal.md#states. No input or output.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, fields
from typing import Self, get_type_hints

from holdfast.errors import StateMismatch
from holdfast.worker.persistence import WorkingState

_SIZE = struct.Struct("<I")


@dataclass
class Tables:
    """States that are committed and recovered together. A subclass names and types them:

        @dataclass
        class Sides(Tables):
            stores: Names
            menu_items: Names

    Each is a working state, by a schema of its own. Bytes of other tables are refused: a role whose
    tables changed cannot go on with what it was.
    """

    def to_bytes(self) -> bytes:
        """Return all of them as bytes."""
        parts: dict[str, bytes] = {}
        for one in fields(self):
            state: WorkingState = getattr(self, one.name)
            parts[one.name] = state.to_bytes()
        listed = [[name, len(part)] for name, part in parts.items()]
        head = json.dumps(listed, separators=(",", ":")).encode("ascii")
        return _SIZE.pack(len(head)) + head + b"".join(parts.values())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return what `to_bytes` gave.

        Raises:
            StateMismatch: these are not the tables of this class.
        """
        hints = get_type_hints(cls)
        kinds: list[tuple[str, type[WorkingState]]] = [
            (one.name, hints[one.name]) for one in fields(cls)
        ]
        place, sizes = _sizes_in(data)
        names = [name for name, _ in kinds]
        if list(sizes) != names or place + sum(sizes.values()) != len(data):
            what = f"it holds tables {', '.join(sizes) or 'unknown'}, not {', '.join(names)}"
            raise StateMismatch(state=f"working state {cls.__name__}", what=what)
        states: dict[str, WorkingState] = {}
        for name, kind in kinds:
            states[name] = kind.from_bytes(data[place : place + sizes[name]])
            place += sizes[name]
        return cls(**states)


def _sizes_in(data: bytes) -> tuple[int, dict[str, int]]:
    """Return where the states begin, and how large each is; none if these are other bytes."""
    try:
        place = _SIZE.size + _SIZE.unpack_from(data)[0]
        sizes = {str(name): int(size) for name, size in json.loads(data[_SIZE.size : place])}
    except (struct.error, TypeError, ValueError, OverflowError, RecursionError):
        return len(data), {}
    return (place, sizes) if all(size >= 0 for size in sizes.values()) else (len(data), {})
