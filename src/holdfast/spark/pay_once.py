"""`pay_once`: a paid function over the rows of a DataFrame, bought once however often Spark asks.

The driver's part: everything that can be wrong is refused here, before any call. The ledger is
made or opened, checked, and the step's fingerprint compared. The workers' part is `paid_task`.
Only public DataFrame methods are used, so it works in batch, streaming, notebooks and Connect.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as spark_types

from holdfast._base.ids import digest, fresh_token
from holdfast.errors import ClusterNeedsSharedState, UsageInvalid
from holdfast.ledger.caller import Limits
from holdfast.ledger.contract import MICROS, Limit, Step
from holdfast.ledger.opening import is_shared, open_ledger
from holdfast.ledger.rules import OnUnknown, Policy
from holdfast.spark.answers import AnswerCodec
from holdfast.spark.paid_options import (
    Budget,
    OnTrouble,
    checked_limits,
    checked_name,
    checked_trouble,
    checked_url,
)
from holdfast.spark.paid_task import PaidStep, run_task

__all__ = ["Budget", "Limits", "OnTrouble", "pay_once"]


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
) -> Callable[[DataFrame], DataFrame]:
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

    Raises:
        UsageInvalid, ClusterNeedsSharedState, StepChanged, Damaged: here or at the transform,
            before any call. KeyInvalid, CallInputChanged, CallFailed, BudgetSpent: from the job;
            find them in Spark's error text by `holdfast.errors.from_text`.
    """
    wanted = _Wanted(
        function=function,
        name=checked_name(name),
        key=(key,) if isinstance(key, str) else tuple(key),
        returns=returns,
        url=checked_url(ledger),
        inputs=None if inputs is None else tuple(inputs),
        fingerprint={str(k): str(v) for k, v in (fingerprint or {}).items()},
        version=version,
        batch=batch,
        setup=setup,
        limits=checked_limits(limits or Limits(), batch),
        budget=budget or Budget(),
        trouble=checked_trouble(trouble or OnTrouble()),
        status=status,
        shared=shared,
        token=fresh_token(),
    )
    return wanted.transform


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A paid step as the user asked for it, not yet bound to a DataFrame."""

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

    def transform(self, frame: DataFrame) -> DataFrame:
        """Append the answers' columns. Checks everything; calls nothing."""
        answer = _answer_schema(self.returns, self.name)
        _check_picklable(self.function, self.setup, self.name)
        schema = self._output_schema(frame.schema, answer)
        if not (self.shared or is_shared(self.url)):
            _check_master(frame, self.url)
        inputs = self.inputs if self.inputs is not None else tuple(frame.columns)
        ledger = open_ledger(self.url)
        try:
            ledger.verify()
            ledger.tidy()
            step = ledger.step(
                self.name, self._fingerprint(answer, inputs), on_change=self.trouble.change
            )
            paid = self._paid_step(step, ledger.id, inputs, answer)
        finally:
            ledger.close()

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

    def _paid_step(
        self, step: Step, ledger_id: str, inputs: tuple[str, ...], answer: spark_types.StructType
    ) -> PaidStep:
        cost, budget = self.budget.cost, self.budget
        fixed = float(cost) if isinstance(cost, (int, float)) else None
        known = not callable(self.trouble.unknown)
        unknown = cast(OnUnknown, self.trouble.unknown if known else "reconcile")
        return PaidStep(
            function=self.function,
            name=self.name,
            step=step.id,
            token=self.token,
            ledger=self.url,
            ledger_id=ledger_id,
            key=self.key,
            inputs=inputs,
            returns=answer,
            limits=self.limits,
            budget=Limit(
                calls=budget.calls,
                cost_micros=None if budget.usd is None else round(budget.usd * MICROS),
                each_micros=round((fixed or 0.0) * MICROS),
            ),
            policy=Policy(
                unknown=unknown,
                error=self.trouble.error,
                input_change=self.trouble.input_change,
                attempts=self.limits.attempts,
            ),
            batch=self.batch,
            setup=self.setup,
            cost=cost if callable(cost) else None if fixed is None else _Fixed(fixed),
            reconcile=None if known else cast(Callable[[Any, str], Any], self.trouble.unknown),
            retryable=self.trouble.retryable,
            with_status=self.status,
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


def _check_picklable(
    function: Callable[..., Any], setup: Callable[[], Any] | None, name: str
) -> None:
    try:
        cloudpickle.dumps((function, setup))  # type: ignore[no-untyped-call]  # has no types
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
