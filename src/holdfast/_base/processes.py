"""Processes that end with the one that started them, however it ends."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path

SUPERVISOR_VARIABLE = "HOLDFAST_SUPERVISOR"
"""Names the process that started a part of a service, which ends when that one does."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with(parent: int) -> None:
    """Ask the kernel to end this process with SIGKILL when its parent ends, however it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before the kernel was asked.
    if os.getppid() != parent:
        os._exit(1)


def die_with_supervisor() -> None:
    """The same with the supervisor, if this process has one. What it starts itself has none."""
    parent = os.environ.pop(SUPERVISOR_VARIABLE, "")
    if parent.isdigit():
        die_with(int(parent))


def adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs from now on, in place of init."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_children() -> None:
    """Kill the children of this process, adopted ones too; return when none is left.

    Nobody else may wait for a child of this process any more: its exit code would be lost.
    """
    while True:
        for task in Path("/proc/self/task").iterdir():
            for pid in (task / "children").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        try:
            # What this one leaves behind is a child of ours when it is gone: look again.
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
