"""Two crashes to try on a worker of one's own, armed by an environment variable.

`HOLDFAST_WORKER_CRASH=crash_after_two_chunks` or `=crash_after_end_processed` ends the process with
SIGKILL there: no handler, no flush. Start it again without the variable; nothing may be lost or
doubled. Unarmed, both do nothing.
"""

from __future__ import annotations

import os
import signal

CRASH_VARIABLE = "HOLDFAST_WORKER_CRASH"


def crash_after_two_chunks(applied: int) -> None:
    """Die if armed and this process has applied its second chunk."""
    if applied == 2:
        _die_if_armed("crash_after_two_chunks")


def crash_after_end_processed() -> None:
    """Die if armed: an END is committed and acked, what follows from it has not begun."""
    _die_if_armed("crash_after_end_processed")


def _die_if_armed(name: str) -> None:
    if os.environ.get(CRASH_VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)
