"""What may be asked without a token: is it alive, is it ready, what did it count."""

from __future__ import annotations

import ipaddress

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from holdfast.errors import HoldfastError, TokenRefused
from holdfast.gateway.desk import Desk
from holdfast.gateway.entrance import AtDesk, Credentials
from holdfast.gateway.metrics import counted, standing
from holdfast.gateway.models import Refusal

router = APIRouter(tags=["health"])
_FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-proto", "x-real-ip")
"""What proxies say of whom they ask for. One that says nothing cannot be told from this machine."""
_TEXT = {"text/plain": {"schema": {"type": "string"}}}


@router.get("/healthz", response_model=None, responses={200: {"content": _TEXT}})
async def healthz() -> Response:
    """Tell that the process answers."""
    return PlainTextResponse("ok\n")


@router.get(
    "/readyz",
    response_model=None,
    responses={
        200: {"content": _TEXT},
        503: {"model": Refusal, "description": "The store does not answer, or the disk is full."},
    },
)
async def readyz(desk: AtDesk) -> Response:
    """Tell whether uploads would be taken: the store answers, and there is room on the disk."""
    try:
        await desk.read(desk.store.store_id)
        desk.check_disk(0)
    except HoldfastError as error:
        facts = {"code": error.code, "message": "uploads are refused for now"}
        return JSONResponse(facts, 503)
    return PlainTextResponse("ready\n")


@router.get(
    "/metrics",
    response_model=None,
    responses={
        200: {"content": _TEXT, "description": "Prometheus' text format."},
        401: {"model": Refusal, "description": "Not from this machine, and no token for it."},
    },
)
async def metrics(request: Request, desk: AtDesk, credentials: Credentials) -> Response:
    """Tell what was counted: to this machine, or to the client that the operator chose."""
    if not _is_local(request):
        await _require_reader(desk, credentials.credentials if credentials else "")
    text = counted(desk.counts) + await desk.read(standing, desk)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def _is_local(request: Request) -> bool:
    """Tell whether the request comes from this machine, and through no proxy."""
    if request.client is None or any(name in request.headers for name in _FORWARDED):
        return False
    try:
        return ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


async def _require_reader(desk: Desk, token: str) -> None:
    if desk.metrics_client is None or not token:
        raise TokenRefused(what="metrics are for this machine, or for the client chosen for them")
    client = await desk.open_door(token)
    if client.client != desk.metrics_client:
        raise TokenRefused(what="this client may not read metrics")
