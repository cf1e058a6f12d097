"""A run's events, over as many connections as it takes."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator

from holdfast.client.answers import RunInfo, run_info
from holdfast.client.door import Door
from holdfast.client.sse import SentEvent, read_events
from holdfast.errors import ServerRefused

_AGAIN_S = 0.2
"""Between two streams, where the server ended the first: it is about to be replaced."""


def follow(door: Door, path: str) -> Iterator[RunInfo]:
    """Yield a run's description now and whenever it changes, up to its final state.

    A stream that breaks, or ends before that state, is asked for again, from the last event on.
    """
    reader = _Reader(door, path)
    try:
        while True:
            event = door.try_again(reader.next_event, progress=lambda: reader.seen)
            info = run_info(_document(event))
            yield info
            if info.is_final:
                return
    finally:
        reader.close()


class _Reader:
    """One stream at a time."""

    def __init__(self, door: Door, path: str) -> None:
        self._door, self._path = door, path
        self._events: Generator[SentEvent, None, None] | None = None
        self._last = ""
        self.seen = 0

    def next_event(self) -> SentEvent:
        """Return the next event; a broken stream is forgotten, and the next call opens another."""
        try:
            while True:
                if self._events is None:
                    self._events = self._open()
                if (event := next(self._events, None)) is not None:
                    break
                # The server ended the stream: it is being replaced. Another one is asked soon.
                self.close()
                self._door.pause(_AGAIN_S)
        except BaseException:  # whatever it was, it is raised again: this stream is of no more use
            self.close()
            raise
        self._last, self.seen = event.id or self._last, self.seen + 1
        return event

    def _open(self) -> Generator[SentEvent, None, None]:
        headers = {"Accept": "text/event-stream"}
        if self._last:
            headers["Last-Event-ID"] = self._last
        with self._door.stream(self._path, headers) as response:
            yield from read_events(response.iter_lines())

    def close(self) -> None:
        """Forget the stream."""
        if self._events is not None:
            self._events.close()
            self._events = None


def _document(event: SentEvent) -> dict[str, object]:
    try:
        found = json.loads(event.data)
    except ValueError as error:
        what = "an event that is no JSON document"
        raise ServerRefused(status=200, what=what) from error
    return found if isinstance(found, dict) else {}
