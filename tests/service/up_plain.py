"""`holdfast up` with other commands: `python -m tests.service.up_plain STATE NAME=COMMAND ...`.

A command is a Python module and its arguments, divided by blanks, or `-c:` and a program.
"""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast._base.clock import SystemClock
from holdfast.cli.tell import TextTeller
from holdfast.cli.up import Supervisor
from holdfast.engine.parts import BEAT_S
from holdfast.engine.state import StateDirectory


def command_of(text: str) -> list[str]:
    if text.startswith("-c:"):
        return [sys.executable, "-c", text.removeprefix("-c:")]
    return [sys.executable, "-m", *text.split()]


def main() -> None:
    state = Path(sys.argv[1]).resolve()
    commands = {
        name: command_of(text) for name, _, text in (a.partition("=") for a in sys.argv[2:])
    }
    supervisor = Supervisor(
        commands, StateDirectory(state), TextTeller(SystemClock()), stall_s=3 * BEAT_S
    )
    sys.exit(supervisor.run())


if __name__ == "__main__":
    main()
