"""What runs on a node, as a process: `python -m tests.integration.node_jobs JOB ARGUMENTS`.

member ROOT LOG     a member of the group of `tests.crash.group_work`, until ROOT/over is there
worker DIRECTORY    a worker that reads an endpoint from its input, and knows nothing else
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from tests.crash import group_work

from holdfast._base.clock import pause
from holdfast.log.contract import QueueEndpoint
from holdfast.log.open import open_backend
from holdfast.worker.loop import Worker
from holdfast.worker.persistence import PersistenceService
from holdfast.worker.ports import LogInbox, LogOutbox

MEMBER_BATCH = 5
"""Small, so that a node dies in the middle of something."""


def member(root: str, url: str) -> None:
    remote = open_backend(url)
    remote.start()
    over = Path(root) / "over"
    group_work.run_member(Path(root), batch=MEMBER_BATCH, remote=remote, is_over=over.exists)
    remote.stop()


def worker(directory: str) -> None:
    endpoint = QueueEndpoint(**json.loads(sys.stdin.readline()))
    backend = open_backend(endpoint.url)
    backend.start()
    one = Worker(
        "passer",
        group_work.Pass(),
        PersistenceService(Path(directory), "passer"),
        LogInbox(backend, "in", "passers"),
        {"out": LogOutbox(backend, "out")},
        senders={"t": ["s"]},
    )
    while True:
        if not one.handle_batch():
            pause(0.01)


JOBS: dict[str, Callable[..., None]] = {"member": member, "worker": worker}

if __name__ == "__main__":
    JOBS[sys.argv[1]](*sys.argv[2:])
