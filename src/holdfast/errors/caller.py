"""Errors of the call, the pipeline or the command line."""

from __future__ import annotations

from typing import ClassVar

from holdfast.errors.tree import CallerError


class PipelineInvalid(CallerError):
    """A pipeline was defined in a way that can never work. Change the definition."""

    code: ClassVar[str] = "PIPELINE_INVALID"
    template: ClassVar[str] = "pipeline {pipeline}: {what}. {remedy}"
    pipeline: str
    what: str
    remedy: str


class UsageInvalid(CallerError):
    """An argument, a path or an option is wrong. The message names it and what to give."""

    code: ClassVar[str] = "USAGE_INVALID"
    template: ClassVar[str] = "{what}. {remedy}"
    what: str
    remedy: str


class StateMismatch(CallerError):
    """A state directory was made by another pipeline, configuration or input set."""

    code: ClassVar[str] = "STATE_MISMATCH"
    template: ClassVar[str] = (
        "{state}: {what}. Nothing was changed; go back to what it was made with, or use a new"
        " state directory."
    )
    state: str
    what: str


class ChunkConflict(CallerError):
    """An ordinal came again with other bytes. The run is unchanged; send it as a new chunk."""

    code: ClassVar[str] = "CHUNK_CONFLICT"
    template: ClassVar[str] = (
        "chunk {ordinal} of table {table}, sender {sender}: {what} (stored {stored}, sent {sent})."
        " The run is unchanged; use another ordinal for other data."
    )
    table: str
    sender: str
    ordinal: int
    what: str
    stored: str
    sent: str


class EndConflict(CallerError):
    """END came with a count that contradicts what is known. The run is unchanged."""

    code: ClassVar[str] = "END_CONFLICT"
    template: ClassVar[str] = (
        "END of table {table}, sender {sender}: {what} (known {known}, sent {sent})."
        " The run is unchanged; send the count that was really sent."
    )
    table: str
    sender: str
    what: str
    known: int
    sent: int


class ResultConflict(CallerError):
    """An external producer contradicted itself. Its run fails; correct the producer, run again."""

    code: ClassVar[str] = "RESULT_CONFLICT"
    template: ClassVar[str] = (
        "run {run}: {what} {how} (stored {stored}, sent {sent}). The run has failed: correct the"
        " producer, and open a new run."
    )
    run: str
    what: str
    how: str
    stored: str
    sent: str


class RunGone(CallerError):
    """The run takes no more chunks: it is finished, cancelled or swept. Open a new run."""

    code: ClassVar[str] = "RUN_GONE"
    template: ClassVar[str] = "run {run} is {state} and takes nothing more. Open a new run."
    run: str
    state: str


class RunStopped(CallerError):
    """Somebody asked the run to stop. What was committed stands; running again resumes."""

    code: ClassVar[str] = "RUN_STOPPED"
    retryable: ClassVar[bool] = True
    template: ClassVar[str] = "{what}; all that was committed stands. {resume}"
    what: str
    resume: str


class StageFailed(CallerError):
    """A user's stage raised. The user's own line is named; Spark's frames are not shown.

    It counts as a failed attempt: what raised may have been a passing fault.
    """

    code: ClassVar[str] = "STAGE_FAILED"
    retryable: ClassVar[bool] = True
    template: ClassVar[str] = "{stage} failed at {where}: {error}."
    stage: str
    where: str
    error: str


class StageInvalid(CallerError):
    """Spark refused a user's stage before any row was read: an unknown column, a wrong type."""

    code: ClassVar[str] = "STAGE_INVALID"
    template: ClassVar[str] = "{stage} cannot work, at {where}: {error}. Correct it."
    stage: str
    where: str
    error: str
