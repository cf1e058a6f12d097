"""A producer outside Holdfast: it is asked for the results of a run, and sends them in.

Asked twice for the same run, which happens after a crash on either side, it answers with the same
messages under the same ids: `results_of` depends on the run alone. What it has answered it keeps in
a file of its own, so that a repeated request costs nothing.

    python examples/producer.py state/store.sqlite3 requests answered.txt
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast._base.clock import pause
from holdfast.delivery.messages import Header, Payload, Request, decode, encode, payload_of
from holdfast.log.contract import QueueBackend, Record
from holdfast.log.embedded import EmbeddedBackend
from holdfast.store.result_rows import SeriesDecl

GROUP = "producer"
PIECES = 4


def results_of(run: str) -> tuple[tuple[SeriesDecl, ...], dict[str, list[bytes]]]:
    """Compute the results of a run: the same bytes whenever it is asked."""
    letters = [f"{run[:8]},{number}\n".encode() for number in range(1, PIECES + 1)]
    series = (SeriesDecl("letters", ("run", "n")), SeriesDecl("nothing", ("x",)))
    return series, {"letters": letters, "nothing": []}


def answers(request: Request) -> tuple[Header, list[Payload]]:
    """Return everything that is said about a run."""
    series, results = results_of(request.run)
    payloads = []
    for name, pieces in results.items():
        total = len(pieces)
        numbered = list(enumerate(pieces, start=1)) or [(0, b"")]
        payloads += [payload_of(request.run, name, n, total, data) for n, data in numbered]
    return Header(request.run, series), payloads


def answer(log: QueueBackend, request: Request) -> None:
    """Send the pieces in an odd order, and the header last: nobody may rely on order."""
    header, payloads = answers(request)
    for payload in reversed(payloads):
        record = Record(encode(payload), record_id=payload.message_id)
        log.produce(request.payload_queue, record)
    log.produce(request.header_queue, Record(encode(header), record_id=header.message_id))


def serve(log: QueueBackend, requests: str, answered: Path) -> bool:
    """Answer one request that was not answered yet. False: there is none now."""
    log.create_topic(requests)
    offset = log.get_committed_offset(requests, GROUP)
    stored = log.fetch(requests, offset, timeout_s=0.1)
    if stored is None:
        return False
    request = decode(stored.record.value)
    known = answered.read_text().split() if answered.exists() else []
    if isinstance(request, Request) and request.run not in known:
        answer(log, request)
        with answered.open("a") as file:
            file.write(f"{request.run}\n")
            file.flush()
            os.fsync(file.fileno())
    log.commit_offset(requests, GROUP, type(offset)(stored.offset + 1))
    return True


def main() -> None:
    """Serve requests for ever."""
    store, requests, answered = sys.argv[1:]
    log = EmbeddedBackend(store)
    log.start()
    while True:
        if not serve(log, requests, Path(answered)):
            pause(0.01)


if __name__ == "__main__":
    main()
