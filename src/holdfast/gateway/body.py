"""Bodies of requests: bounded, paced, never held as a whole.

Bytes of a chunk go from the socket to a thread that hashes and writes them, a piece at a time.
While one piece is written the next is received, and no more: the sender waits for the disk.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from starlette.requests import ClientDisconnect, Request

from holdfast._base.clock import Clock
from holdfast.blobs.contract import BlobWriter
from holdfast.errors import BodyTooLarge, FormatRefused, UploadSlow, UsageInvalid
from holdfast.gateway.desk import Desk, Room
from holdfast.gateway.limits import Pace
from holdfast.intake.limits import check_size

JSON_BYTES = 64 * 1024
"""Largest JSON body. A declaration of a thousand senders fits."""
_PIECE_BYTES = 256 * 1024
"""Bytes handed to a thread at once. Smaller: the change of threads shows. Larger: memory."""


class Body:
    """The body of one request."""

    def __init__(self, request: Request, *, limit: int, rate: int, clock: Clock) -> None:
        """Refuse at once what its head says is too long, or packed."""
        encoding = request.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            what = f"the body is packed ({encoding[:40]!r})"
            raise FormatRefused(what=what, remedy="Send it as it is, without Content-Encoding.")
        self.length = _length_of(request)
        self._limit = limit
        if self.length is not None:
            check_size(self.length, limit)
        self._request, self._clock = request, clock
        self._pace = Pace(rate)
        self._waits = request.headers.get("expect", "").lower() == "100-continue"
        self._ended = self.length == 0 and not self._waits

    @property
    def is_held_back(self) -> bool:
        """Whether the sender waits to hear that its body is wanted, and was not told so."""
        return self._waits

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the bytes as they come.

        Raises:
            BodyTooLarge, UploadSlow: more than allowed, or less in a while.
            ClientDisconnect: the sender is gone.
        """
        self._waits = False
        while not self._ended:
            with self._waiting():
                async with asyncio.timeout(self._pace.patience_s()):
                    message = await self._request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            piece: bytes = message.get("body", b"")
            self._pace.received += len(piece)
            check_size(self._pace.received, self._limit)
            self._ended = not message.get("more_body", False)
            if piece:
                yield piece

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Count the time that the sender takes, not ours."""
        begun_s = self._clock.monotonic_s()
        try:
            yield
        except TimeoutError as error:
            waited_s = self._pace.waited_s + self._clock.monotonic_s() - begun_s
            raise UploadSlow(
                received=self._pace.received, waited_s=round(waited_s), rate=self._pace.rate
            ) from error
        finally:
            self._pace.waited_s += self._clock.monotonic_s() - begun_s

    async def drain(self) -> None:
        """Take the rest and forget it, so that the sender can hear the answer.

        A sender that still waits to be told to go on is not: it hears the answer at once.
        """
        if not self._waits:
            with suppress(BodyTooLarge, UploadSlow, ClientDisconnect):
                async for _ in self.pieces():
                    pass

    async def json(self) -> Any:
        """Return the body as JSON; an empty one is an empty object."""
        data = b"".join([piece async for piece in self.pieces()])
        try:
            return json.loads(data.decode()) if data.strip() else {}
        except (ValueError, RecursionError) as error:
            what = f"the body is no JSON ({str(error)[:100]})"
            raise UsageInvalid(what=what, remedy="Send a JSON object.") from error

    async def write_to(self, desk: Desk, writer: BlobWriter, room: Room) -> None:
        """Write all of it, a piece in a thread while the next one comes.

        A body that did not say how long it is takes its room piece by piece.
        """
        under_way: asyncio.Future[None] | None = None
        held: list[bytes] = []
        size = 0

        async def write(pieces: list[bytes], size: int) -> None:
            await desk.disk(_write, writer, pieces)
            room.wrote(size)

        try:
            async for piece in self.pieces():
                held.append(piece)
                size += len(piece)
                if size >= _PIECE_BYTES:
                    if self.length is None:
                        room.take(size)
                    if under_way is not None:
                        await under_way
                    under_way = asyncio.ensure_future(write(held, size))
                    held, size = [], 0
            if under_way is not None:
                await under_way
            under_way = None
            if self.length is None:
                room.take(size)
            await write(held, size)
        finally:
            if under_way is not None:
                # The writer belongs to one thread at a time, also where this ends with an error.
                await asyncio.wait([under_way])


def _write(writer: BlobWriter, pieces: list[bytes]) -> None:
    for piece in pieces:
        writer.write(piece)


def _length_of(request: Request) -> int | None:
    text = request.headers.get("content-length")
    if text is None:
        return 0 if "transfer-encoding" not in request.headers else None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise UsageInvalid(what=f"Content-Length {text[:40]!r}", remedy="Send a number of bytes.")
    return int(text)
