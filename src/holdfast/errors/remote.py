"""Errors that a client meets on the other side of the network."""

from __future__ import annotations

from typing import ClassVar

from holdfast.errors.tree import CallerError, DataError, EnvironmentFailed


class ServerUnreachable(EnvironmentFailed):
    """The server gave no answer, or only refusals for the moment. The same request, sent again
    later, is harmless: what it had taken in is known by its number.
    """

    code: ClassVar[str] = "SERVER_UNREACHABLE"
    template: ClassVar[str] = (
        "{url} does not answer: {error}. Nothing is lost; look at the address, and try again when"
        " it does."
    )
    url: str
    error: str


class ServerRefused(CallerError):
    """The server refused a request for a reason that this version has no class for."""

    code: ClassVar[str] = "SERVER_REFUSED"
    template: ClassVar[str] = "the server refused it (status {status}): {what}."
    status: int
    what: str


class RunUnfinished(EnvironmentFailed):
    """A run has no final results yet. Wait for it."""

    code: ClassVar[str] = "RUN_UNFINISHED"
    template: ClassVar[str] = (
        "run {run} is {state}: its results are not final yet. Wait until it is DONE."
    )
    run: str
    state: str


class RunOver(CallerError):
    """A run ended without results: it failed, was cancelled, abandoned or swept."""

    code: ClassVar[str] = "RUN_OVER"
    template: ClassVar[str] = (
        "run {run} is {state}: {reason}. It stays so: correct the cause, and submit under another"
        " key."
    )
    run: str
    state: str
    reason: str


class SubmissionChanged(DataError):
    """A file is not the one that was handed in under this key before. Other data, another key."""

    code: ClassVar[str] = "SUBMISSION_CHANGED"
    template: ClassVar[str] = "{path} {what}. Undo that, or submit under another --key."
    path: str
    what: str
