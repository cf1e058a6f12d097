"""Chunks that senders hand in, one by one, in any order, any number of times.

The bytes come first, the row that binds them second, the acknowledgement last. So what was
acknowledged is durable, and bytes without a row are an orphan that nobody was told about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from holdfast._base.crashpoint import crashpoint
from holdfast._base.ids import RunId, digest, fresh_token
from holdfast.blobs.contract import BlobInfo, BlobStore, BlobWriter
from holdfast.errors import CallerError, ChecksumWrong, EnvironmentFailed
from holdfast.intake.rules import accept_chunk, accept_end
from holdfast.store.contract import BarrierRule, IntakeStore
from holdfast.store.rows import Chunk, ChunkKind, End

CHUNKS = "chunks/"
"""The prefix of the names of all uploads."""
DocumentCheck = Callable[[BlobStore, Chunk, str], str]
"""Looks at the bytes of a chunk that lie under a name; raises a CallerError where they must not be
bound. Returns what all chunks of the table must have alike (`Documents.check`)."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look at an upload found before it is bound."""

    header: str = ""
    """What all chunks of its table must have alike: kept with the chunk."""
    refusal: CallerError | None = None
    """What speaks against bytes that are as their sender meant them."""


def blob_name(run_id: RunId, chunk: Chunk, upload: str) -> str:
    """Return the name of an upload: what it is, and which try at it."""
    sender = digest("sender", chunk.sender)
    return f"{CHUNKS}{run_id}/{chunk.table}/{sender}/{chunk.ordinal}-{upload}"


def put_chunk(
    store: IntakeStore,
    blobs: BlobStore,
    run_id: RunId,
    chunk: Chunk,
    pieces: Iterable[bytes],
    *,
    barrier: BarrierRule,
    check: DocumentCheck | None = None,
) -> bool:
    """Take in one chunk; when this returns, its sender may be told. False: it was there already.

    `chunk` names table, sender, ordinal, format and the checksum its sender computed; location
    and size are filled in here. `check` as in `look_at`.

    1. The bytes go to a blob with a fresh upload id. Crash after: an orphan, swept later.
    2. One transaction binds the blob, appends its reference to the run's topic, and looks at the
       barrier, which the last chunk of a whole table may complete. Crash after: the sender hears
       nothing, sends again, and is told that it is there.
    3. Return: the ack.

    Raises:
        ChunkConflict, ChecksumWrong, DocumentRefused, RunGone, UsageInvalid: refused, nothing
            changed.
        UploadSwept: nothing changed; the same again is taken.
    """
    writer = begin_upload(blobs, run_id, chunk)
    try:
        for piece in pieces:
            writer.write(piece)
        info = writer.finish()
    finally:
        writer.abandon()
    try:
        looked = look_at(check, blobs, chunk, info) if check else Looked()
    except BaseException:  # whatever it was, it is raised again: only the upload must not stay
        remove_upload(store, blobs, info.name)
        raise
    return bind_upload(store, blobs, run_id, chunk, info, barrier=barrier, looked=looked)


def begin_upload(blobs: BlobStore, run_id: RunId, chunk: Chunk) -> BlobWriter:
    """Begin step 1 of `put_chunk`, for bytes that come piece by piece."""
    return blobs.begin(blob_name(run_id, chunk, fresh_token()))


def look_at(check: DocumentCheck, blobs: BlobStore, chunk: Chunk, info: BlobInfo) -> Looked:
    """Look at an upload, which nobody else can see yet.

    Any other error than a refusal is raised: whoever calls removes the upload (`remove_upload`), as
    nothing counts its bytes.
    """
    try:
        return Looked(check(blobs, chunk, info.name))
    except CallerError as error:
        return Looked(refusal=error)


def bind_upload(
    store: IntakeStore,
    blobs: BlobStore,
    run_id: RunId,
    chunk: Chunk,
    info: BlobInfo,
    *,
    barrier: BarrierRule,
    looked: Looked,
) -> bool:
    """Do step 2 of `put_chunk`: bind a finished upload. A blob that is not bound is removed.

    Where the machine failed it may be bound nevertheless: the store says so. A store that says
    nothing leaves an orphan, swept later.
    """
    crashpoint("intake.blob.after")
    try:
        _check_transfer(chunk, info)
        if looked.refusal is not None:
            raise looked.refusal
        stored = replace(
            chunk,
            kind=ChunkKind.BLOB,
            location=info.name,
            size=info.size,
            checksum=info.checksum,
            header=looked.header,
        )
        accepted = store.bind_chunk(run_id, stored, accept_chunk, barrier)
        crashpoint("intake.chunk.after")
    except (CallerError, EnvironmentFailed):
        with suppress(EnvironmentFailed):
            remove_upload(store, blobs, info.name)
        raise
    if not accepted:
        remove_upload(store, blobs, info.name)
    return accepted


def _check_transfer(chunk: Chunk, info: BlobInfo) -> None:
    """Refuse bytes that are not those the sender hashed. No checksum given: nothing to check."""
    if chunk.checksum and chunk.checksum != info.checksum:
        raise ChecksumWrong(
            table=chunk.table, ordinal=chunk.ordinal, arrived=info.checksum, named=chunk.checksum
        )


def remove_upload(store: IntakeStore, blobs: BlobStore, name: str) -> None:
    """Remove an upload of our own that no row binds. Nobody else knows its name: no mark stays."""
    if store.condemn_blob(name):
        blobs.delete(name)
        store.forget_condemned(name)


def put_end(
    store: IntakeStore, run_id: RunId, end: End, barrier: BarrierRule, *, owed: bool = False
) -> bool:
    """Take in a sender's END; when this returns, it may be told. False: it was there already.

    It is durable, the barrier looked at, and it is `owed` to shards if it shall be, in one
    transaction before the ack.
    """
    accepted = store.record_end(run_id, end, accept_end, barrier, owed=owed)
    crashpoint("intake.end.after")
    return accepted


def sweep_uploads(store: IntakeStore, blobs: BlobStore, run_id: RunId) -> int:
    """Remove the uploads of a run that no row binds; returns how many.

    An upload may be under way meanwhile, in a process that is slow or stopped: it is refused when
    it comes to be bound, and made again.

    1. The blob is condemned in a transaction that sees no row binding it. From here on intake
       refuses to bind it. Crash after: the next sweep condemns it again and goes on.
    2. The bytes go. The mark stays as long as the run: whoever uploaded it may still wake up.
    """
    names = list(blobs.names(f"{CHUNKS}{run_id}/"))
    removed = [name for name in names if store.condemn_blob(name)]
    for name in removed:
        blobs.delete(name)
    return len(removed)
