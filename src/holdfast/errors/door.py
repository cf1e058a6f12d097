"""Errors of requests at the HTTP door. Nothing was changed by a request that met one of them."""

from __future__ import annotations

from typing import ClassVar

from holdfast.errors.tree import CallerError


class TokenRefused(CallerError):
    """The request carries no token, or one that opens nothing: unknown, replaced or revoked."""

    code: ClassVar[str] = "TOKEN_REFUSED"
    template: ClassVar[str] = "{what}. {remedy}"
    what: str
    remedy: str = "Send `Authorization: Bearer TOKEN` with a token that stands."


class PathUnknown(CallerError):
    """There is nothing under this address, or not for this verb. See /openapi.json."""

    code: ClassVar[str] = "PATH_UNKNOWN"
    template: ClassVar[str] = "{what}. {remedy}"
    what: str
    remedy: str = "See /openapi.json for what there is."


class RunUnknown(CallerError):
    """The client has no such run: it was never created, or it is another client's."""

    code: ClassVar[str] = "RUN_UNKNOWN"
    template: ClassVar[str] = "there is no run {run}. Give the id that its creation gave."
    run: str


class PieceUnknown(CallerError):
    """A run has no such result, or no such piece of it, or has none yet. List its results."""

    code: ClassVar[str] = "PIECE_UNKNOWN"
    template: ClassVar[str] = "run {run} has no {what}. List its results."
    run: str
    what: str


class RunConflict(CallerError):
    """A key was used again with another declaration. The run is unchanged; use another key."""

    code: ClassVar[str] = "RUN_CONFLICT"
    template: ClassVar[str] = (
        "run {run} with key {key} was created with {stored}, not with {sent}."
        " It is unchanged; use another key for another run."
    )
    run: str
    key: str
    stored: str
    sent: str


class RunClosed(CallerError):
    """A run that ended cannot be cancelled. Nothing is left to stop."""

    code: ClassVar[str] = "RUN_CLOSED"
    template: ClassVar[str] = "run {run} is {state} and cannot be cancelled any more."
    run: str
    state: str


class ChecksumWrong(CallerError):
    """The bytes that arrived are not those their sender hashed. Nothing is bound; send again."""

    code: ClassVar[str] = "CHECKSUM_WRONG"
    retryable: ClassVar[bool] = True
    template: ClassVar[str] = (
        "chunk {ordinal} of table {table} arrived with checksum {arrived}, its sender named"
        " {named}. Send it again."
    )
    table: str
    ordinal: int
    arrived: str
    named: str


class FormatRefused(CallerError):
    """A body has a type or an encoding that is not taken here. Send a plain document."""

    code: ClassVar[str] = "FORMAT_REFUSED"
    template: ClassVar[str] = "{what}. {remedy}"
    what: str
    remedy: str


class DocumentRefused(CallerError):
    """A document is not what its type says, or would need more memory than anyone should give."""

    code: ClassVar[str] = "DOCUMENT_REFUSED"
    template: ClassVar[str] = "chunk {ordinal} of table {table}: {what}. {remedy}"
    table: str
    ordinal: int
    what: str
    remedy: str


class BodyTooLarge(CallerError):
    """A body is longer than allowed. Cut it into smaller chunks."""

    code: ClassVar[str] = "BODY_TOO_LARGE"
    template: ClassVar[str] = (
        "the body is longer than the {limit} bytes allowed. Send smaller chunks."
    )
    limit: int


class UploadSlow(CallerError):
    """A body came too slowly, or stopped coming. Send it again over a better line."""

    code: ClassVar[str] = "UPLOAD_SLOW"
    retryable: ClassVar[bool] = True
    template: ClassVar[str] = (
        "{received} bytes of the body came in {waited_s} s, less than {rate} bytes a second."
        " Send it again."
    )
    received: int
    waited_s: int
    rate: int


class QuotaReached(CallerError):
    """A client has as much as it may have. Wait until something of it is done, or ask for more."""

    code: ClassVar[str] = "QUOTA_REACHED"
    retryable: ClassVar[bool] = True
    template: ClassVar[str] = (
        "{what}: {used} of {limit}. Wait until that is less, or ask the operator for more."
    )
    what: str
    used: int
    limit: int


class BacklogFull(CallerError):
    """Chunks came faster than they are worked on. Send it again after a while; if they wait for a
    whole table, send the rest of that and say its END.
    """

    code: ClassVar[str] = "BACKLOG_FULL"
    retryable: ClassVar[bool] = True
    template: ClassVar[str] = (
        "{waiting} bytes wait to be worked on, {limit} may. Send it again after a while;"
        " if they wait for a whole table, send the rest of that and say its END."
    )
    waiting: int
    limit: int
