"""The shapes of bodies, for checks of what comes and for the OpenAPI page."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from holdfast._base.ids import NAME_PATTERN

NAME = f"^{NAME_PATTERN}$"
ORDINAL_MAX = 2**63 - 1
_RUN = "0f2e6ab1c94d7e3358d1f0a2b4c6e8d0"
_SUM = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


class Creation(BaseModel):
    """What a run is created with."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"senders": {"transactions": ["north"]}}}
    )
    senders: dict[str, Annotated[list[str], Field(max_length=1000)]] = Field(
        default_factory=dict, description="Table -> its sources; others have the pipeline's own."
    )
    kind: Literal["spark", "external"] = "spark"


class Ending(BaseModel):
    """How many chunks a sender sent."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"count": 6}})
    count: Annotated[int, Field(strict=True, ge=0, le=ORDINAL_MAX)]


class TableShape(BaseModel):
    """How far one sender of one table is."""

    table: str
    sender: str
    announced: int | None = Field(description="The count of its END; null before.")
    received: int
    applied: int
    received_ordinals: str = Field(description="As ranges: 1-4,6")
    missing: str = Field(description="Announced and not received, as ranges.")


class RunShape(BaseModel):
    """A run."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "run": _RUN,
                "key": "march",
                "pipeline": "coffee",
                "kind": "spark",
                "state": "OPEN",
                "error": None,
                "created_ms": 1790000000000,
                "updated_ms": 1790000000000,
                "idle_s": 0,
                "segments": 1,
                "barriers": [],
                "tables": [
                    {
                        "table": "transactions",
                        "sender": "",
                        "announced": 6,
                        "received": 5,
                        "applied": 4,
                        "received_ordinals": "1-4,6",
                        "missing": "5",
                    }
                ],
            }
        }
    )
    run: str
    key: str
    pipeline: str
    kind: str
    state: str
    error: str | None
    created_ms: int
    updated_ms: int
    idle_s: int = Field(description="For how long nothing came or was done; 0 once it is over.")
    segments: int
    barriers: list[int] = Field(description="Segments whose inputs are complete.")
    tables: list[TableShape]


class InputShape(BaseModel):
    """What a table takes."""

    table: str
    format: str = Field(description="As it is declared: csv, json, parquet or binaryFile.")
    columns: list[str] = Field(description="As they are declared, in order; none: its own.")
    optional: bool = Field(description="It may stay empty.")
    whole: bool = Field(
        description="Other tables' chunks may wait for all of it: send it first, and say its END."
    )


class PipelineShape(BaseModel):
    """The pipeline that is served, and its tables."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "pipeline": "sales",
                "tables": [
                    {
                        "table": "sales",
                        "format": "csv",
                        "columns": ["shop", "amount"],
                        "optional": False,
                        "whole": False,
                    }
                ],
            }
        }
    )
    pipeline: str
    tables: list[InputShape]


class RunsShape(BaseModel):
    """A page of runs, oldest first."""

    runs: list[RunShape]
    next: str | None = Field(description="The `after` of the next page; null: there is none.")


class ChunkShape(BaseModel):
    """A chunk that is bound."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "table": "transactions",
                "sender": "",
                "ordinal": 1,
                "size": 33554432,
                "checksum": _SUM,
            }
        }
    )
    table: str
    sender: str
    ordinal: int
    size: int
    checksum: str


class EndShape(BaseModel):
    """An END that is recorded."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"table": "transactions", "sender": "", "count": 6}}
    )
    table: str
    sender: str
    count: int


class PieceShape(BaseModel):
    """One piece of a result."""

    ordinal: int
    size: int
    checksum: str
    rows: int | None
    format: str
    url: str


class SeriesShape(BaseModel):
    """One result."""

    series: str
    columns: list[str] = Field(description="Of CSV pieces, which have no header line.")
    provisional: bool = Field(description="Its pieces are void if the run fails.")
    pieces: list[PieceShape]
    files: list[PieceShape] | None = Field(
        description="The whole series in its declared order, once it is computed."
    )


class ResultsShape(BaseModel):
    """What can be seen of a run's results."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "run": _RUN,
                "state": "DONE",
                "final": True,
                "series": [
                    {
                        "series": "q1",
                        "columns": ["transaction_id", "final_amount"],
                        "provisional": False,
                        "pieces": [
                            {
                                "ordinal": 1,
                                "size": 5,
                                "checksum": _SUM,
                                "rows": 1,
                                "format": "csv",
                                "url": f"/v1/runs/{_RUN}/results/q1/1",
                            }
                        ],
                        "files": None,
                    }
                ],
            }
        }
    )
    run: str
    state: str
    final: bool
    series: list[SeriesShape]


class Refusal(BaseModel):
    """Why a request was refused. Further fields are the facts of the error."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "example": {
                "code": "RUN_UNKNOWN",
                "message": f"there is no run {_RUN}. Give the id that its creation gave.",
                "run": _RUN,
            }
        },
    )
    code: str
    message: str


_MEANINGS = {
    400: "The request is wrong: the message says what.",
    401: "No token, or one that opens nothing.",
    404: "This client has no such thing.",
    408: "The body came too slowly.",
    409: "It contradicts what is known; nothing was changed.",
    410: "The run takes nothing more, or is swept.",
    413: "The body is too long.",
    415: "The body has a type or an encoding that is not taken.",
    422: "The document is not what its type says, or unpacks to too much.",
    429: "Too much for now; `Retry-After` says when to come back.",
    431: "The head of the request is too long.",
    500: "The server cannot do that; its operator finds the reason in its log.",
    503: "The server cannot do that now.",
    507: "A write met a full disk; `Retry-After` says when to come back.",
}
_EVERYWHERE = (400, 401, 429, 431, 500, 503)


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the refusals that a request may meet, for the OpenAPI page."""
    return {
        status: {"model": Refusal, "description": _MEANINGS[status]}
        for status in sorted({*_EVERYWHERE, *statuses})
    }


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI description of a JSON body that the endpoint reads itself."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    content = {"schema": schema, "example": schema.get("example", {})}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}
