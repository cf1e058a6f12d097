"""What users write: a role, and what it sends. No input or output.

A role says which table types it sends to which destinations. The worker numbers what goes to each
from 1 and keeps the numbers with the state, in one commit: after a crash the same chunks, applied
in the same order, give the same messages under the same ids.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

from holdfast.worker.messages import Chunk, End
from holdfast.worker.persistence import WorkingState

S = TypeVar("S", bound=WorkingState)
_SIZE = struct.Struct("<I")


class Output(NamedTuple):
    """A destination, which the worker has an outbox for, and a table type that goes there."""

    to: str
    table_type: str


class Part(NamedTuple):
    """A payload for an output. The worker makes it the next chunk of that output."""

    to: str
    table_type: str
    payload: bytes


class Release(NamedTuple):
    """An END that is said on behalf of its sender, as a coordinator does."""

    to: str
    end: End


Sent = Part | Release


class Role(Protocol[S]):
    """What a worker does with chunks."""

    @property
    def outputs(self) -> Sequence[Output]:
        """Where it sends what. When a client is finished, an END goes to every one of them, with
        its own count, zero included.
        """

    @property
    def first(self) -> Sequence[str]:
        """The table types that must be complete before chunks of others are applied."""

    def start(self) -> S:
        """Return the state of a client of whom nothing came."""

    def apply(self, state: S, chunk: Chunk) -> Iterable[Sent]:
        """Change the state by one chunk; return what is to be sent at once."""

    def results(self, state: S) -> Iterable[Part]:
        """Return what is to be sent when all chunks of a client are applied."""


@dataclass
class Numbered(Generic[S]):
    """A role's state, and how many chunks went to each output. Bytes: a length, JSON, the state."""

    state: S
    counts: Counter[Output] = field(default_factory=Counter)

    def to_bytes(self) -> bytes:
        """Return both as bytes."""
        listed = [[*output, count] for output, count in sorted(self.counts.items())]
        head = json.dumps(listed, separators=(",", ":")).encode("ascii")
        return _SIZE.pack(len(head)) + head + self.state.to_bytes()

    @classmethod
    def of(cls, kind: type[S], data: bytes) -> Numbered[S]:
        """Return what `to_bytes` gave; `kind` is the class of the role's state."""
        (size,) = _SIZE.unpack_from(data)
        start = _SIZE.size + size
        counts = {Output(to, table): n for to, table, n in json.loads(data[_SIZE.size : start])}
        return cls(kind.from_bytes(data[start:]), Counter(counts))

    def number(self, part: Part) -> int:
        """Return the ordinal of the next chunk of an output."""
        output = Output(part.to, part.table_type)
        self.counts[output] += 1
        return self.counts[output]


class NoState:
    """The state of a role that remembers nothing."""

    def to_bytes(self) -> bytes:
        """Return nothing."""
        return b""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the one there is."""
        del data
        return cls()


class RawState:
    """Bytes that nobody has looked into yet."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def to_bytes(self) -> bytes:
        """Return them."""
        return self.data

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Keep them."""
        return cls(data)
