"""Server-sent events: lines in, events out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SentEvent:
    """One event of a stream."""

    id: str
    data: str


def read_events(lines: Iterable[str]) -> Iterator[SentEvent]:
    """Yield the events of a stream's lines. Comments (heartbeats) and unknown fields are nothing.

    An event that the end of the stream cuts off is none.
    """
    number, data = "", list[str]()
    for line in lines:
        if not line:
            if data:
                yield SentEvent(number, "\n".join(data))
            data = []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "id":
            number = value
        elif field == "data":
            data.append(value)
