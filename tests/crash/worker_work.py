"""A filter and a joining aggregator over the embedded log, and what their results must be.

Two senders fill `sales`; one of them says END before its last chunk. The aggregator waits for
`names`, which comes last, so all that it got before waits in its buffer.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.log.contract import Record
from holdfast.log.embedded import EmbeddedBackend
from holdfast.worker.loop import Worker
from holdfast.worker.messages import Chunk, End, Message, decode, encode
from holdfast.worker.persistence import PersistenceService
from holdfast.worker.ports import LogInbox, LogOutbox
from holdfast.worker.roles import NoState, Output, Part

CLIENTS = ("ada", "bob")
SENDERS = ("north", "south")
CHUNKS = 3
BATCH = 2
Clients = tuple[str, ...]
NAMES = {"0": "latte", "1": "mocha", "2": "tea"}


class KeepLarge:
    """A filter: sales of 10 and more. It has one output and answers every chunk."""

    outputs, first = (Output("sum", "large"),), ()

    def start(self) -> NoState:
        return NoState()

    def apply(self, state: NoState, chunk: Chunk) -> list[Part]:
        rows = [row for row in json.loads(chunk.payload) if row[1] >= 10]
        return [Part("sum", "large", json.dumps(rows).encode())]

    def results(self, state: NoState) -> list[Part]:
        return []


class Totals:
    """Sums by item, and the names of the items."""

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        self.names: dict[str, str] = {}

    def to_bytes(self) -> bytes:
        return json.dumps([self.sums, self.names], sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Totals:
        totals = cls()
        sums, totals.names = json.loads(data)
        totals.sums = Counter(sums)
        return totals


class SumByName:
    """An aggregator that looks names up: what is sold waits until all names are known."""

    outputs, first = (Output("out", "totals"),), ("names",)

    def start(self) -> Totals:
        return Totals()

    def apply(self, state: Totals, chunk: Chunk) -> list[Part]:
        if chunk.table_type == "names":
            state.names.update(json.loads(chunk.payload))
        else:
            for item, amount in json.loads(chunk.payload):
                state.sums[state.names[item]] += amount
        return []

    def results(self, state: Totals) -> list[Part]:
        pairs = sorted(state.sums.items())
        return [Part("out", "totals", json.dumps(pair).encode()) for pair in pairs]


def sales(client: str, sender: str, ordinal: int) -> list[tuple[str, int]]:
    """Made by counting: no chance in it."""
    base = CLIENTS.index(client) * 7 + SENDERS.index(sender) * 5 + ordinal
    return [(str((base + n) % 3), (base * (n + 1)) % 23) for n in range(6)]


def sent_sales(clients: Clients) -> Iterator[Message]:
    for client in clients:
        for ordinal in range(1, CHUNKS + 1):
            for sender in SENDERS:
                payload = json.dumps(sales(client, sender, ordinal)).encode()
                late = sender == "south" and ordinal == CHUNKS
                if late:
                    yield End(client, "sales", CHUNKS, "south")
                yield Chunk(client, "sales", sender, ordinal, payload)
        yield End(client, "sales", CHUNKS, "north")


def sent_names(clients: Clients) -> Iterator[Message]:
    for client in clients:
        for ordinal, (item, name) in enumerate(NAMES.items(), 1):
            payload = json.dumps({item: name}).encode()
            yield Chunk(client, "names", "menu", ordinal, payload)
        yield End(client, "names", len(NAMES), "menu")


def oracle(clients: Clients) -> list[Message]:
    """What a plain program answers."""
    answers: list[Message] = []
    for client in clients:
        sums: Counter[str] = Counter()
        for sender in SENDERS:
            for ordinal in range(1, CHUNKS + 1):
                for item, amount in sales(client, sender, ordinal):
                    if amount >= 10:
                        sums[NAMES[item]] += amount
        for ordinal, pair in enumerate(sorted(sums.items()), 1):
            payload = json.dumps(pair).encode()
            answers.append(Chunk(client, "totals", "sum", ordinal, payload))
        answers.append(End(client, "totals", len(sums), "sum"))
    return answers


@contextmanager
def opened(root: Path) -> Iterator[EmbeddedBackend]:
    root.mkdir(parents=True, exist_ok=True)
    log = EmbeddedBackend(root / "log.sqlite")
    log.start()
    for topic in ("sales", "large", "totals"):
        log.create_topic(topic)
    try:
        yield log
    finally:
        log.stop()


def run(clients: Clients, root: Path) -> None:
    """Everything, from the first message to the last; after a crash, what is left of it."""
    with opened(root) as log:
        _fill(log, "sales", sent_sales(clients))
        books = PersistenceService(root / "filter", "filter", commit_interval=2)
        inbox, outbox = LogInbox(log, "sales", "filter"), {"sum": LogOutbox(log, "large")}
        senders: dict[str, list[str]] = {"sales": list(SENDERS)}
        Worker(
            "filter", KeepLarge(), books, inbox, outbox, senders=senders, batch_size=BATCH
        ).run_until_idle()
        books.close()
        _fill(log, "large", sent_names(clients))
        books = PersistenceService(root / "sum", "sum", commit_interval=2)
        inbox, outbox = LogInbox(log, "large", "sum"), {"out": LogOutbox(log, "totals")}
        senders = {"large": ["filter"], "names": ["menu"]}
        Worker(
            "sum", SumByName(), books, inbox, outbox, senders=senders, batch_size=BATCH
        ).run_until_idle()
        books.close()


def _fill(log: EmbeddedBackend, topic: str, messages: Iterator[Message]) -> None:
    """Send as a client does that sends everything again after a crash: ids make it idle."""
    records = [Record(encode(message), record_id=message.message_id) for message in messages]
    log.produce_batch(topic, records)


def read(root: Path, topic: str) -> list[Message]:
    with opened(root) as log:
        records = log.fetch_batch(topic, log.bounds(topic)[0], count=10_000)
        return [decode(stored.record.value) for stored in records]


def check_any_moment(clients: Clients, root: Path) -> None:
    """At no moment is there a wrong answer, one twice, or an END before what it announces."""
    found, right = read(root, "totals"), oracle(clients)
    assert len(set(found)) == len(found), "duplicated results"
    assert set(found) <= set(right), f"wrong results {set(found) - set(right)}"
    for place, message in enumerate(found):
        if isinstance(message, End):
            before = [one for one in found[:place] if one.client == message.client]
            assert len(before) == message.total_chunks, "early END"


def check_final(clients: Clients, root: Path) -> None:
    check_any_moment(clients, root)
    missing = set(oracle(clients)) - set(read(root, "totals"))
    assert not missing, f"lost {missing}"
    for worker in ("filter", "sum"):
        books = PersistenceService(root / worker, worker)
        assert books.clients() == [], f"wrong: {worker} keeps the state of a finished client"
        books.close()
