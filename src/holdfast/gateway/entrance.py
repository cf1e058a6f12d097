"""Who asks, and which run is meant: the first steps of every request that carries a token."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Path, Query, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BeforeValidator

from holdfast._base.ids import RunId
from holdfast.errors import QuotaReached, RunGone, RunUnknown, TokenRefused
from holdfast.gateway.body import Body
from holdfast.gateway.desk import Desk
from holdfast.gateway.limits import RETRY_REQUESTS_S
from holdfast.gateway.models import NAME, ORDINAL_MAX
from holdfast.store.client_rows import Client, ClientRun
from holdfast.store.rows import RunState

_bearer = HTTPBearer(auto_error=False, description="A token of `holdfast client add NAME`.")


USE = "holdfast.use"
"""Where a request's scope names the client's use that it is counted in, until it ends."""


class TooMany(Exception):
    """A client sends more requests than it may: what it is told, and when to come back."""

    def __init__(self, told: QuotaReached, wait_s: float) -> None:
        super().__init__()
        self.told, self.wait_s = told, wait_s


def desk_of(request: Request) -> Desk:
    """Return what the application was made with."""
    return cast(Desk, request.app.state.desk)


AtDesk = Annotated[Desk, Depends(desk_of)]
Credentials = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]


async def client_at(request: Request, desk: AtDesk, credentials: Credentials) -> Client:
    """Return the client whose token the request carries, if it may send one more now.

    The store is asked each time: a token that was revoked a moment ago opens nothing.
    """
    if credentials is None:
        raise TokenRefused(what="the request carries no token")
    client = await desk.open_door(credentials.credentials)
    if wait_s := desk.wait_s(client):
        rate = desk.allowed(client).request_rate
        raise TooMany(QuotaReached(what="requests a second", used=rate + 1, limit=rate), wait_s)
    try:
        request.scope[USE] = desk.begin_request(client)
    except QuotaReached as error:
        raise TooMany(error, RETRY_REQUESTS_S) from error
    return client


AsClient = Annotated[Client, Depends(client_at)]
RunPath = Annotated[str, Path(pattern=NAME, description="A run's id.")]
TablePath = Annotated[str, Path(pattern=NAME, description="An input of the pipeline.")]
SeriesPath = Annotated[str, Path(pattern=NAME, description="A result of the pipeline.")]


def _digits(value: object) -> object:
    """Refuse what Python takes for a number and nobody writes: `1_0`, `+1`, `1.0`."""
    if isinstance(value, str) and not (value.isascii() and value.isdecimal()):
        raise ValueError("a number is written by digits alone")
    return value


Digits = BeforeValidator(_digits)
OrdinalPath = Annotated[int, Digits, Path(ge=1, le=ORDINAL_MAX, description="Counts from 1.")]
SenderQuery = Annotated[
    str,
    Query(pattern=r"^[A-Za-z0-9_-]{0,64}$", description="Left out: the table's default sender."),
]


async def run_at(desk: AtDesk, client: AsClient, run: RunPath) -> ClientRun:
    """Return the run that is meant.

    Raises:
        RunUnknown: this client has none such, whoever else has.
        RunGone: it is swept.
    """
    return standing(await desk.read(desk.store.read_client_run, client.client, RunId(run)), run)


def standing(found: ClientRun | None, run: str) -> ClientRun:
    """Return a run as it was found.

    Raises:
        RunUnknown, RunGone: as of `run_at`.
    """
    if found is None:
        raise RunUnknown(run=run)
    if found.run.state == RunState.SWEPT:
        raise RunGone(run=run, state=found.run.state)
    return found


AtRun = Annotated[ClientRun, Depends(run_at)]


def body_of(request: Request, desk: Desk, limit: int) -> Body:
    """Return the body of a request, with its limits."""
    return Body(request, limit=limit, rate=desk.config.upload_rate_bytes, clock=desk.clock)
