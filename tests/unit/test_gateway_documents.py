"""What a client is shown of a run."""

from __future__ import annotations

from pathlib import Path

from holdfast._base.ids import Ordinal, RunId
from holdfast.blobs.local import LocalBlobs
from holdfast.gateway.documents import run_document
from holdfast.intake.upload import blob_name
from holdfast.spark.load import load_pipeline
from holdfast.store.client_rows import ClientRun, Opening
from holdfast.store.rows import Chunk, ChunkKind, Run, RunState


def shown(error: str) -> str:
    run = Run(
        run_id=RunId("0f2e"),
        client="north",
        pipeline="shop",
        fingerprint={},
        segments=1,
        state=RunState.FAILED,
        error=error,
        created_ms=1,
        updated_ms=2,
    )
    found = ClientRun(run, Opening("north", "k", "{}"))
    return str(run_document(found, [], [], load_pipeline("coffee").spec())["error"])


def test_an_error_names_a_chunk_and_not_where_the_server_keeps_it(tmp_path: Path) -> None:
    chunk = Chunk(
        table="sales",
        sender="",
        ordinal=Ordinal(12),
        kind=ChunkKind.BLOB,
        location="",
        size=1,
        checksum="c",
        format="csv",
    )
    name = blob_name(RunId("0f2e"), chunk, "a1b2")
    # As the engine has it, which leaves out where the state directory is.
    whole = Path(LocalBlobs(tmp_path / "blobs").location(name))
    place = whole.relative_to(tmp_path)
    told = shown(f"[BAD_ROWS] {place}, line 7: 'x' is no number. Correct it.")
    assert told == "[BAD_ROWS] chunk 12 of table sales, line 7: 'x' is no number. Correct it."
    assert shown("[OTHER] stage total, line 9") == "[OTHER] stage total, line 9"
