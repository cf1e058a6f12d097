"""Every error Holdfast raises, in one tree with stable codes.

    HoldfastError
    +-- CallerError                  the call, the pipeline or the command line is wrong
    |   +-- PipelineInvalid          PIPELINE_INVALID
    |   +-- UsageInvalid             USAGE_INVALID
    |   +-- StateMismatch            STATE_MISMATCH
    |   +-- ChunkConflict            CHUNK_CONFLICT
    |   +-- EndConflict              END_CONFLICT
    |   +-- RunGone                  RUN_GONE
    |   +-- StageFailed              STAGE_FAILED
    |   +-- StageInvalid             STAGE_INVALID
    |   +-- StepChanged              STEP_CHANGED
    |   +-- KeyInvalid               KEY_INVALID
    |   +-- CallInputChanged         CALL_INPUT_CHANGED
    |   +-- BudgetSpent              BUDGET_SPENT
    +-- EnvironmentFailed            the machine cannot do it now; run again when it can
    |   +-- StateBusy                STATE_BUSY
    |   +-- DiskFull                 DISK_FULL
    |   +-- StorageFailed            STORAGE_FAILED
    |   +-- JavaMissing              JAVA_MISSING
    |   +-- DependencyMissing        DEPENDENCY_MISSING
    |   +-- SparkLost                SPARK_LOST
    |   +-- SparkNotStarted          SPARK_NOT_STARTED
    |   +-- Fenced                   FENCED
    |   +-- ClusterNeedsSharedState  CLUSTER_NEEDS_SHARED_STATE
    |   +-- ProviderBusy             PROVIDER_BUSY
    |   +-- CallFailed               CALL_FAILED
    |   +-- LedgerMismatch           LEDGER_MISMATCH
    +-- DataError                    the bytes are not what they should be
    |   +-- BadRows                  BAD_ROWS
    |   +-- HeaderWrong              HEADER_WRONG
    |   +-- InputChanged             INPUT_CHANGED
    |   +-- Damaged                  DAMAGED
    |   +-- StoreNewer               STORE_NEWER
    +-- RunFailed                    RUN_FAILED
    +-- InvariantViolated            INVARIANT_VIOLATED: our own bug

A message says what happened, where, and what to do. Tests assert code and attributes, not prose.
Spark workers hand over only the text of a traceback, so `wire_text` puts an error into a line of
text and `from_text` finds it again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar, cast, dataclass_transform

_WIRE_MARK = "HOLDFAST_ERROR "


class Blame(StrEnum):
    """Who has to act."""

    CALLER = "caller"
    ENVIRONMENT = "environment"
    DATA = "data"
    HOLDFAST = "holdfast"


@dataclass_transform(eq_default=False)
@dataclass(eq=False)
class HoldfastError(Exception):
    """Root of all errors raised on purpose.

    Cause and remedy stand in each subclass. `retryable` tells whether the same work may succeed
    when it is simply done again. Every subclass is a dataclass: its attributes are typed, and
    given by name.
    """

    code: ClassVar[str] = "HOLDFAST"
    blame: ClassVar[Blame] = Blame.HOLDFAST
    retryable: ClassVar[bool] = False
    template: ClassVar[str] = "unspecified"

    def __init_subclass__(cls) -> None:
        """Make each kind of error a dataclass, compared by identity as exceptions are."""
        super().__init_subclass__()
        dataclass(eq=False)(cls)

    def facts(self) -> dict[str, Any]:
        """Return the typed attributes by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __str__(self) -> str:
        """Return code and message, as one line."""
        return f"[{self.code}] {self.template.format(**self.facts())}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by class and attributes, so that child processes can hand errors over."""
        return (partial(type(self), **self.facts()), ())

    def wire_text(self) -> str:
        """Return one line that carries the error through text (a log, a traceback)."""
        return _WIRE_MARK + json.dumps({"code": self.code, "facts": self.facts()})


def all_errors() -> dict[str, type[HoldfastError]]:
    """Return every concrete error class by its code."""
    found: dict[str, type[HoldfastError]] = {}
    pending: list[type[HoldfastError]] = [HoldfastError]
    while pending:
        cls = pending.pop()
        pending.extend(cls.__subclasses__())
        if "code" in vars(cls) and cls is not HoldfastError:
            found[cls.code] = cls
    return found


def from_text(text: str) -> HoldfastError | None:
    """Return the error that `wire_text` put somewhere into `text`, or None."""
    mark = text.rfind(_WIRE_MARK)
    if mark < 0:
        return None
    try:
        wire, _ = json.JSONDecoder().raw_decode(text, mark + len(_WIRE_MARK))
        return all_errors()[wire["code"]](**cast(dict[str, Any], wire["facts"]))
    except (ValueError, KeyError, TypeError):
        return None


class CallerError(HoldfastError):
    """The call, the pipeline or the command line is wrong. Correct it and call again."""

    blame: ClassVar[Blame] = Blame.CALLER


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
        "{state}: {what} since this run began. Undo the change, or use a new state directory."
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


class RunGone(CallerError):
    """The run takes no more chunks: it is finished, cancelled or swept. Open a new run."""

    code: ClassVar[str] = "RUN_GONE"
    template: ClassVar[str] = "run {run} is {state} and takes nothing more. Open a new run."
    run: str
    state: str


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


class StepChanged(CallerError):
    """A paid step is not the one whose answers the ledger holds. Nothing was called.

    Undo the change, or say what recorded answers are worth: `change="keep"` keeps them and asks
    the rest by the new step, `change="new"` asks everything again.
    """

    code: ClassVar[str] = "STEP_CHANGED"
    template: ClassVar[str] = (
        "paid step {step}: {fields} changed since its answers were recorded. Undo that, or choose"
        " OnTrouble(change='keep') to keep recorded answers or change='new' to buy all anew."
    )
    step: str
    fields: str


class KeyInvalid(CallerError):
    """A row of a paid step has no key, so no answer could ever be found again for it."""

    code: ClassVar[str] = "KEY_INVALID"
    template: ClassVar[str] = (
        "paid step {step}: key column {column} is {what}. Drop such rows, or choose another key."
    )
    step: str
    column: str
    what: str


class CallInputChanged(CallerError):
    """A key came with other inputs than those its answer was bought for. Nothing was called.

    Make the key name the inputs, or choose `input_change="keep"` (the recorded answer stands) or
    `"new"` (changed inputs are bought as a slot of their own).
    """

    code: ClassVar[str] = "CALL_INPUT_CHANGED"
    template: ClassVar[str] = (
        "paid step {step}: key {key} came with other inputs than were recorded for it. Correct the"
        " key, or choose OnTrouble(input_change='keep') or input_change='new'."
    )
    step: str
    key: str


class BudgetSpent(CallerError):
    """A paid step reached its cap. What was bought is recorded; raise the cap and run again."""

    code: ClassVar[str] = "BUDGET_SPENT"
    template: ClassVar[str] = (
        "paid step {step}: the budget is spent ({calls} calls, {usd} USD over the ledger's life)."
        " All answers bought are recorded; raise the budget and run again to go on."
    )
    step: str
    calls: int
    usd: str


class EnvironmentFailed(HoldfastError):
    """The machine cannot do it now. The run stays as it is; run again when the cause is gone."""

    blame: ClassVar[Blame] = Blame.ENVIRONMENT
    retryable: ClassVar[bool] = True


class StateBusy(EnvironmentFailed):
    """Another process works on this state directory. Wait for it, or end it by its pid."""

    code: ClassVar[str] = "STATE_BUSY"
    template: ClassVar[str] = (
        "{state} is in use by process {pid}. Wait until it ends, or end it, then run again."
    )
    state: str
    pid: int


class DiskFull(EnvironmentFailed):
    """No room on the device. Nothing is lost; make room and run again."""

    code: ClassVar[str] = "DISK_FULL"
    template: ClassVar[str] = "no space left while writing {path}. Make room, then run again."
    path: str


class StorageFailed(EnvironmentFailed):
    """The operating system refused a read or write. Nothing is acknowledged after it."""

    code: ClassVar[str] = "STORAGE_FAILED"
    template: ClassVar[str] = "{path}: {error}. Correct that, then run again."
    path: str
    error: str


class JavaMissing(EnvironmentFailed):
    """Spark needs Java 17 or newer. Install it, or the extra `holdfast[java]`."""

    code: ClassVar[str] = "JAVA_MISSING"
    template: ClassVar[str] = (
        "Spark needs Java 17 or newer, found {found}."
        " Set JAVA_HOME, or install one: pip install 'holdfast[java]'."
    )
    found: str


class DependencyMissing(EnvironmentFailed):
    """An optional package is not installed, or is one that is known to lose data."""

    code: ClassVar[str] = "DEPENDENCY_MISSING"
    template: ClassVar[str] = "{what}. Install it: {install}"
    what: str
    install: str


class SparkLost(EnvironmentFailed):
    """The Spark session died. What was committed stands; running again resumes."""

    code: ClassVar[str] = "SPARK_LOST"
    template: ClassVar[str] = "the Spark session was lost: {error}. Run again to resume."
    error: str


class SparkNotStarted(EnvironmentFailed):
    """Spark did not start. Its log says why; the run is as it was."""

    code: ClassVar[str] = "SPARK_NOT_STARTED"
    template: ClassVar[str] = "Spark did not start: {error}. Its log is {log}."
    error: str
    log: str


class Fenced(EnvironmentFailed):
    """Somebody else took over the work. This process must stop; it has changed nothing."""

    code: ClassVar[str] = "FENCED"
    retryable: ClassVar[bool] = False
    template: ClassVar[str] = (
        "{resource}: epoch {epoch} was replaced by a newer owner; this process changed nothing"
        " and stops. Look at the other process."
    )
    resource: str
    epoch: int


class ClusterNeedsSharedState(EnvironmentFailed):
    """Executors on other machines cannot see a local directory. Use one that all share."""

    code: ClassVar[str] = "CLUSTER_NEEDS_SHARED_STATE"
    retryable: ClassVar[bool] = False
    template: ClassVar[str] = (
        "master {master} runs on other machines, which cannot see {path}."
        " Give a directory that every machine shares and say so: --shared-state."
    )
    master: str
    path: str


class ProviderBusy(EnvironmentFailed):
    """The provider refused a call for now and did not charge it. For users' functions to raise.

    The call is tried again, not before `retry_after_s`.
    """

    code: ClassVar[str] = "PROVIDER_BUSY"
    template: ClassVar[str] = "the provider is busy: {reason} (try again after {retry_after_s} s)"
    reason: str
    retry_after_s: float = 0.0


class CallFailed(EnvironmentFailed):
    """A paid call failed for good. The other rows' answers are recorded; run again to retry it."""

    code: ClassVar[str] = "CALL_FAILED"
    template: ClassVar[str] = (
        "paid step {step}, key {key}: {error} after {attempts} attempt(s). Other answers are"
        " recorded. Correct the cause and run again, or choose OnTrouble(error='null')."
    )
    step: str
    key: str
    error: str
    attempts: int


class LedgerMismatch(EnvironmentFailed):
    """A task found another ledger than the job was made with: its path is not shared."""

    code: ClassVar[str] = "LEDGER_MISMATCH"
    retryable: ClassVar[bool] = False
    template: ClassVar[str] = (
        "{path} holds ledger {found}, the job was made with {wanted}."
        " Every machine must see the same directory."
    )
    path: str
    found: str
    wanted: str


class DataError(HoldfastError):
    """The bytes are not what they should be. Doing the same again gives the same."""

    blame: ClassVar[Blame] = Blame.DATA


class BadRows(DataError):
    """Rows that do not fit the declared schema. Correct them, or choose the quarantine policy."""

    code: ClassVar[str] = "BAD_ROWS"
    template: ClassVar[str] = (
        "{path}: {count} bad row(s), the first at line {line}: {reason}."
        " Correct the file, or set the input's on_bad_rows='quarantine'."
    )
    path: str
    line: int
    reason: str
    count: int


class HeaderWrong(DataError):
    """A CSV header differs from the declared columns. Correct the file or the schema."""

    code: ClassVar[str] = "HEADER_WRONG"
    template: ClassVar[str] = (
        "{path}: the header is {found}, the schema of table {table} wants {wanted}."
        " Correct the file or the schema."
    )
    path: str
    table: str
    found: str
    wanted: str


class InputChanged(DataError):
    """An input file is not the one that was bound when the run began."""

    code: ClassVar[str] = "INPUT_CHANGED"
    template: ClassVar[str] = "{path} {what} since the run began. Undo that, or use a new state."
    path: str
    what: str


class Damaged(DataError):
    """A stored file is missing, cut or altered, and cannot be repaired. Restore a backup."""

    code: ClassVar[str] = "DAMAGED"
    template: ClassVar[str] = "{path}: {what}. Restore it from a backup, or start a new run."
    path: str
    what: str


class StoreNewer(DataError):
    """A newer Holdfast wrote this state. Upgrade; an older one would misread it."""

    code: ClassVar[str] = "STORE_NEWER"
    template: ClassVar[str] = "{path} has format {found}, not {known} or older. Upgrade Holdfast."
    path: str
    found: int
    known: int


class RunFailed(HoldfastError):
    """A run ended FAILED. The reason is that of its last attempt."""

    code: ClassVar[str] = "RUN_FAILED"
    blame: ClassVar[Blame] = Blame.CALLER
    template: ClassVar[str] = (
        "run {run} failed: {reason} A failed run is over: correct the cause, and use a new state"
        " directory."
    )
    run: str
    reason: str


class InvariantViolated(HoldfastError):
    """Our own reasoning was wrong. The process stops before it can do harm; report it."""

    code: ClassVar[str] = "INVARIANT_VIOLATED"
    template: ClassVar[str] = "{what}. This is a bug in Holdfast; please report it."
    what: str
