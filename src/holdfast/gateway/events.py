"""Server-sent events: a run's document whenever it changed, until the run has ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast.errors import QuotaReached, TokenRefused
from holdfast.gateway.desk import Desk, Use
from holdfast.gateway.documents import read_document
from holdfast.gateway.entrance import AsClient, AtDesk, AtRun, Credentials
from holdfast.gateway.limits import STREAMS_AT_ONCE
from holdfast.gateway.models import refusals
from holdfast.intake.tokens import client_of
from holdfast.store.client_rows import ClientRun
from holdfast.store.rows import CLOSED_STATES

router = APIRouter(prefix="/v1", tags=["runs"])

_LOOK_S = 0.25
"""Between two looks at a run. Shorter: the store is asked for nothing. Longer: people notice."""
_LOOK_SHARE = 20
"""A look that took long is repeated after so many times as long: it may cost a twentieth of a
thread."""
_BEAT_S = 5.0
"""Between two signs of life. Proxies and senders give up on a line that is silent for long."""

_IDLE_STEP_S = 60
"""A run to which nothing happens is told again after so long. Shorter: documents for nothing, and
each may be large. Longer: who watches learns late that it waits."""


@router.get(
    "/runs/{run}/events",
    response_model=None,
    responses={
        200: {
            "description": "The run's document at once, and whenever it changed.",
            "content": {
                "text/event-stream": {
                    "schema": {"type": "string"},
                    "example": 'id: 1\nevent: run\ndata: {"run": "0f2e", "state": "OPEN"}\n\n',
                }
            },
        },
        **refusals(404, 410),
    },
)
async def watch_run(
    request: Request,
    desk: AtDesk,
    client: AsClient,
    found: AtRun,
    credentials: Credentials,
    last_event_id: Annotated[str, Header(pattern="^[0-9]{0,18}$")] = "",
) -> Response:
    """Watch a run. The stream ends after its last state."""
    use = desk.use_of(client)
    if use.streams >= STREAMS_AT_ONCE:
        raise QuotaReached(what="streams at once", used=use.streams, limit=STREAMS_AT_ONCE)
    number = int(last_event_id or 0)
    token = credentials.credentials if credentials else ""
    use.streams += 1
    return _Stream(
        use,
        _events(request, desk, token, found, number),
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        media_type="text/event-stream",
    )


class _Stream(StreamingResponse):
    """An answer that counts as one of its client's streams until it has ended, however it does."""

    def __init__(self, use: Use, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._use = use

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._use.streams -= 1


async def _events(
    request: Request, desk: Desk, token: str, found: ClientRun, number: int
) -> AsyncIterator[bytes]:
    told: dict[str, Any] = {}
    told_s = 0.0
    while not desk.closing and not await request.is_disconnected():
        begun_s = desk.clock.monotonic_s()
        now = await desk.read_long(found.run.client, _look, desk, token, found)
        if now is None:
            return
        took_s = desk.clock.monotonic_s() - begun_s
        stepped = {**now, "idle_s": now["idle_s"] // _IDLE_STEP_S}
        if stepped != told:
            number += 1
            told, told_s = stepped, begun_s
            yield f"id: {number}\nevent: run\ndata: {json.dumps(now)}\n\n".encode()
            if now["state"] in CLOSED_STATES:
                return
        elif begun_s - told_s >= _BEAT_S:
            told_s = begun_s
            yield b": beat\n\n"
        await asyncio.sleep(max(_LOOK_S, _LOOK_SHARE * took_s))


def _look(desk: Desk, token: str, found: ClientRun) -> dict[str, Any] | None:
    """Return the run's document. None: the token that the stream was opened with has ended."""
    try:
        client = client_of(desk.store, token)
    except TokenRefused:
        return None
    again = desk.store.read_client_run(client.client, found.run.run_id)
    return read_document(desk.store, again or found, desk.spec)
