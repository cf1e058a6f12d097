"""A paid step inside a Python worker: rows in, calls, rows with answers out.

One ledger handle per worker process and ledger, so that its owner's life is the process's. Input
is read by the task's own thread, calls are driven by others (`holdfast.ledger.caller`).
"""

from __future__ import annotations

import datetime
import inspect
import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, overload

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as spark_types

from holdfast._base.clock import SystemClock
from holdfast._base.crashpoint import arm_from_environment
from holdfast.errors import HoldfastError, KeyInvalid
from holdfast.ledger.asking import Asker, Pending
from holdfast.ledger.caller import Caller, Limits
from holdfast.ledger.contract import Ledger, Limit, Reused, Slot, Status, inputs_hash, slot_hash
from holdfast.ledger.opening import open_ledger
from holdfast.ledger.rate import RateGate
from holdfast.ledger.rules import Policy
from holdfast.ledger.window import Answer
from holdfast.spark.answers import AnswerCodec
from holdfast.spark.paid_options import takes_key

_ledgers: dict[tuple[int, str, str], Ledger] = {}
_set_up: dict[tuple[int, str], Any] = {}


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes a row a slot: the step, the key's columns and the inputs' columns."""

    step_name: str
    step: int
    key: tuple[str, ...]
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PaidStep:
    """Everything a worker needs to know of a paid step. It travels by Spark's own pickling."""

    function: Callable[..., Any]
    identity: Identity
    token: str
    ledger: str
    ledger_id: str
    returns: spark_types.StructType
    limits: Limits
    budget: Limit
    policy: Policy
    batch: int | None
    setup: Callable[[], Any] | None
    cost: Callable[[Any], float] | None
    reconcile: Callable[[Any, str], Any] | None
    retryable: Callable[[BaseException], bool] | None
    with_status: bool
    since_ms: int


def run_task(step: PaidStep, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Answer the rows of one task.

    Raises:
        RuntimeError: with the text of a HoldfastError, because Spark hands over only text.
    """
    arm_from_environment()
    with as_text():
        yield from _Task(step).answer(batches)


@contextmanager
def as_text() -> Iterator[None]:
    """Put a HoldfastError into the text that a worker hands over; `from_text` finds it again."""
    try:
        yield
    except HoldfastError as error:
        raise RuntimeError(f"{error}\n{error.wire_text()}") from error


def _ledger_of(step: PaidStep) -> Ledger:
    at = (os.getpid(), step.ledger, step.ledger_id)
    ledger = _ledgers.get(at)
    if ledger is None or not ledger.is_usable:
        ledger = open_ledger(step.ledger, create=False, expected_id=step.ledger_id)
        _ledgers[at] = ledger
    return ledger


def _extra_of(step: PaidStep) -> tuple[Any, ...]:
    if step.setup is None:
        return ()
    at = (os.getpid(), step.token)
    if at not in _set_up:
        _set_up[at] = step.setup()
    return (_set_up[at],)


class _Task:
    """The state of one task."""

    def __init__(self, step: PaidStep) -> None:
        self._step = step
        self._codec = AnswerCodec(step.returns)
        self._row = Row(*step.identity.inputs)
        self._waiting: deque[pa.RecordBatch] = deque()
        self._ledger = _ledger_of(step)
        self._reused = Counter[str]()

    def answer(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the input's rows in their order, with the answers' columns."""
        answers = self._caller().answers(map(self._read, batches))
        try:
            for taken in answers:
                yield from self._join(taken)
        finally:
            # Also when Spark wants no more: calls on their way are settled, not abandoned.
            answers.close()  # type: ignore[attr-defined]  # it is a generator
            if self._reused["answers"]:
                self._ledger.count_reused(self._step.identity.step, Reused(**self._reused))

    def _caller(self) -> Caller:
        step, ledger = self._step, self._ledger
        asker = Asker(
            function=step.function,
            encode=self._codec.encode,
            step=step.identity.step_name,
            ledger_id=ledger.id,
            policy=step.policy,
            is_async=is_async(step.function),
            takes_key=takes_key(step.function),
            batch=step.batch,
            extra=_extra_of(step),
            cost=step.cost,
            reconcile=step.reconcile,
            retryable=step.retryable,
        )
        clock, gate = SystemClock(), None
        if step.limits.rate_per_s is not None:
            gate = RateGate(ledger.rate_file(step.identity.step), step.limits.rate_per_s, clock)
        return Caller(
            ledger,
            asker,
            limits=step.limits,
            budget=step.budget,
            since_ms=step.since_ms,
            gate=gate,
            clock=clock,
        )

    def _read(self, batch: pa.RecordBatch) -> Sequence[Pending]:
        """Take in a batch of the input. Every key is checked before anything is claimed."""
        check_keys(self._step.identity, batch)
        self._waiting.append(batch)
        return _Rows(self._step.identity, batch, self._row)

    def _join(self, taken: list[Answer]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the answers belong to, piece by piece of the input's batches."""
        start = 0
        while start < len(taken):
            batch = self._waiting[0]
            count = min(batch.num_rows, len(taken) - start)
            if count > 0:
                yield self._joined(batch.slice(0, count), taken[start : start + count])
            start += count
            if count == batch.num_rows:
                self._waiting.popleft()
            else:
                self._waiting[0] = batch.slice(count)

    def _joined(self, batch: pa.RecordBatch, answers: list[Answer]) -> pa.RecordBatch:
        for answer in answers:
            if answer.outcome.status is Status.BOUGHT and not answer.called:
                self._reused["answers"] += 1
                self._reused["saved_micros"] += answer.outcome.cost_micros
        names = [*batch.schema.names, *self._codec.names]
        columns = [*batch.columns, *self._codec.columns([a.outcome.answer for a in answers])]
        if self._step.with_status:
            names.append(f"{self._step.identity.step_name}_status")
            columns.append(pa.array([answer.status.value for answer in answers], pa.string()))
        return pa.RecordBatch.from_arrays(columns, names=names)


class _Rows(Sequence[Pending]):
    """The rows of a batch, made when they are asked for.

    Making all ten thousand of them at once would let the calls on their way wait for it.
    """

    def __init__(self, identity: Identity, batch: pa.RecordBatch, row: Row) -> None:
        self._identity, self._batch, self._row = identity, batch, row

    def __len__(self) -> int:
        """Return how many rows the batch has."""
        return int(self._batch.num_rows)

    @overload
    def __getitem__(self, wanted: int) -> Pending: ...
    @overload
    def __getitem__(self, wanted: slice) -> list[Pending]: ...
    def __getitem__(self, wanted: int | slice) -> Pending | list[Pending]:
        """Make some rows. They are made anew each time."""
        if isinstance(wanted, int):
            at = range(len(self))[wanted]
            return self[at : at + 1][0]
        start, stop, _ = wanted.indices(len(self))
        found = slots_of(self._identity, self._batch.slice(start, stop - start))
        return [Pending(slot, self._row(*values)) for slot, values in found]


def check_keys(identity: Identity, batch: pa.RecordBatch) -> None:
    """Refuse a batch with a key that is null, before a call is made for any of its rows.

    Raises:
        KeyInvalid: there is one.
    """
    for name in identity.key:
        if batch.column(name).null_count:
            raise KeyInvalid(step=identity.step_name, column=name, what="null in a row")


def slots_of(identity: Identity, batch: pa.RecordBatch) -> list[tuple[Slot, list[Any]]]:
    """Return the slot of each row of a batch whose keys are checked, with its inputs' values."""
    found: list[tuple[Slot, list[Any]]] = []
    columns = list(dict.fromkeys([*identity.key, *identity.inputs]))
    for cells in batch.select(columns).to_pylist():
        key = _key(identity, cells)
        values = [cells[name] for name in identity.inputs]
        sent = inputs_hash(_canonical([identity.inputs, values]))
        found.append((Slot(slot_hash(identity.step, key), identity.step, key, sent), values))
    return found


def _key(identity: Identity, cells: dict[str, Any]) -> str:
    values = [cells[name] for name in identity.key]
    if len(values) == 1:
        return values[0] if isinstance(values[0], str) else _canonical(values[0]).decode()
    return _canonical(values).decode()


def is_async(function: Callable[..., Any]) -> bool:
    """Tell whether calling a function gives something to await."""
    called = getattr(function, "__call__", None)  # noqa: B004 - the method itself is wanted
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def _canonical(value: Any) -> bytes:
    """Return a text that is equal for equal values, whatever machine made it."""
    return _TO_JSON(value).encode()


def _text_of(value: Any) -> Any:
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        # Spark hands instants over in the session's zone; they are equal in all of them.
        return value.astimezone(datetime.UTC).isoformat()
    if isinstance(value, (datetime.date, datetime.datetime, datetime.time)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return {"hex": value.hex()}
    if isinstance(value, (Decimal, datetime.timedelta)):
        return str(value)
    return repr(value)


_TO_JSON = json.JSONEncoder(default=_text_of, ensure_ascii=False, separators=(",", ":")).encode
"""Made once: `json.dumps` with options makes an encoder for each row."""
