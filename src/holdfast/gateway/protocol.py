"""A connection that may not dawdle: uvicorn's own, with limits on heads and on silence.

uvicorn waits for a request's head without end, for as long a head as comes, and for a client that
does not read its answer. Here:

* a head is complete `header_wait_s` after the connection or its first byte, or the line is cut; a
  handshake of TLS has the same time before it;
* a head is at most `HEAD_BYTES` long, with at most `HEADERS` lines; so is whatever comes between
  two pieces of a body, or behind the last one (trailers);
* the rest of a body that was refused is thrown away for `LINGER_S`, so that the sender can hear
  the answer, then the line is cut;
* a client that takes nothing of an answer for `answer_wait_s` is cut off, also where the line was
  to be closed behind that answer;
* at most `PIPELINED` requests of a line wait for their turn;
* of more than `connections_max` connections, those in their handshake too, the one that has asked
  nothing for longest goes; if all asked, the one that has read nothing of its answer for longest.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from asyncio.sslproto import SSLProtocol
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 32 * 1024
"""Longest head. A token, a checksum and a path take one KiB."""
HEADERS = 100
LINGER_S = 3.0
"""Long enough for an answer to reach a sender that is still sending; short, as nothing of what
comes is of use."""
PIPELINED = 16
"""Requests that a client sends before it has heard the answers to those before. Each is kept in
memory; real clients send one."""
_LOOKS = 8
"""Looks at whether an answer goes out, in the time that it may stand still. Fewer: it may stand
still for that much longer. More: each is a timer of each line."""
CLOSE = b"connection: close\r\n\r\n"


def guarded(header_wait_s: float, answer_wait_s: float, connections_max: int) -> type[_Guarded]:
    """Return the class of connections with these limits."""

    class Guarded(_Guarded):
        wait_s = header_wait_s
        unread_s = answer_wait_s
        most = connections_max

    return Guarded


def secured(guarded: type[_Guarded], context: ssl.SSLContext) -> type[SSLProtocol]:
    """Return the class of such connections over TLS, for a server that itself knows of none.

    A server with TLS tells of a connection behind its handshake only. No limit of ours would hold
    before, while each that says nothing takes a file and a quarter of a MiB.
    """

    class Secured(SSLProtocol):
        def __init__(self, **given: Any) -> None:
            self._line = guarded(**given)
            super().__init__(
                asyncio.get_running_loop(),
                self._line,
                context,
                None,  # type: ignore[arg-type] # nobody waits for the handshake
                server_side=True,
                ssl_handshake_timeout=guarded.wait_s,  # type: ignore[arg-type] # parts of seconds, too
            )

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._line.accepted(cast(asyncio.Transport, transport))
            super().connection_made(transport)

        def connection_lost(self, exc: BaseException | None) -> None:
            super().connection_lost(exc)
            line = self._line
            del self._line  # or both would stay in memory, each for the other
            if not line.is_made:
                line.connection_lost(cast(Exception | None, exc))

    return Secured


class _Guarded(HttpToolsProtocol):
    """One connection."""

    wait_s: float
    unread_s: float
    most: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._between_bytes = 0
        self._in_head = True
        self._timer: asyncio.TimerHandle | None = None
        self._looker: asyncio.TimerHandle | None = None
        self._unsent = 0
        self.is_made = self.is_lost = False
        self.since_s = self._sent_s = self.loop.time()

    def accepted(self, transport: asyncio.Transport) -> None:
        """Begin to wait for what comes first; make room if there are too many."""
        self.transport = transport
        self.connections.add(self)
        self._arm(self.wait_s)
        self._make_room()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own
        """Begin to wait for a head."""
        if self not in self.connections:
            self.accepted(transport)
        self.is_made = True
        super().connection_made(transport)
        self._arm(self.wait_s)
        self._look_again()

    def _make_room(self) -> None:
        """Cut one line if there are too many: this one only where all others are of use."""
        found = [one for one in self.connections if isinstance(one, _Guarded)]
        others = [one for one in found if one is not self and not one.is_lost]
        if len(others) < self.most:
            return
        idle = [one for one in others if one.cycle is None or one.cycle.response_complete]
        # The second is not asked for while a line is in its handshake: that one is idle.
        found = idle or [one for one in others if one.flow.write_paused] or [self]
        min(found, key=lambda one: one.since_s).lose()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._disarm()
        if self._looker is not None:
            self._looker.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """So much of the answer is not read that no more of it is made."""
        self.since_s = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """Enough of the answer was read."""
        self._sent_s = self.loop.time()
        super().resume_writing()

    def _look_again(self) -> None:
        self._looker = self.loop.call_later(self.unread_s / _LOOKS, self._look)

    def _look(self) -> None:
        """End the connection if nothing of an answer has gone out for too long."""
        unsent = self.transport.get_write_buffer_size()
        if unsent == 0 or unsent < self._unsent:
            self._sent_s = self.loop.time()
        self._unsent = unsent
        if self.loop.time() - self._sent_s >= self.unread_s:
            self.lose()
        else:
            self._look_again()

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
        if len(self.pipeline) >= PIPELINED:
            self.lose()
            raise ValueError("too many requests at once")  # stops the parser
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._between_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The body is there as a whole: the next thing to come is a head."""
        self._in_head, self._head_bytes, self._between_bytes = True, 0, 0
        self._disarm()
        if self.cycle.response_complete:
            # Its answer is out already, and with this body uvicorn forgot to wait for a request.
            self._arm(self.wait_s)
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
        """End the connection behind what is still to be sent: nobody is owed another answer."""
        self._disarm()
        if not self.transport.is_closing():
            self.transport.close()

    def lose(self) -> None:
        """End the connection at once: what is not sent is lost, or it might never be read."""
        self.is_lost = True
        if self.transport.get_write_buffer_size():
            # Or the system keeps what it has of the answer, up to megabytes, for minutes.
            self.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        self.transport.abort()
