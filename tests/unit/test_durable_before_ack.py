"""I6 and I7: whatever a killed process acknowledged is there; what is there is a prefix."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast._base.ids import Offset
from holdfast.blobs.local import LocalBlobs
from holdfast.log.embedded import EmbeddedBackend
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.store_samples import RUN

PRODUCER = """
import sys
from holdfast._base.ids import Offset
from holdfast.log.contract import Record
from holdfast.log.embedded import EmbeddedBackend
log = EmbeddedBackend(sys.argv[1]); log.start(); log.create_topic("t")
for number in range(100_000):
    offsets = log.produce_batch("t", [Record(b"%d.%d" % (number, i)) for i in range(3)])
    log.commit_offset("t", "g", Offset(offsets[0]))
    print(offsets[-1], flush=True)
"""
SENDER = """
import sys
from holdfast.blobs.local import LocalBlobs
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.store_samples import *
store, blobs = SqliteStore.open(sys.argv[1]), LocalBlobs(sys.argv[1] + ".blobs")
store.create_run(new_run())
for number in range(1, 100_000):
    new = chunk(number, location=f"up/{number}")
    blobs.create(new.location, [b"bytes %d" % number])
    store.bind_chunk(RUN, new, bind)
    print(number, flush=True)
"""


def killed_after(code: str, path: Path, lines: int) -> int:
    """Run a child until it has acknowledged so often, kill it, return its last acknowledgement."""
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    told = [child.stdout.readline() for _ in range(lines)]
    child.send_signal(signal.SIGKILL)
    rest = child.stdout.read().splitlines()
    child.stdout.close()
    assert child.wait(60) == -signal.SIGKILL
    whole = [line for line in rest if line]
    return int((whole or told)[-1])


@pytest.mark.parametrize("lines", [1, 13, 57])
def test_every_acknowledged_record_is_there(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "log.db"
    acknowledged = killed_after(PRODUCER, path, lines)
    log = EmbeddedBackend(path)
    log.start()
    first, free = log.bounds("t")
    assert acknowledged < free
    found = log.fetch_batch("t", Offset(0), count=free + 1)
    expected = [b"%d.%d" % (number // 3, number % 3) for number in range(free)]
    assert [stored.record.value for stored in found] == expected
    assert log.get_committed_offset("t", "g") >= acknowledged - 2
    assert (first, free % 3) == (0, 0)
    log.stop()


def test_every_acknowledged_chunk_is_there_with_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    acknowledged = killed_after(SENDER, path, 9)
    store, blobs = SqliteStore.open(path), LocalBlobs(f"{path}.blobs")
    chunks = store.list_chunks(RUN)
    assert [found.ordinal for found in chunks] == list(range(1, len(chunks) + 1))
    assert len(chunks) >= acknowledged
    for found in chunks:
        assert b"".join(blobs.read(found.location)) == b"bytes %d" % found.ordinal
    store.check()
    store.close()
