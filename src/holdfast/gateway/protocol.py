"""A connection that may not dawdle: uvicorn's own, with limits on heads and on silence.

uvicorn waits for a request's head without end, and for as long a head as comes. Here:

* a head is complete `header_wait_s` after the connection or its first byte, or the line is cut;
* a head is at most `HEAD_BYTES` long, with at most `HEADERS` lines; so is whatever comes between
  two pieces of a body, or behind the last one (trailers);
* the rest of a body that was refused is thrown away for `LINGER_S`, so that the sender can hear
  the answer, then the line is cut;
* of more than `connections_max` connections the one that has asked nothing for longest goes.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 32 * 1024
"""Longest head. A token, a checksum and a path take one KiB."""
HEADERS = 100
LINGER_S = 3.0
"""Long enough for an answer to reach a sender that is still sending; short, as nothing of what
comes is of use."""
CLOSE = b"connection: close\r\n\r\n"


def guarded(header_wait_s: float, connections_max: int) -> type[HttpToolsProtocol]:
    """Return the class of connections with these limits."""

    class Guarded(_Guarded):
        wait_s = header_wait_s
        most = connections_max

    return Guarded


class _Guarded(HttpToolsProtocol):
    """One connection."""

    wait_s: float
    most: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._between_bytes = 0
        self._in_head = True
        self._timer: asyncio.TimerHandle | None = None
        self.since_s = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own
        """Begin to wait for a head; make room if there are too many."""
        super().connection_made(transport)
        self._arm(self.wait_s)
        if len(self.connections) > self.most:
            others = [one for one in self.connections if isinstance(one, _Guarded)]
            idle = [one for one in others if one.cycle is None or one.cycle.response_complete]
            min(idle, key=lambda one: one.since_s).cut()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; of a head not for ever, and not without end."""
        if self._in_head:
            self._head_bytes += len(data)
            if self._timer is None:
                self._arm(self.wait_s)
        else:
            self._between_bytes += len(data)
        super().data_received(data)
        if self._between_bytes > HEAD_BYTES:
            self._refuse(431, "the trailers of the request are too long")
        if self._in_head and self._head_bytes > HEAD_BYTES:
            self._refuse(431, "the head of the request is too long")

    def on_headers_complete(self) -> None:
        """The head is there: from now on the application says how long to wait."""
        self._in_head = False
        self._disarm()
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > HEAD_BYTES or len(self.headers) > HEADERS:
            self._refuse(431, "the head of the request is too long")
            raise ValueError("too long a head")  # stops the parser
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._between_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The body is there as a whole: the next thing to come is a head."""
        self._in_head, self._head_bytes, self._between_bytes = True, 0, 0
        self._disarm()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is out; whatever still comes of its body is of no use."""
        self.since_s = self.loop.time()
        super().on_response_complete()
        # Not where the next request is under way already: then the body that comes is its own.
        is_over = self.cycle.response_complete and not self.transport.is_closing()
        if is_over and not self._in_head:
            self._arm(LINGER_S)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP."""
        self._refuse(400, msg.rstrip("."))

    def _refuse(self, status: int, what: str) -> None:
        if self.transport.is_closing():
            return
        remedy = "See /openapi.json for what there is."
        facts = {"code": "USAGE_INVALID", "message": f"{what}. {remedy}", "what": what}
        body = json.dumps(facts | {"remedy": remedy}).encode()
        head = f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\n"
        self.transport.write(head.encode() + CLOSE + body)
        self.transport.close()

    def _arm(self, wait_s: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(wait_s, self.cut)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def cut(self) -> None:
        """End the connection: nobody is owed an answer."""
        self._disarm()
        if not self.transport.is_closing():
            self.transport.close()
