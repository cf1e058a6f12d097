"""A broker that is killed while a test works on it, and what must be true of a producer then."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from tests.integration.processes import KILLS

from holdfast._base.ids import Offset
from holdfast.errors import LogUnreachable
from holdfast.log.contract import QueueBackend, Record

BATCH = 50
Told = list[tuple[int, bytes]]


class Killer:
    """Kills a server and starts it again, over and over, while a test works on it."""

    def __init__(self, kill: Callable[[], None], start: Callable[[], None], times: int) -> None:
        self._kill_it, self._start_it, self._times = kill, start, times
        self.kills = 0
        self.worked = threading.Event()
        self.over = threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._kill)

    def _kill(self) -> None:
        try:
            for _ in range(self._times):
                # Something must have been done since the last kill: else nothing is interrupted.
                self.worked.clear()
                assert self.worked.wait(120)
                if self._failed:
                    return
                self._kill_it()
                self._start_it()
                self.kills += 1
        finally:
            self.over.set()

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._failed = True
            self.worked.set()
        self._thread.join()


def check_a_living_producer(
    backend: QueueBackend,
    kill: Callable[[], None],
    start: Callable[[], None],
    *,
    times: int = KILLS,
    may_refuse: bool = False,
) -> None:
    """Goal: what was confirmed is where it was said to be, once, in order, though the broker is
    killed in between. With `may_refuse`, a batch may fail by name instead: its records may be there
    or not, once.

    Method: produce batches and read behind, until the broker was killed often enough.
    """
    backend.create_topic("t")
    told, refused = Told(), set[bytes]()
    seen, place, number = Told(), Offset(0), 0

    def read(count: int) -> bool:
        nonlocal place
        found = backend.fetch_batch("t", place, count=count)
        seen.extend((stored.offset, stored.record.value) for stored in found)
        place = Offset(seen[-1][0] + 1) if seen else place
        return bool(found)

    with Killer(kill, start, times) as killer:
        while not killer.over.is_set():
            batch = [Record(b"%d" % (number + item)) for item in range(BATCH)]
            number += BATCH
            values = [record.value for record in batch]
            try:
                told += zip(backend.produce_batch("t", batch), values, strict=True)
            except LogUnreachable:
                if not may_refuse:
                    raise
                refused |= set(values)
            read(30)
            backend.commit_offset("t", "g", place)
            killer.worked.set()
    assert killer.kills == times
    while place <= told[-1][0] and read(1000):
        pass
    assert [one for one in seen if one[1] not in refused] == told
    assert len(seen) == len({value for _, value in seen})
    if not may_refuse:
        assert told == [(item, b"%d" % item) for item in range(number)]
    assert 0 < backend.get_committed_offset("t", "g") <= place
    sys.stdout.write(
        f"{len(told)} of {number} confirmed, {len(refused)} refused, of which"
        f" {len(refused & {value for _, value in seen})} are there\n"
    )
