"""A part of a service whose working loop can be made to hang: `python -m tests.service.stuck MODULE
ARGUMENTS`.

SIGUSR1 stops the main thread for good, and no other: that is where a gateway, an engine and a
delivery do their turns.
"""

from __future__ import annotations

import runpy
import signal
import sys
from types import FrameType


def hang(number: int, frame: FrameType | None) -> None:
    del number, frame
    while True:
        signal.pause()


def main() -> None:
    signal.signal(signal.SIGUSR1, hang)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
