"""`pay_once`: a paid function over the rows of a DataFrame, bought once however often Spark asks.

The driver's part: everything that can be wrong is refused here, before any call. The ledger is
made or opened, checked, and the step's fingerprint compared. The workers' part is `paid_task`.
Only public DataFrame methods are used, so it works in batch, streaming, notebooks and Connect.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as spark_types

from holdfast._base.clock import SystemClock
from holdfast._base.ids import digest, fresh_token
from holdfast.errors import ClusterNeedsSharedState, UsageInvalid
from holdfast.ledger.caller import Limits
from holdfast.ledger.contract import MICROS, Limit
from holdfast.ledger.finding import find_step
from holdfast.ledger.opening import is_shared, open_ledger, shown
from holdfast.ledger.receipt import Receipt, receipt_of
from holdfast.ledger.rules import OnUnknown, Policy
from holdfast.spark.answers import AnswerCodec
from holdfast.spark.dry_run import DryRun, DryRuns, Probe, count_slots, dry_runs, told
from holdfast.spark.paid_options import (
    Budget,
    OnTrouble,
    checked_budget,
    checked_columns,
    checked_function,
    checked_limits,
    checked_name,
    checked_trouble,
    checked_url,
)
from holdfast.spark.paid_task import Identity, PaidStep, run_task
from holdfast.spark.receipts import Mark, note, receipt_at

__all__ = ["Budget", "DryRun", "Limits", "OnTrouble", "PaidTransform", "Receipt", "pay_once"]


def pay_once(
    function: Callable[..., Any],
    *,
    name: str,
    key: str | Sequence[str],
    returns: str | spark_types.StructType,
    ledger: str | None = None,
    inputs: Sequence[str] | None = None,
    fingerprint: Mapping[str, Any] | None = None,
    version: str | None = None,
    batch: int | None = None,
    setup: Callable[[], Any] | None = None,
    limits: Limits | None = None,
    budget: Budget | None = None,
    trouble: OnTrouble | None = None,
    status: bool = True,
    shared: bool = False,
) -> PaidTransform:
    """Return a transform that appends a paid function's answers: `df.transform(pay_once(...))`.

    `function` takes one row (attribute access; only the columns `inputs`, by default all), or with
    `batch=n` a list of rows, and returns the columns of `returns`. It may be async, may take
    `idempotency_key`, and gets the value of `setup`, run once per Python worker, as its second
    argument. Rows with an equal `key` are one slot: one call, one answer. `ledger` is a `file:`
    or `postgresql:` URL, or stands in HOLDFAST_LEDGER. `fingerprint` names what else changes
    answers: model, prompt; only hashes are kept. `version` replaces the source of `function`.

    Guarantee: a recorded answer is never bought again, whatever Spark or a crash repeats; an
    answer is durable before Spark sees it. Not guaranteed: that no call is repeated. A crash
    leaves at most `max_in_flight + intent_ahead` calls per task in doubt; `trouble` decides.

    The transform also has `.receipt()`, what was bought and reused, and `.dry_run(df)`, what
    would be.

    Raises:
        UsageInvalid, ClusterNeedsSharedState, StepChanged, Damaged: here or at the transform,
            before any call. KeyInvalid, CallInputChanged, CallFailed, BudgetSpent: from the job;
            find them in Spark's error text by `holdfast.errors.from_text`.
    """
    return PaidTransform(
        function=checked_function(function, setup, checked_name(name)),
        name=name,
        key=checked_columns("key", key),
        returns=returns,
        url=checked_url(ledger),
        inputs=None if inputs is None else checked_columns("inputs", inputs),
        fingerprint={str(k): str(v) for k, v in (fingerprint or {}).items()},
        version=version,
        batch=batch,
        setup=setup,
        limits=checked_limits(limits or Limits(), batch),
        budget=checked_budget(budget or Budget()),
        trouble=checked_trouble(trouble or OnTrouble()),
        status=status,
        shared=shared,
        token=fresh_token(),
    )


_last: dict[str, Mark] = {}
"""Token of a transform -> the mark of its last use in this process."""


@dataclass(frozen=True, slots=True, repr=False)
class PaidTransform:
    """A paid step as the user asked for it, not yet bound to a DataFrame. Made by `pay_once`."""

    function: Callable[..., Any]
    name: str
    key: tuple[str, ...]
    returns: str | spark_types.StructType
    url: str
    inputs: tuple[str, ...] | None
    fingerprint: Mapping[str, str]
    version: str | None
    batch: int | None
    setup: Callable[[], Any] | None
    limits: Limits
    budget: Budget
    trouble: OnTrouble
    status: bool
    shared: bool
    token: str

    def __repr__(self) -> str:
        """Return what a notebook shows: no password, no prompt."""
        function = getattr(self.function, "__name__", type(self.function).__name__)
        key, ledger = ", ".join(self.key), shown(self.url)
        returns = self.returns if isinstance(self.returns, str) else self.returns.simpleString()
        return (
            f"pay_once({function}, name={self.name!r}, key={key!r}, returns={returns!r},"
            f" ledger={ledger!r})"
        )

    def __call__(self, frame: DataFrame) -> DataFrame:
        """Append the answers' columns. Checks everything; calls nothing."""
        answer, schema = self._checked(frame)
        runs = dry_runs()
        if runs is not None:
            return self._transform_dry(frame, answer, schema, runs)
        return self._transform(frame, answer, schema, self._limit())

    def receipt(self, *, ever: bool = False) -> Receipt:
        """Return what the ledger says of this step since this object was last used.

        With `ever`, or if it was not used in this process: over the ledger's life. It counts what
        anybody did with this step and ledger. See docs/paid-calls.md#the-receipt.
        """
        mark = _last.get(self.token)
        if mark is not None:
            now = receipt_at(mark.ledger, mark.step, self.name)
            return now if ever else now.since(mark.before)
        step = find_step(self.url, self.name)
        return Receipt(self.name) if step is None else receipt_at(self.url, step.id, self.name)

    def dry_run(self, frame: DataFrame) -> DryRun:
        """Count what `frame.transform(self)` would buy now. Makes no call, changes no ledger.

        The frame is evaluated once.

        Raises:
            UsageInvalid, StepChanged, KeyInvalid: as the run itself would.
        """
        answer, _ = self._checked(frame)
        identity = self._identity(frame, 0)
        prints = self._fingerprint(answer, identity.inputs)
        found = find_step(self.url, self.name, prints, self.trouble.change)
        each = self._limit().each_micros / MICROS or None
        if found is None:
            probe = Probe(identity, self._policy(), None, "")
        else:
            identity = replace(identity, step=found.id)
            probe = Probe(identity, self._policy(), self.url, found.ledger_id)
            each = each or found.mean_usd
        return told(self.name, *count_slots(frame, probe), each)

    def _transform_dry(
        self,
        frame: DataFrame,
        answer: spark_types.StructType,
        schema: spark_types.StructType,
        runs: DryRuns,
    ) -> DataFrame:
        """Note what would be bought. Answers are the recorded ones, or null if any is missing."""
        if (after := runs.blocking()) is not None:
            runs.unknown[self.name] = after
        else:
            runs.known.append(self.dry_run(frame))
        if runs.blocking() is None:
            # No call may be made: whatever is not recorded after all is over this budget.
            return self._transform(frame, answer, schema, Limit(calls=0))
        nulls = {f.name: F.lit(None).cast(f.dataType) for f in schema.fields[len(frame.columns) :]}
        return frame.withColumns(nulls)

    def _checked(self, frame: DataFrame) -> tuple[spark_types.StructType, spark_types.StructType]:
        """Return the answer's columns and the output's, or refuse what cannot work."""
        answer = _answer_schema(self.returns, self.name)
        trouble = self.trouble
        sent = (self.function, self.setup, self.budget.cost, trouble.unknown, trouble.retryable)
        _check_picklable(sent, self.name)
        if not (self.shared or is_shared(self.url)):
            _check_master(frame, self.url)
        return answer, self._output_schema(frame.schema, answer)

    def _identity(self, frame: DataFrame, step: int) -> Identity:
        inputs = self.inputs if self.inputs is not None else tuple(frame.columns)
        return Identity(self.name, step, self.key, inputs)

    def _transform(
        self,
        frame: DataFrame,
        answer: spark_types.StructType,
        schema: spark_types.StructType,
        limit: Limit,
    ) -> DataFrame:
        ledger = open_ledger(self.url)
        try:
            ledger.verify()
            ledger.tidy()
            prints = self._fingerprint(answer, self._identity(frame, 0).inputs)
            step = ledger.step(self.name, prints, on_change=self.trouble.change)
            mark = Mark(self.url, step.id, receipt_of(ledger, step.id, self.name))
            paid = self._paid_step(self._identity(frame, step.id), ledger.id, answer, limit)
        finally:
            ledger.close()
        _last[self.token] = mark
        note(mark)

        def run(batches: Iterator[Any]) -> Iterator[Any]:
            return run_task(paid, batches)

        return frame.mapInArrow(run, schema)

    def _output_schema(
        self, frame: spark_types.StructType, answer: spark_types.StructType
    ) -> spark_types.StructType:
        there = {name.lower() for name in frame.names}
        for column in (*self.key, *(self.inputs or ())):
            if column not in frame.names:
                raise UsageInvalid(
                    what=f"paid step {self.name}: the input has no column {column}",
                    remedy=f"Its columns are {', '.join(frame.names)}.",
                )
        added = list(answer.fields)
        if self.status:
            added.append(spark_types.StructField(f"{self.name}_status", spark_types.StringType()))
        for field in added:
            if field.name.lower() in there:
                raise UsageInvalid(
                    what=f"paid step {self.name}: the input already has a column {field.name}",
                    remedy="Rename or drop it, rename the answer's column, or set status=False.",
                )
            there.add(field.name.lower())
        return spark_types.StructType(list(frame.fields) + added)

    def _fingerprint(
        self, answer: spark_types.StructType, inputs: tuple[str, ...]
    ) -> dict[str, str]:
        """Return hashes only: a prompt may be secret, and a ledger is no place for it."""
        fields = {
            "key": ",".join(self.key),
            "inputs": ",".join(inputs),
            "returns": answer.simpleString(),
            **{f"fingerprint.{name}": value for name, value in self.fingerprint.items()},
        }
        if self.version is not None:
            fields["version"] = self.version
        else:
            fields["function"] = _source_of(self.function)
        return {name: digest(value) for name, value in fields.items()}

    def _limit(self) -> Limit:
        cost, usd = self.budget.cost, self.budget.usd
        return Limit(
            calls=self.budget.calls,
            cost_micros=None if usd is None else round(usd * MICROS),
            each_micros=round(cost * MICROS) if isinstance(cost, (int, float)) else 0,
        )

    def _policy(self) -> Policy:
        known = not callable(self.trouble.unknown)
        return Policy(
            unknown=cast(OnUnknown, self.trouble.unknown if known else "reconcile"),
            error=self.trouble.error,
            input_change=self.trouble.input_change,
            attempts=self.limits.attempts,
        )

    def _paid_step(
        self, identity: Identity, ledger_id: str, answer: spark_types.StructType, limit: Limit
    ) -> PaidStep:
        cost, ask = self.budget.cost, self.trouble.unknown
        return PaidStep(
            function=self.function,
            identity=identity,
            token=self.token,
            ledger=self.url,
            ledger_id=ledger_id,
            returns=answer,
            limits=self.limits,
            budget=limit,
            policy=self._policy(),
            batch=self.batch,
            setup=self.setup,
            cost=cost if callable(cost) or cost is None else _Fixed(float(cost)),
            reconcile=ask if callable(ask) else None,
            retryable=self.trouble.retryable,
            with_status=self.status,
            since_ms=SystemClock().wall_ms(),
        )


@dataclass(frozen=True, slots=True)
class _Fixed:
    """The price of every call."""

    usd: float

    def __call__(self, answer: Any) -> float:
        """Return it, whatever the answer."""
        del answer
        return self.usd


def _answer_schema(returns: str | spark_types.StructType, name: str) -> spark_types.StructType:
    try:
        found = (
            returns
            if isinstance(returns, spark_types.StructType)
            else spark_types.StructType.fromDDL(returns)
        )
    except (PySparkException, ValueError) as error:
        raise UsageInvalid(
            what=f"paid step {name}: returns={returns!r} cannot be read",
            remedy="Write columns as SQL does: 'summary string, tokens int'.",
        ) from error
    if not isinstance(found, spark_types.StructType) or not found.fields:
        raise UsageInvalid(
            what=f"paid step {name}: returns={returns!r} declares no named column",
            remedy="Write columns as SQL does: 'summary string, tokens int'.",
        )
    AnswerCodec(found)
    # A parked or failed row has no answer, so every column may be null.
    return spark_types.StructType(
        [spark_types.StructField(field.name, field.dataType) for field in found.fields]
    )


def _check_picklable(sent: tuple[Any, ...], name: str) -> None:
    try:
        cloudpickle.dumps(sent)  # type: ignore[no-untyped-call]  # has no types
    except Exception as error:  # pickling runs users' code, which may raise anything
        raise UsageInvalid(
            what=f"paid step {name}: its function cannot be sent to Spark's workers ({error})",
            remedy="Open clients and locks in setup=, which runs in the worker.",
        ) from error


def _check_master(frame: DataFrame, url: str) -> None:
    master = frame.sparkSession.conf.get("spark.master", "")
    if not (master or "").startswith("local"):
        raise ClusterNeedsSharedState(master=master or "(unknown)", path=url)


def _source_of(function: Callable[..., Any]) -> str:
    """Return what identifies a function's behaviour: its source, or failing that its code."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        if code is None:
            kind = type(function)
            return f"{kind.__module__}.{kind.__qualname__}"
        names = repr((code.co_names, [c for c in code.co_consts if not hasattr(c, "co_code")]))
        return hashlib.sha256(code.co_code + names.encode()).hexdigest()
