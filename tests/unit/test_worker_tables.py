"""The states of a joiner, one per table, are one state: committed and recovered together."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import StateMismatch
from holdfast.worker.messages import Chunk
from holdfast.worker.persistence import PersistenceService
from holdfast.worker.tables import Tables

GOLDEN = Path(__file__).parents[1] / "golden" / "worker-v1" / "tables.txt"


@dataclass
class Names:
    """Names by key."""

    rows: dict[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        return json.dumps(self.rows, sort_keys=True).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        return cls(json.loads(data))


@dataclass
class Count:
    """A number, in bytes that are no JSON."""

    value: int = 0

    def to_bytes(self) -> bytes:
        return b"\xff" * self.value

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        return cls(len(data))


@dataclass
class Sides(Tables):
    stores: Names = field(default_factory=Names)
    sales: Count = field(default_factory=Count)


@dataclass
class Turned(Tables):
    sales: Count
    stores: Names


SAMPLE = Sides(Names({"1": "Caf\u00e9", "2": ""}), Count(3))


@given(st.dictionaries(st.text(), st.text()), st.integers(0, 300))
def test_each_comes_back_as_itself(rows: dict[str, str], value: int) -> None:
    state = Sides(Names(rows), Count(value))
    assert Sides.from_bytes(state.to_bytes()) == state


def test_the_bytes_are_the_golden_ones() -> None:
    """Goal: what an earlier version committed is read. The file is never made anew."""
    assert bytes.fromhex(GOLDEN.read_text()) == SAMPLE.to_bytes()


def test_bytes_of_other_tables_are_refused() -> None:
    good = SAMPLE.to_bytes()
    for data in (b"", good[:-1], good + b"x", b"\x02\0\0\0[]", b"\x01\0\0\0" + b"3", b"{}" * 9):
        with pytest.raises(StateMismatch):
            Sides.from_bytes(data)
    (size,) = struct.unpack_from("<I", good)
    for head in ('[["stores",Infinity],["sales",1]]', "[" * 9999, '[["stores",-1],["sales",1]]'):
        made = struct.pack("<I", len(head)) + head.encode() + good[4 + size :]
        with pytest.raises(StateMismatch):
            Sides.from_bytes(made)
    with pytest.raises(StateMismatch) as refused:
        Turned.from_bytes(good)
    assert refused.value.what == "it holds tables stores, sales, not sales, stores"


def test_both_are_one_commit(tmp_path: Path) -> None:
    """After a restart both are there as they were at the commit, and neither is newer."""
    books = PersistenceService(tmp_path, "joiner")
    chunk = Chunk("ada", "stores", "north", 1, b"")
    books.commit_processing_chunk(chunk)
    state = Sides.from_bytes(SAMPLE.to_bytes())
    books.commit_working_state(state, chunk.id)
    state.stores.rows["3"], state.sales.value = "later", 4
    books.close()
    again = PersistenceService(tmp_path, "joiner")
    assert again.recover_working_state("ada", Sides) == SAMPLE
    again.close()
