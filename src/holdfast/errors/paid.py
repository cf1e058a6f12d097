"""Errors of paid steps and their ledger."""

from __future__ import annotations

from typing import ClassVar

from holdfast.errors.tree import CallerError, EnvironmentFailed


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
        " recorded. Correct the cause and run again (with OnTrouble(change='keep') if the function"
        " changes), or choose OnTrouble(error='null')."
    )
    step: str
    key: str
    error: str
    attempts: int


class FailureRecorded(EnvironmentFailed):
    """A paid call is recorded as failed, and `OnTrouble(error="raise")` wants to hear of it.

    Either its answer came, was paid, and is not what `returns` declares or has no price; or it
    failed when `error` had another value. It is not asked again by itself: `holdfast calls retry`
    lets the next run do so, after its cause was corrected.
    """

    code: ClassVar[str] = "FAILURE_RECORDED"
    template: ClassVar[str] = (
        "paid step {step}, key {key}: {error}. That is recorded, so that nobody pays for it again"
        " unasked. Correct the cause (with OnTrouble(change='keep') if the function changes), say"
        " `holdfast calls retry LEDGER --failed` and run again; or choose OnTrouble(error='null')."
    )
    step: str
    key: str
    error: str


class LedgerInUse(EnvironmentFailed):
    """Outcomes that are to be taken out of a ledger are held by a process that still lives.

    They can be taken out when it has ended. An idle worker of Spark ends by itself after a minute,
    or with its session.
    """

    code: ClassVar[str] = "LEDGER_IN_USE"
    template: ClassVar[str] = (
        "{path}: {count} of the outcomes are held by a running job (process {pids})."
        " Nothing was changed. Stop its Spark session, or wait a minute, and say it again."
    )
    path: str
    count: int
    pids: str


class LedgerMismatch(EnvironmentFailed):
    """A task found another ledger than the job was made with: its path is not shared."""

    code: ClassVar[str] = "LEDGER_MISMATCH"
    retryable: ClassVar[bool] = False
    template: ClassVar[str] = (
        "{path} holds ledger {found}, the job was made with {wanted}."
        " Every machine must see the same ledger."
    )
    path: str
    found: str
    wanted: str


class LedgerUnreachable(EnvironmentFailed):
    """The server of a shared ledger does not answer. Nothing is lost: calls wait, then stop."""

    code: ClassVar[str] = "LEDGER_UNREACHABLE"
    template: ClassVar[str] = (
        "ledger {ledger}: its server does not answer: {error}."
        " Start it, or correct host and port, then run again."
    )
    ledger: str
    error: str


class LedgerRefused(EnvironmentFailed):
    """The server of a shared ledger answers, but not for us: user, password, database, rights."""

    code: ClassVar[str] = "LEDGER_REFUSED"
    retryable: ClassVar[bool] = False
    template: ClassVar[str] = (
        "ledger {ledger}: its server refused: {error}."
        " Correct user, password, database or rights, then run again."
    )
    ledger: str
    error: str
