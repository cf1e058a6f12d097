"""Processes that end with the one that started them, however it ends."""

from __future__ import annotations

import ctypes
import os
import signal

SUPERVISOR_VARIABLE = "HOLDFAST_SUPERVISOR"
"""Names the process that started a part of a service, which ends when that one does."""

_PR_SET_PDEATHSIG = 1


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
