"""Chunks: from the socket to a bound blob.

1. What is known is looked at before the body: a chunk that is there, a conflict, a run that takes
   nothing more, a quota, a backlog, a full disk are answered without writing a byte; of a body that
   does not say how long it is, the last three are asked for each piece too.
2. The bytes go to a blob under a temporary name, piece by piece, and are made durable under their
   own. Crash after: an orphan; the sender was told nothing.
3. One transaction binds the blob: only here is it decided. Crash after: the sender sends again and
   is told that it is there.
4. The answer. Crash before: as 3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Header, Request
from starlette.responses import JSONResponse, Response

from holdfast._base.ids import Ordinal, RunId
from holdfast.blobs.contract import BlobInfo
from holdfast.engine.barrier import is_complete
from holdfast.errors import (
    BodyTooLarge,
    DiskFull,
    FormatRefused,
    HoldfastError,
    RunUnknown,
    UploadSlow,
)
from holdfast.gateway.body import Body
from holdfast.gateway.desk import Desk, Room
from holdfast.gateway.entrance import (
    AsClient,
    AtDesk,
    AtRun,
    OrdinalPath,
    SenderQuery,
    TablePath,
    body_of,
)
from holdfast.gateway.limits import UPLOADS_AT_ONCE
from holdfast.gateway.models import ChunkShape, refusals
from holdfast.intake.limits import check_run_chunks
from holdfast.intake.rules import accept_chunk
from holdfast.intake.upload import Looked, begin_upload, bind_upload, look_at, remove_upload
from holdfast.store.client_rows import Client
from holdfast.store.rows import Chunk, ChunkKind

router = APIRouter(prefix="/v1", tags=["chunks"])

TYPES = {
    "text/csv": "csv",
    "application/x-ndjson": "json",
    "application/vnd.apache.parquet": "parquet",
    "application/octet-stream": "binaryFile",
}
_SHA256 = r"^[0-9a-fA-F]{64}$"
_BODY = {
    "requestBody": {
        "required": True,
        "description": "One whole document.",
        "content": {
            "text/csv": {
                "schema": {"type": "string"},
                "example": "transaction_id,store_id\nt1,3\n",
            },
            "application/x-ndjson": {"schema": {"type": "string"}, "example": '{"id": 1}\n'},
            "application/vnd.apache.parquet": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


@router.put(
    "/runs/{run}/tables/{table}/chunks/{ordinal}",
    status_code=201,
    response_model=None,
    responses={
        201: {"model": ChunkShape, "description": "The chunk is bound, and durable."},
        200: {"model": ChunkShape, "description": "It was there."},
        **refusals(404, 408, 409, 410, 413, 415, 422, 507),
    },
    openapi_extra=_BODY,
)
async def put_chunk(
    request: Request,
    desk: AtDesk,
    client: AsClient,
    found: AtRun,
    table: TablePath,
    ordinal: OrdinalPath,
    holdfast_checksum: Annotated[
        str, Header(pattern=_SHA256, description="SHA-256 of the body, in hexadecimal.")
    ],
    sender: SenderQuery = "",
) -> Response:
    """Put one chunk of a table. The same one again is acknowledged again."""
    body = body_of(request, desk, desk.allowed(client).chunk_bytes)
    chunk = Chunk(
        table=table,
        sender=sender,
        ordinal=Ordinal(ordinal),
        kind=ChunkKind.BLOB,
        location="",
        size=0,
        checksum=holdfast_checksum.lower(),
        format=_format_of(request, desk, table),
    )
    try:
        stored, is_new = await _put(desk, client, found.run.run_id, chunk, body)
    except HoldfastError as error:
        desk.counts.chunks["refused"] += 1
        if not isinstance(error, (BodyTooLarge, UploadSlow)):
            await body.drain()
        raise
    desk.counts.chunks["bound" if is_new else "repeated"] += 1
    headers = {"Connection": "close"} if body.is_held_back else {}
    facts = {"table": table, "sender": sender, "ordinal": ordinal}
    facts |= {"size": stored.size, "checksum": stored.checksum}
    return JSONResponse(facts, 201 if is_new else 200, headers)


async def _put(
    desk: Desk, client: Client, run_id: RunId, chunk: Chunk, body: Body
) -> tuple[Chunk, bool]:
    """Return the chunk as it is bound, and whether it was this request that bound it."""
    look = await desk.read(desk.store.look_at_chunk, client.client, run_id, chunk)
    if look is None:
        raise RunUnknown(run=run_id)
    if not accept_chunk(chunk, look.facts) and look.facts.stored is not None:
        await body.drain()
        return look.facts.stored, False
    use = await desk.fresh_use(client)
    check_run_chunks(desk.allowed(client), look)
    with desk.upload(client, look, UPLOADS_AT_ONCE) as room:
        info = await _receive(desk, run_id, chunk, body, room)
        looked = await _looked(desk, chunk, info)
        is_new = await _bound(desk, run_id, chunk, info, looked)
    use.stored += info.size
    use.backlog += 0 if look.whole else info.size
    desk.counts.chunk_bytes += info.size
    return replace(chunk, size=info.size), is_new


async def _bound(desk: Desk, run_id: RunId, chunk: Chunk, info: BlobInfo, looked: Looked) -> bool:
    """Bind an upload; False: its chunk was there. If the store has no room, it is removed."""
    try:
        return await desk.write(
            bind_upload,
            *(desk.store, desk.blobs, run_id, chunk, info),
            barrier=is_complete,
            looked=looked,
        )
    except DiskFull:
        # The transaction was undone, else it were STORAGE_FAILED; and there is no room for the mark
        # of a condemned blob either. Kept, it would take what others make room for.
        await desk.disk(desk.blobs.delete, info.name)
        raise


async def _looked(desk: Desk, chunk: Chunk, info: BlobInfo) -> Looked:
    """Look at an upload. One that cannot be judged is removed: nothing counts its bytes."""
    # Not by the one thread that binds: a footer may take a while. Nothing else waits behind those.
    look = desk.look if chunk.format == "parquet" else desk.disk
    try:
        return await look(look_at, desk.documents.check, desk.blobs, chunk, info)
    except BaseException:  # whatever it was, it is raised again: only the upload must not stay
        await desk.write(remove_upload, desk.store, desk.blobs, info.name)
        raise


async def _receive(desk: Desk, run_id: RunId, chunk: Chunk, body: Body, room: Room) -> BlobInfo:
    """Write the body to a blob of its own, durably. Cut short, it leaves nothing."""
    room.take(body.length or 0)
    writer = await desk.disk(begin_upload, desk.blobs, run_id, chunk)
    try:
        await body.write_to(desk, writer, room)
        return await desk.disk(writer.finish)
    finally:
        await desk.disk(writer.abandon)


def _format_of(request: Request, desk: Desk, table: str) -> str:
    """Return the format of the body, by its type; one that the table cannot be read from is
    refused.
    """
    sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    allowed = {kind: TYPES[kind] for kind in TYPES if TYPES[kind] in desk.documents.formats(table)}
    if sent not in allowed:
        what = f"the body's Content-Type is {sent[:80]!r}"
        raise FormatRefused(what=what, remedy=f"Send {' or '.join(allowed)}.")
    return allowed[sent]
