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
_LISTENING = "0A"
"""How the kernel's tables of sockets write it."""


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


def listens(pid: int, port: int) -> bool:
    """Tell whether it is this process, and no other, that listens on a TCP port."""
    try:
        held = {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()}
        tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    except OSError:  # it has ended, or closed a file in between: whoever asks looks again
        return False
    for line in "".join(tables).splitlines():
        fields = line.split()
        is_ours = fields[1].endswith(f":{port:04X}") and f"socket:[{fields[9]}]" in held
        if is_ours and fields[3] == _LISTENING:
            return True
    return False


def adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs from now on, in place of init."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _children() -> list[int] | None:
    """Return the processes that threads of this one have as children; None if a thread ended."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            if task.is_dir():
                raise  # this kernel does not tell
            return None
    return found


def end_children() -> None:
    """Kill the children of this process, adopted ones too; return when none is left.

    Nobody else may wait for a child of this process any more: its exit code would be lost.
    """
    while True:
        children = _children()
        if children is None:
            continue  # A thread ended while it was looked at: its children are another one's now.
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            # What this one leaves behind is a child of ours when it is gone: look again.
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
