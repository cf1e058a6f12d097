"""A group that passes on numbered messages, and what must be there when it is through.

    python -m tests.crash.group_work DIRECTORY

is one member. It ends when every client's END has left every partition.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from holdfast._base.clock import pause
from holdfast._base.crashpoint import arm_from_environment
from holdfast._base.ids import START, Offset
from holdfast.log.contract import QueueBackend, Record
from holdfast.log.embedded import EmbeddedBackend
from holdfast.log.relayed import RelayedBackend
from holdfast.store.sqlite import SqliteStore
from holdfast.worker.group import Member, Place
from holdfast.worker.loop import Worker
from holdfast.worker.messages import Chunk, End, Message, decode, encode
from holdfast.worker.ports import LogInbox, LogOutbox
from holdfast.worker.roles import NoState, Output, Part

PARTITIONS = 6
CLIENTS = ("ada", "bob")
PATIENCE_S = 1.0
BATCH = 100
GROUP = "passers"


class Pass:
    """Sends on what comes."""

    outputs, first = (Output("out", "passed"),), ()

    def start(self) -> NoState:
        return NoState()

    def apply(self, state: NoState, chunk: Chunk) -> list[Part]:
        return [Part("out", "passed", chunk.payload)]

    def results(self, state: NoState) -> list[Part]:
        return []


def fill(root: Path, messages: int, *, first: int = 0, ends: bool = True) -> None:
    """Append the numbers from `first` to below `messages`, in turn to all partitions and clients,
    and the ENDs.
    """
    root.mkdir(parents=True, exist_ok=True)
    log = EmbeddedBackend(root / "store.sqlite3")
    log.start()
    for topic in ("in", "out"):
        log.create_topic(topic, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        records, totals = [], Counter[str]()
        for number in range(partition, messages, PARTITIONS):
            client = CLIENTS[number // PARTITIONS % len(CLIENTS)]
            totals[client] += 1
            chunk = Chunk(client, "t", "s", totals[client], str(number).encode())
            records += [_record(chunk)] if number >= first else []
        if ends:
            records += [_record(End(client, "t", totals[client], "s")) for client in CLIENTS]
        for place in range(0, len(records), 1000):
            log.produce_batch("in", records[place : place + 1000], partition=partition)
    log.stop()


def _record(message: Message) -> Record:
    return Record(encode(message), record_id=message.message_id)


def run_member(
    root: Path,
    *,
    batch: int = BATCH,
    remote: QueueBackend | None = None,
    is_over: Callable[[], bool] | None = None,
) -> None:
    """Join, work until all is through, leave. With `remote`, messages travel over that log."""
    store = SqliteStore.open(root / "store.sqlite3")

    def make(place: Place) -> Worker[NoState]:
        log = EmbeddedBackend(store, fence=place.fence)
        if remote is not None:
            log = RelayedBackend(store, remote, name="group", fence=place.fence)
        return Worker(
            f"{GROUP}-{place.partition}",
            Pass(),
            place.persistence,
            LogInbox(log, "in", GROUP, partition=place.partition),
            {"out": LogOutbox(log, "out", partition=place.partition)},
            senders={"t": ["s"]},
            batch_size=batch,
        )

    log = EmbeddedBackend(store)
    member = Member(
        store,
        log,
        make,
        topic="in",
        group=GROUP,
        directory=root / "group",
        patience_s=PATIENCE_S,
        commit_interval=batch,
    )
    while not (is_over() if is_over else is_through(log)):
        if not member.step():
            pause(0.005)
    member.close()
    store.close()


def is_through(log: EmbeddedBackend) -> bool:
    """The last record of each partition is the END of the last client."""
    for partition in range(PARTITIONS):
        end = log.bounds("in", partition=partition)[1]
        if end != log.bounds("out", partition=partition)[1]:
            return False
        last = log.fetch_batch("in", Offset(max(0, end - 1)), count=1, partition=partition)
        message = decode(last[0].record.value) if last else None
        # All that came may be passed on, and more be yet to come.
        if not isinstance(message, End) or message.client != CLIENTS[-1]:
            return False
    return True


def backlog(log: EmbeddedBackend) -> int:
    """How many records are not passed on yet."""
    bounds = [log.bounds(t, partition=n)[1] for t in ("in", "out") for n in range(PARTITIONS)]
    return sum(bounds[:PARTITIONS]) - sum(bounds[PARTITIONS:])


def check_any_moment(root: Path) -> None:
    """No number twice, none that was not sent, no END before what it announces."""
    _read(root)


def check_final(root: Path, messages: int) -> None:
    found = _read(root)
    missing = set(range(messages)) - set(found)
    assert not missing, f"lost {len(missing)} messages, {min(missing)} among them"


def _read(root: Path) -> Counter[int]:
    log = EmbeddedBackend(root / "store.sqlite3")
    log.start()
    found = Counter[int]()
    for partition in range(PARTITIONS):
        seen, place = Counter[str](), START
        while records := log.fetch_batch("out", place, count=10_000, partition=partition):
            place = Offset(records[-1].offset + 1)
            for one in records:
                message = decode(one.record.value)
                assert message.sender == f"{GROUP}-{partition}", f"wrong sender {message.sender}"
                if isinstance(message, Chunk):
                    found[int(message.payload)] += 1
                    seen[message.client] += 1
                    assert message.ordinal == seen[message.client], "wrong order"
                elif isinstance(message, End):
                    assert seen[message.client] == message.total_chunks, "early END"
    log.stop()
    twice = [number for number, count in found.items() if count > 1]
    assert not twice, f"duplicated {len(twice)} messages, {min(twice)} among them"
    return found


if __name__ == "__main__":
    arm_from_environment()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    run_member(Path(sys.argv[1]))
