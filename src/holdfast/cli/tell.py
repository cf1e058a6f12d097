"""Says on standard error what happens while a run works: lines of text, or of JSON.

Text: `TIME MESSAGE`, a line per event. JSON: an object per line with `time`, `event`, `message` and
the event's own fields; the last one of a run that failed has `event` "error", its code and facts.
What a stage prints is passed on: as it is, or as an object with `event` "output".
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol

from holdfast._base.clock import Clock
from holdfast._base.tell import tell, tell_at_once
from holdfast.cli.exits import one_line
from holdfast.cli.words import moment, words
from holdfast.engine.events import Event
from holdfast.errors import HoldfastError

STOPPING = "stopping when the batch is committed; again (Ctrl-C) stops at once, which is safe too"


class Teller(Protocol):
    """What `holdfast run` needs to tell people, or programs, what happens."""

    def __call__(self, event: Event) -> None:
        """Tell what the engine said."""

    def say(self, event: str, message: str, **facts: object) -> None:
        """Tell something of our own."""

    def output(self) -> int:
        """Return the descriptor that what stages print is to go to."""

    def stopping(self) -> None:
        """Tell that somebody asked to stop. Called by a signal handler: it must not wait."""

    def ending(self, error: HoldfastError, log: str | None = None) -> str:
        """Return the last line of a run that ended with `error`. `log`: Spark's own."""

    def close(self, *, at_once: bool = False) -> None:
        """Leave the terminal as it was. `at_once`: the process ends now, wait for nothing."""


class TextTeller:
    """A line of text per event."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __call__(self, event: Event) -> None:
        """Tell what the engine said."""
        self.say(event.kind, words(event))

    def say(self, event: str, message: str, **facts: object) -> None:
        """Tell something of our own."""
        del event, facts
        tell(self._line(message))

    def line(self, message: str) -> str:
        """Return a message behind its time."""
        return f"{moment(self._clock.wall_ms())} {message}"

    def _line(self, message: str) -> str:
        return f"{self.line(message)}\n"

    def output(self) -> int:
        """Return standard error: what stages print must not mix with our answers."""
        return sys.stderr.fileno()

    def stopping(self) -> None:
        """Tell that somebody asked to stop, past all buffers."""
        tell_at_once(self._line(STOPPING))

    def ending(self, error: HoldfastError, log: str | None = None) -> str:
        """Return the last line of a run that ended with `error`."""
        return f"{one_line(error, log)}\n"

    def close(self, *, at_once: bool = False) -> None:
        """Nothing to do."""


class JsonTeller:
    """An object per event."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines: Lines | None = None

    def __call__(self, event: Event) -> None:
        """Tell what the engine said."""
        facts = {name: value for name, value in asdict(event).items() if value or name == "rows"}
        del facts["kind"]
        self.say(event.kind, words(event), **facts)

    def say(self, event: str, message: str, **facts: object) -> None:
        """Tell something of our own."""
        tell(self._line(event, message, facts))

    def _line(self, event: str, message: str, facts: dict[str, Any]) -> str:
        fixed = {"time": moment(self._clock.wall_ms()), "event": event, "message": message}
        return json.dumps(fixed | facts) + "\n"

    def output(self) -> int:
        """Return a pipe whose lines become objects."""
        self._lines = self._lines or Lines(lambda text: self.say("output", text))
        return self._lines.descriptor

    def stopping(self) -> None:
        """Tell that somebody asked to stop, past all buffers."""
        tell_at_once(self._line("stopping", STOPPING, {}))

    def ending(self, error: HoldfastError, log: str | None = None) -> str:
        """Return the last line of a run that ended with `error`: its code and facts."""
        facts = {"code": error.code, "facts": error.facts()}
        more = {"spark_log": log} if log else {}
        return self._line("error", str(error), facts | more)

    def close(self, *, at_once: bool = False) -> None:
        """Wait for what stages printed last."""
        if self._lines is not None and not at_once:
            self._lines.close()


class Lines:
    """A pipe that is read by a thread of its own, line by line."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._read, self.descriptor = os.pipe()
        self._take = take
        self._thread = threading.Thread(target=self._pass_on, name="output", daemon=True)
        self._thread.start()

    def _pass_on(self) -> None:
        with open(self._read, encoding="utf-8", errors="replace") as lines:
            for text in lines:
                self._take(text.rstrip("\n"))

    def close(self) -> None:
        """Take what is still in the pipe. Whoever wrote to it has ended; a process that a stage
        left behind may not have, and is not waited for.
        """
        os.close(self.descriptor)
        self._thread.join(timeout=1.0)
