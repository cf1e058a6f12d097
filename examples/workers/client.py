"""The two ends: a client that sends its tables, and one that waits for the answers.

Both may be killed and started again: what was sent has the same ids and is taken once.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from examples.workers.plan import (
    CLIENT,
    DEALT,
    HEADERS,
    INPUTS,
    SENDERS_OF_ANSWERS,
)
from examples.workers.rows import csv_chunks, decode_rows

from holdfast._base.files import write_replace
from holdfast._base.intervals import Intervals
from holdfast.worker.messages import Chunk, End, Message

Send = Callable[[str, Sequence[Message]], None]
"""Sends messages to a worker by its name; returns when they are safe there."""


def send_tables(data: Path, client: str, send: Send, *, rows_per_chunk: int) -> int:
    """Send all tables of a directory, and to every worker an END with that worker's own count.

    Returns how many chunks there were.
    """
    total = 0
    for table, workers in INPUTS.items():
        counts: Counter[str] = Counter()
        for place, payload in enumerate(_payloads(data, table, rows_per_chunk)):
            chosen = [workers[place % len(workers)]] if table in DEALT else workers
            for worker in chosen:
                counts[worker] += 1
                send(worker, [Chunk(client, table, CLIENT, counts[worker], payload)])
                total += 1
        for worker in workers:
            send(worker, [End(client, table, counts[worker], CLIENT)])
    return total


def _payloads(data: Path, table: str, rows_per_chunk: int) -> Iterator[bytes]:
    for path in sorted([*data.glob(f"{table}.csv"), *data.glob(f"{table}_2*.csv")]):
        # Bytes, not lines: a quoted field may hold a line's end, which must stay what it is.
        yield from csv_chunks(path.read_bytes().decode(), rows_per_chunk)


class Answers:
    """The answers of one client, as they come, from every worker that has a part in them."""

    def __init__(self, client: str) -> None:
        self._client = client
        self._chunks: dict[str, dict[tuple[str, int], bytes]] = {name: {} for name in HEADERS}
        self._totals: dict[tuple[str, str], int] = {}

    def take(self, messages: Iterable[Message]) -> None:
        """Take messages in. A copy changes nothing."""
        for one in messages:
            if one.client != self._client:
                continue
            if isinstance(one, Chunk):
                known = self._chunks[one.table_type].setdefault(one.id[2:], one.payload)
                if known != one.payload:
                    raise ValueError(f"two different chunks {one.id}")
            elif isinstance(one, End):
                self._totals[one.table_type, one.sender] = one.total_chunks

    @property
    def is_complete(self) -> bool:
        """Tell whether what came from every sender is exactly what it announced."""
        return all(
            self._ordinals(name, sender) == self._announced(name, sender)
            for name, senders in SENDERS_OF_ANSWERS.items()
            for sender in senders
        )

    def _ordinals(self, name: str, sender: str) -> Intervals:
        return Intervals.of(n for who, n in self._chunks[name] if who == sender)

    def _announced(self, name: str, sender: str) -> Intervals | None:
        total = self._totals.get((name, sender))
        return None if total is None else Intervals.first(total)

    def write(self, out: Path) -> None:
        """Write q1.csv to q4.csv, rows sorted."""
        out.mkdir(parents=True, exist_ok=True)
        for name, header in HEADERS.items():
            rows = [tuple(r) for part in self._chunks[name].values() for r in decode_rows(part)]
            text = io.StringIO(newline="")
            csv.writer(text, lineterminator="\n").writerows([header, *sorted(rows)])
            write_replace(out / f"{name}.csv", [text.getvalue().encode()])
