"""Runs: create, look, say END, cancel."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel, ValidationError
from starlette.responses import JSONResponse, Response

from holdfast._base.crashpoint import crashpoint
from holdfast._base.ids import RunId
from holdfast.engine.barrier import is_complete
from holdfast.errors import RunUnknown, UsageInvalid
from holdfast.gateway.body import JSON_BYTES
from holdfast.gateway.desk import Desk
from holdfast.gateway.documents import document_with, pipeline_document, read_document
from holdfast.gateway.entrance import (
    AsClient,
    AtDesk,
    AtRun,
    Digits,
    SenderQuery,
    TablePath,
    body_of,
    standing,
)
from holdfast.gateway.models import (
    NAME,
    Creation,
    Ending,
    EndShape,
    PipelineShape,
    RunShape,
    RunsShape,
    json_body,
    refusals,
)
from holdfast.intake.opening import accept_opening, declare, make_opening, run_id_for
from holdfast.intake.upload import put_end
from holdfast.store.client_rows import Client, ClientRun, Opening
from holdfast.store.rows import End, NewRun

router = APIRouter(prefix="/v1", tags=["runs"])
LIST_MAX = 1000
_LIST_COST = 2000
"""Senders after which a page ends, whatever its limit is: each takes two queries, and a page holds
up one of the two threads that ask the store."""
_ROWS_AS_SENDER = 100
"""So many chunks, received or applied, count as another sender: each is a row."""
M = TypeVar("M", bound=BaseModel)


async def _checked(request: Request, desk: Desk, model: type[M]) -> M:
    """Return the JSON body in its shape."""
    found = await body_of(request, desk, JSON_BYTES).json()
    try:
        return model.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the body"
        what = f"{place[:100]}: {first['msg']}"
        raise UsageInvalid(what=what, remedy="Correct the body.") from error


async def _document(desk: Desk, found: ClientRun) -> dict[str, Any]:
    return await desk.read_long(found.run.client, read_document, desk.store, found, desk.spec)


@router.post(
    "/runs",
    status_code=201,
    response_model=None,
    responses={
        201: {"model": RunShape, "description": "The run is created."},
        200: {"model": RunShape, "description": "It was there, created with the same."},
        **refusals(408, 409, 410, 413, 415, 507),
    },
    openapi_extra=json_body(Creation),
)
async def create_run(
    request: Request,
    desk: AtDesk,
    client: AsClient,
    idempotency_key: Annotated[
        str, Header(pattern=NAME, description="The client's own name for the run.")
    ],
) -> Response:
    """Create a run. The same key again finds the same run."""
    body = await _checked(request, desk, Creation)
    opening = make_opening(client.client, idempotency_key, body.kind, body.senders)
    run = _as_declared(desk, client, opening, body)
    if await desk.read(desk.store.read_client_run, client.client, run.run_id) is None:
        # Only of a new run: whoever lost the answer of one that is there asks for it again.
        desk.check_disk(0)
    rule = accept_opening(desk.allowed(client).open_runs, run.run_id)
    created = await desk.write(desk.store.open_client_run, run, opening, rule)
    crashpoint("gateway.create.after")
    known = await desk.read(desk.store.read_client_run, client.client, run.run_id)
    found = standing(known, run.run_id)
    return JSONResponse(await _document(desk, found), 201 if created else 200)


def _as_declared(desk: Desk, client: Client, opening: Opening, body: Creation) -> NewRun:
    is_external = body.kind == "external"
    if is_external and not desk.producer:
        what = "this gateway has no producer of external results"
        raise UsageInvalid(what=what, remedy="Leave `kind` out.")
    return NewRun(
        run_id=run_id_for(client.client, opening.key),
        client=client.client,
        pipeline=desk.spec.name,
        fingerprint=desk.spec.fingerprint,
        segments=1 if is_external else len(desk.spec.segments),
        senders=declare(desk.spec.tables, body.senders, external=is_external),
        created_ms=desk.clock.wall_ms(),
        producer=desk.producer if is_external else "",
    )


@router.get(
    "/tables",
    response_model=None,
    responses={200: {"model": PipelineShape, "description": "The tables."}, **refusals()},
)
async def list_tables(desk: AtDesk, client: AsClient) -> Response:
    """List the tables that a run is made of: their columns, and which may stay empty."""
    del client
    return JSONResponse(pipeline_document(desk.spec))


@router.get(
    "/runs",
    response_model=None,
    responses={200: {"model": RunsShape, "description": "A page of runs."}, **refusals()},
)
async def list_runs(
    desk: AtDesk,
    client: AsClient,
    limit: Annotated[int, Digits, Query(ge=1, le=LIST_MAX)] = 100,
    after: Annotated[str | None, Query(pattern=NAME, description="The `next` of a page.")] = None,
) -> Response:
    """List the client's runs, oldest first. A page of large runs has fewer than `limit`."""

    def look() -> dict[str, Any]:
        place = RunId(after) if after else None
        found = desk.store.list_client_runs(client.client, after=place, count=limit + 1)
        runs: list[dict[str, Any]] = []
        cost = 0
        for one in found[:limit]:
            progress = desk.store.read_progress(one.run.run_id)
            runs.append(document_with(desk.store, one, progress, desk.spec))
            rows = sum(len(sender.received) + len(sender.applied) for sender in progress)
            cost += len(progress) + rows // _ROWS_AS_SENDER
            if cost >= _LIST_COST:
                break
        return {"runs": runs, "next": runs[-1]["run"] if len(runs) < len(found) else None}

    return JSONResponse(await desk.read_long(client.client, look))


@router.get(
    "/runs/{run}",
    response_model=None,
    responses={200: {"model": RunShape, "description": "The run."}, **refusals(404, 410)},
)
async def read_run(desk: AtDesk, found: AtRun) -> Response:
    """Look at a run: its state, and how far each sender of each table is."""
    return JSONResponse(await _document(desk, found))


@router.post(
    "/runs/{run}/cancel",
    response_model=None,
    responses={
        200: {"model": RunShape, "description": "Cancelled."},
        **refusals(404, 409, 410, 507),
    },
)
async def cancel_run(desk: AtDesk, client: AsClient, found: AtRun) -> Response:
    """Cancel a run: it takes and computes nothing more, and its results are void."""
    run = await desk.write(desk.store.cancel_run, client.client, found.run.run_id)
    crashpoint("gateway.cancel.after")
    if run is None:
        raise RunUnknown(run=found.run.run_id)
    return JSONResponse(await _document(desk, ClientRun(run, found.opening)))


@router.put(
    "/runs/{run}/tables/{table}/end",
    status_code=201,
    response_model=None,
    responses={
        201: {"model": EndShape, "description": "The END is recorded."},
        200: {"model": EndShape, "description": "It was there."},
        **refusals(404, 408, 409, 410, 413, 415, 507),
    },
    openapi_extra=json_body(Ending),
)
async def say_end(
    request: Request, desk: AtDesk, found: AtRun, table: TablePath, sender: SenderQuery = ""
) -> Response:
    """Say how many chunks a sender of a table sent, in all."""
    count = (await _checked(request, desk, Ending)).count
    end = End(table, sender, count)
    recorded = await desk.write(put_end, desk.store, found.run.run_id, end, is_complete)
    facts = {"table": table, "sender": sender, "count": count}
    return JSONResponse(facts, 201 if recorded else 200)
