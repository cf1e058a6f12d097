"""How errors become answers: a status, and a body with the code, the message and the facts.

Whose fault it is decides what is told. A caller hears everything about its own mistake. What the
machine or its files did is told by code alone: paths and reasons are for the operator's log.
"""

from __future__ import annotations

import math
from typing import Any

from starlette.responses import JSONResponse

from holdfast.errors import (
    BacklogFull,
    BodyTooLarge,
    CallerError,
    ChunkConflict,
    DiskFull,
    DiskNearlyFull,
    DocumentRefused,
    EndConflict,
    EnvironmentFailed,
    FormatRefused,
    HoldfastError,
    PathUnknown,
    PieceUnknown,
    QuotaReached,
    RunClosed,
    RunConflict,
    RunGone,
    RunUnknown,
    TokenRefused,
    UploadSlow,
)
from holdfast.gateway.limits import RETRY_BACKLOG_S, RETRY_DISK_S, RETRY_QUOTA_S

STATUS: dict[type[HoldfastError], int] = {
    TokenRefused: 401,
    PathUnknown: 404,
    RunUnknown: 404,
    PieceUnknown: 404,
    UploadSlow: 408,
    RunConflict: 409,
    ChunkConflict: 409,
    EndConflict: 409,
    RunClosed: 409,
    RunGone: 410,
    BodyTooLarge: 413,
    FormatRefused: 415,
    DocumentRefused: 422,
    QuotaReached: 429,
    BacklogFull: 429,
    DiskNearlyFull: 429,
    DiskFull: 507,
    EnvironmentFailed: 503,
    CallerError: 400,
    HoldfastError: 500,
}
"""Class of an error -> status; that of its nearest ancestor counts."""
_RETRY_S: dict[type[HoldfastError], int] = {
    QuotaReached: RETRY_QUOTA_S,
    BacklogFull: RETRY_BACKLOG_S,
    DiskFull: RETRY_DISK_S,
    EnvironmentFailed: RETRY_BACKLOG_S,
}
_QUIET = "the server cannot do that now; its operator finds the reason in its log"


def status_of(error: HoldfastError) -> int:
    """Return the status of an error."""
    return next(STATUS[cls] for cls in type(error).__mro__ if cls in STATUS)


def is_quiet(error: HoldfastError) -> bool:
    """Tell whether an error is for the operator, and not for whoever asked."""
    return not isinstance(error, CallerError)


def body_of(error: HoldfastError) -> dict[str, Any]:
    """Return what is told of an error."""
    if is_quiet(error):
        return {"code": error.code, "message": _QUIET}
    message = " ".join(str(error).removeprefix(f"[{error.code}] ").split())
    return {"code": error.code, "message": message, **error.facts()}


def refusal(
    error: HoldfastError, *, status: int | None = None, retry_s: float | None = None
) -> JSONResponse:
    """Return an error as an answer."""
    headers = {}
    if retry_s is None:
        retry_s = next((_RETRY_S[cls] for cls in type(error).__mro__ if cls in _RETRY_S), None)
    if retry_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(retry_s)))
    if isinstance(error, TokenRefused):
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body_of(error), status or status_of(error), headers)
