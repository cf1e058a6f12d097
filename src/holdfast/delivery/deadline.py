"""One deadline for a whole attempt over HTTP.

A client's time-outs are of one read each: a receiver that sends a byte now and then is never late.
Here the line itself is shut when the time is up, whoever waits on it.

Not covered: the lookup of a name, and of its addresses all but the first, each of which is tried
for one time-out.
"""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Any, Self

_CONNECTED = "connection.connect_tcp.complete"


class Deadline:
    """Shuts the line that an attempt makes, once its time is up.

    `trace` goes to the request, as its extension of that name. The request must make a line of its
    own: one that is kept from before is not seen here.
    """

    def __init__(self, limit_s: float) -> None:
        """Begin to count with the `with` block."""
        self._guard = threading.Lock()
        self._line: socket.socket | None = None
        self._is_over = False
        self._timer = threading.Timer(limit_s, self._end)
        self._timer.daemon = True

    @property
    def is_over(self) -> bool:
        """Tell whether the time was up before the attempt was."""
        return self._is_over

    def trace(self, event: str, facts: dict[str, Any]) -> None:
        """Take note of the line, by a handle of our own: TLS takes the first one over."""
        if event == _CONNECTED:
            with self._guard:
                self._line = facts["return_value"].get_extra_info("socket").dup()
                if self._is_over:
                    self._shut()

    def __enter__(self) -> Self:
        """Count from here on."""
        self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Count no more."""
        self._timer.cancel()
        with self._guard:
            if self._line is not None:
                self._line.close()
                self._line = None

    def _end(self) -> None:
        with self._guard:
            self._is_over = True
            self._shut()

    def _shut(self) -> None:
        """Wake up whoever reads or writes: they find that the line has ended."""
        if self._line is not None:
            try:
                self._line.shutdown(socket.SHUT_RDWR)
            except OSError:  # its other end was quicker
                return
