"""Ctrl-C and SIGTERM: once stops when the batch is committed, twice at once.

The handler raises nothing: an exception out of nowhere, in the middle of a transaction, is what no
code is written for. The first signal sets a flag that the engine asks for between two works, and
ends Spark if it is not at one. The second ends the process without unwinding anything, which is
one of the crashes that everything here is made for.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from holdfast._base.tell import tell_at_once
from holdfast.cli.exits import STOPPED
from holdfast.cli.tell import Teller
from holdfast.errors import RunStopped

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stoppable(Protocol):
    """What is running on our behalf, and does not see the terminal's signals."""

    def stop(self) -> None:
        """Begin no other work; end now if none is under way."""

    def kill(self) -> None:
        """End now, whatever is under way."""


class Stop:
    """Whether somebody asked for the end. Called by the engine between two works."""

    def __init__(self, teller: Teller, resume: str) -> None:
        self._teller, self._resume = teller, resume
        self._running: Stoppable | None = None
        self._asked = False

    def __call__(self) -> bool:
        """Tell whether to stop."""
        return self._asked

    def watch(self, running: Stoppable) -> None:
        """Name what is to be stopped as well."""
        self._running = running
        if self._asked:
            running.stop()

    def resumable(self, error: RunStopped) -> RunStopped:
        """Return the same error with the command that resumes."""
        return RunStopped(what=error.what, resume=f"Resume: {self._resume}")

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Stop on Ctrl-C and SIGTERM while the block runs."""
        before = {number: signal.signal(number, self._take) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, known in before.items():
                signal.signal(number, known)

    def _take(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._asked:
            self._end()
        self._asked = True
        self._teller.stopping()
        if self._running is not None:
            self._running.stop()

    def _end(self) -> None:
        if self._running is not None:
            self._running.kill()
        self._teller.close(at_once=True)
        error = self.resumable(RunStopped(what="stopped at once", resume=""))
        tell_at_once(self._teller.ending(error))
        os._exit(STOPPED)
