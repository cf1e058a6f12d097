"""The application: routes, and how errors leave it. Made by `make_app`, served by `serve`."""

from __future__ import annotations

from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast import __version__
from holdfast.errors import HoldfastError, PathUnknown, UsageInvalid
from holdfast.gateway import chunks, events, health, results, runs
from holdfast.gateway.desk import Desk
from holdfast.gateway.entrance import USE, TooMany
from holdfast.gateway.refusals import refusal

_WORDS = """Clients create runs, upload tables in chunks, watch, and fetch results. An answer of
200 or 201 comes after the commit; every request may be sent again."""


def make_app(desk: Desk) -> FastAPI:
    """Return the application of one gateway."""
    app = FastAPI(
        title="Holdfast",
        version=__version__,
        description=_WORDS,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.desk = desk
    for router in (runs.router, chunks.router, events.router, results.router, health.router):
        app.include_router(router)
    app.add_exception_handler(HoldfastError, _refused)
    app.add_exception_handler(TooMany, _too_many)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _no_such_path)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_middleware(Counted, desk=desk)
    return app


def _heard(request: Request, response: Response) -> Response:
    """Close the line behind an answer whose request still holds its body back."""
    if request.headers.get("expect", "").lower() == "100-continue":
        response.headers["Connection"] = "close"
    return response


async def _refused(request: Request, error: Exception) -> Response:
    ours = cast(HoldfastError, error)
    cast(Desk, request.app.state.desk).note(ours)
    return _heard(request, refusal(ours))


async def _too_many(request: Request, error: Exception) -> Response:
    many = cast(TooMany, error)
    return _heard(request, refusal(many.told, retry_s=many.wait_s))


async def _invalid(request: Request, error: Exception) -> Response:
    """Say what is wrong with a path, a query or a header, without saying it back."""
    first: dict[str, Any] = cast(RequestValidationError, error).errors()[0]
    place = " ".join(str(part) for part in first["loc"])
    told = UsageInvalid(what=f"{place[:100]}: {first['msg']}", remedy="Correct the request.")
    return _heard(request, refusal(told))


async def _no_such_path(request: Request, error: Exception) -> Response:
    status = cast(HTTPException, error).status_code
    what = "there is nothing here"
    if status == 405:
        what = f"this address takes no {request.method[:20]}"
    response = refusal(PathUnknown(what=what), status=status)
    if allow := (cast(HTTPException, error).headers or {}).get("Allow"):
        response.headers["Allow"] = allow
    return _heard(request, response)


async def _gone(request: Request, error: Exception) -> Response:
    """Nobody is there to hear it; an answer must be given all the same."""
    del request, error
    return Response(status_code=400)


class Counted:
    """Counts requests by the path of the API, never by what a client wrote into it."""

    def __init__(self, app: ASGIApp, desk: Desk) -> None:
        """Stand before the application."""
        self._app, self._desk = app, desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun_s = self._desk.clock.monotonic_s()
        status = 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            if use := scope.get(USE):
                self._desk.end_request(use)
            path = getattr(scope.get("route"), "path", "other")
            verb = scope["method"] if path != "other" else "any"
            self._desk.counts.requests[verb, path, status] += 1
            took_s = self._desk.clock.monotonic_s() - begun_s
            self._desk.counts.seconds[verb, path] += took_s  # type: ignore[assignment] # a sum of seconds
