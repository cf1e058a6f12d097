"""Results: the list, the bytes of a piece or of a file, a whole CSV series as one document."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse

from holdfast._base.files import os_errors
from holdfast._base.ids import Ordinal
from holdfast.delivery.export import header_line
from holdfast.errors import Damaged, PieceUnknown
from holdfast.gateway.desk import Desk
from holdfast.gateway.documents import results_document
from holdfast.gateway.entrance import AtDesk, AtRun, OrdinalPath, SeriesPath
from holdfast.gateway.models import ResultsShape, refusals
from holdfast.store.result_rows import PlaceKind, ResultPiece

router = APIRouter(prefix="/v1", tags=["results"])

_PIECE_BYTES = 256 * 1024
_TYPES = {"csv": "text/csv", "parquet": "application/vnd.apache.parquet"}
_BYTES = {"schema": {"type": "string", "format": "binary"}}
_OF_PIECES = dict.fromkeys((*_TYPES.values(), "application/octet-stream"), _BYTES)


class _PieceResponse(FileResponse):
    """A file, with ranges, in larger pieces than usual."""

    chunk_size = _PIECE_BYTES


@router.get(
    "/runs/{run}/results",
    response_model=None,
    responses={200: {"model": ResultsShape, "description": "Results."}, **refusals(404, 410)},
)
async def list_results(desk: AtDesk, found: AtRun) -> Response:
    """List a run's results, and the pieces of each in order."""
    run = found.run
    results = await desk.read_long(run.client, desk.store.read_results, run.run_id)
    return JSONResponse(results_document(found.run, results))


@router.get(
    "/runs/{run}/results/{series}",
    response_model=None,
    responses={
        200: {"description": "CSV with a header line.", "content": {"text/csv": _BYTES}},
        **refusals(404, 410),
    },
)
async def read_series(desk: AtDesk, found: AtRun, series: SeriesPath) -> Response:
    """Fetch a whole series as one CSV with a header line: the bytes of `holdfast run --out`. Of
    Parquet there is no such document: fetch its files.
    """
    run = found.run
    results = await desk.read_long(run.client, desk.store.read_results, run.run_id)
    one = next((one for one in results if one.series == series), None)
    if one is None or one.ordered is None:
        raise PieceUnknown(run=run.run_id, what=f"complete result {series}")
    if any(file.format != "csv" for file in one.ordered):
        raise PieceUnknown(run=run.run_id, what=f"result {series} as one CSV")
    head = header_line(one.columns)
    paths = [(piece, await _path(desk, piece)) for piece in one.ordered]
    size = len(head) + sum(piece.size for piece, _ in paths)
    headers = {"Content-Length": str(size)}
    return StreamingResponse(_whole(desk, head, paths), headers=headers, media_type="text/csv")


@router.get(
    "/runs/{run}/results/{series}/{ordinal}",
    response_model=None,
    responses={
        200: {"description": "The piece.", "content": _OF_PIECES},
        206: {"description": "A part of it.", "content": _OF_PIECES},
        416: {"description": "No such part."},
        **refusals(404, 410),
    },
)
async def read_piece(
    request: Request, desk: AtDesk, found: AtRun, series: SeriesPath, ordinal: OrdinalPath
) -> Response:
    """Fetch the bytes of one piece. Takes `Range`; `ETag` is its SHA-256."""
    run_id = found.run.run_id
    piece = await desk.read(desk.store.read_result_piece, run_id, series, Ordinal(ordinal))
    if piece is None:
        raise PieceUnknown(run=run_id, what=f"piece {ordinal} of result {series}")
    return await _bytes_of(request, desk, piece)


@router.get(
    "/runs/{run}/results/{series}/files/{ordinal}",
    response_model=None,
    responses={
        200: {"description": "The file.", "content": _OF_PIECES},
        206: {"description": "A part of it.", "content": _OF_PIECES},
        416: {"description": "No such part."},
        **refusals(404, 410),
    },
)
async def read_file(
    request: Request, desk: AtDesk, found: AtRun, series: SeriesPath, ordinal: OrdinalPath
) -> Response:
    """Fetch one file of a whole series in its declared order: Parquet, or CSV without a header
    line.
    """
    run_id = found.run.run_id
    read = desk.store.read_result_piece
    file = await desk.read(read, run_id, series, Ordinal(ordinal), ordered=True)
    if file is None:
        raise PieceUnknown(run=run_id, what=f"file {ordinal} of result {series}")
    return await _bytes_of(request, desk, file)


async def _bytes_of(request: Request, desk: Desk, piece: ResultPiece) -> Response:
    """Answer with a file, checked as it leaves. Of a part nothing is known by the whole's checksum,
    and to read the whole for each part could cost as much as a client likes.
    """
    path = await _path(desk, piece)
    headers = {"ETag": f'"{piece.checksum}"', "Holdfast-Checksum": piece.checksum}
    kind = _TYPES.get(piece.format, "application/octet-stream")
    if "range" in request.headers:
        return _PieceResponse(path, headers=headers, media_type=kind)
    headers |= {"Content-Length": str(piece.size), "Accept-Ranges": "bytes"}
    return StreamingResponse(_whole(desk, b"", [(piece, path)]), headers=headers, media_type=kind)


async def _path(desk: Desk, piece: ResultPiece) -> Path:
    """Return the file of a piece, if it is as long as it should be."""
    if piece.place is PlaceKind.BLOB:
        path = Path(desk.blobs.location(piece.location))
    else:
        path = desk.directory.root / piece.location
    size = await desk.disk(_size_of, path)
    if size != piece.size:
        what = "a piece of a result is missing" if size is None else f"it has {size} bytes"
        raise Damaged(path=str(path), what=what)
    return path


def _size_of(path: Path) -> int | None:
    with os_errors(path):
        return path.stat().st_size if path.is_file() else None


async def _whole(
    desk: Desk, head: bytes, paths: list[tuple[ResultPiece, Path]]
) -> AsyncIterator[bytes]:
    """Yield files behind a head. Bytes that are not those of the manifest end the line before its
    end.
    """
    yield head
    for piece, path in paths:
        with path.open("rb") as file:
            state = hashlib.sha256()
            held = await desk.disk(file.read, _PIECE_BYTES)
            while held:
                state.update(held)
                following = await desk.disk(file.read, _PIECE_BYTES)
                if not following and state.hexdigest() != piece.checksum:
                    error = Damaged(path=str(path), what="a file of a result was altered")
                    desk.note(error)
                    raise error
                yield held
                held = following
