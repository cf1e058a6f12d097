"""Exit codes: 0 it worked, 1 it failed, 2 it was asked wrongly, 75 the disk was full, 130 it was
asked to stop.
"""

from __future__ import annotations

from holdfast.errors import DiskFull, HoldfastError, PipelineInvalid, RunStopped, UsageInvalid

DISK_WAS_FULL = 75
"""EX_TEMPFAIL of sysexits.h: the same command works when there is room. A code of its own, so that
a supervisor waits for room, and does not take it for a part that cannot run."""
STOPPED = 130
"""As shells count it: 128 plus SIGINT. The same for SIGTERM: in both cases a run resumes."""


def exit_code(error: HoldfastError) -> int:
    """Return the exit code of a command that ended with `error`."""
    match error:
        case UsageInvalid() | PipelineInvalid():
            return 2
        case DiskFull():
            return DISK_WAS_FULL
        case RunStopped():
            return STOPPED
        case _:
            return 1


def one_line(error: HoldfastError, log: str | None = None) -> str:
    """Return an error as people see it, whatever line breaks its facts hold.

    `log`: Spark's own, where it may say more.
    """
    more = f" Spark's own log: {log}" if log else ""
    return f"holdfast: {' '.join(str(error).split())}{more}"
