"""A dry run of a paid step: how many slots a frame has, and how many are still to be bought.

It makes no call and changes nothing in the ledger. One Spark job: rows become slots, equal slots
are counted once, and each is looked up; the decision is the one a real run takes (`next_move`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from holdfast.ledger.contract import Ledger, Outcome, Slot, SlotHash, Status, View, slot_hash
from holdfast.ledger.opening import open_ledger
from holdfast.ledger.rules import Move, Policy, next_move
from holdfast.spark.paid_task import Identity, as_text, check_keys, slots_of
from holdfast.spark.trouble import working

_CALLS = frozenset({Move.CLAIM, Move.CLAIM_ALONE, Move.RECONCILE})
_SLOT_COLUMNS = "hash binary, key string, inputs binary"
_COUNT_COLUMNS = "move string, slots bigint, rows bigint"


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a run would do now. `about_usd` is None where nobody knows a price.

    `to_buy` counts calls to be made, those for slots in doubt among them; `changed` counts slots
    whose inputs are not those that were recorded, which a run refuses.
    """

    step: str
    rows: int
    slots: int
    recorded: int
    to_buy: int
    changed: int
    about_usd: float | None

    def __str__(self) -> str:
        money = "price unknown" if self.about_usd is None else f"about {self.about_usd:,.4f} USD"
        odd = f", {self.changed:,} with changed inputs" if self.changed else ""
        return (
            f"{self.step}: {self.rows:,} rows, {self.slots:,} slots, {self.recorded:,} recorded,"
            f" {self.to_buy:,} to buy, {money}{odd}"
        )


@dataclass(slots=True)
class DryRuns:
    """Paid steps met while a pipeline is built: known ones, and those that follow unbought ones."""

    known: list[DryRun] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)

    def blocking(self) -> str | None:
        """Return the first step with something to buy: what follows it cannot be known."""
        return next((run.step for run in self.known if run.to_buy or run.changed), None)


_dry: ContextVar[DryRuns | None] = ContextVar("dry", default=None)


@contextmanager
def dry() -> Iterator[DryRuns]:
    """Make every paid step in the block a dry one."""
    runs = DryRuns()
    token = _dry.set(runs)
    try:
        yield runs
    finally:
        _dry.reset(token)


def dry_runs() -> DryRuns | None:
    """Return what the current block collects, None outside of one."""
    return _dry.get()


@dataclass(frozen=True, slots=True)
class Probe:
    """What a worker needs to tell recorded slots from others. No ledger: nothing is recorded."""

    identity: Identity
    policy: Policy
    ledger: str | None
    ledger_id: str


def count_slots(frame: DataFrame, probe: Probe) -> tuple[int, Counter[str]]:
    """Return a frame's rows, and its slots by the move a real run would make."""

    def to_slots(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with as_text():
                check_keys(probe.identity, batch)
                slots = [slot for slot, _ in slots_of(probe.identity, batch)]
            columns = [[s.hash for s in slots], [s.key for s in slots], [s.inputs for s in slots]]
            kinds = [pa.binary(), pa.string(), pa.binary()]
            arrays = [pa.array(c, k) for c, k in zip(columns, kinds, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names=["hash", "key", "inputs"])

    def to_counts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with as_text():
            yield _counted(probe, batches)

    with working(f"the dry run of {probe.identity.step_name}"):
        slots = frame.mapInArrow(to_slots, _SLOT_COLUMNS)
        equal = slots.groupBy("hash", "key").agg(
            F.sort_array(F.collect_set("inputs")).alias("inputs"),
            F.count(F.lit(1)).alias("rows"),
        )
        found = equal.mapInArrow(to_counts, _COUNT_COLUMNS).collect()
    moves: Counter[str] = Counter()
    for row in found:
        moves[row["move"]] += row["slots"]
    return sum(row["rows"] for row in found), moves


def _counted(probe: Probe, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
    slots: Counter[str] = Counter()
    rows = 0
    ledger = None
    if probe.ledger is not None:
        ledger = open_ledger(probe.ledger, create=False, expected_id=probe.ledger_id)
    try:
        for batch in batches:
            keys = batch.to_pylist()
            rows += sum(one["rows"] for one in keys)
            slots.update(move.value for move in _moves(probe, ledger, keys))
    finally:
        if ledger is not None:
            ledger.close()
    names = [*slots, ""]
    columns = [names, [slots[name] for name in names], [0] * len(slots) + [rows]]
    kinds = [pa.string(), pa.int64(), pa.int64()]
    arrays = [pa.array(c, k) for c, k in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["move", "slots", "rows"])


def _moves(
    probe: Probe, ledger: Ledger | None, keys: Sequence[Mapping[str, object]]
) -> Iterator[Move]:
    slots = [
        Slot(SlotHash(bytes(one["hash"])), probe.identity.step, str(one["key"]), bytes(inputs))  # type: ignore[call-overload]  # what Arrow gives
        for one in keys
        for inputs in _inputs_of(one["inputs"], probe.policy)
    ]
    view = _look(ledger, [slot.hash for slot in slots])
    others: list[Slot] = []
    met: set[SlotHash] = set()
    for slot in slots:
        known = view.outcomes.get(slot.hash) or view.open.get(slot.hash)
        if known is None and slot.hash in met:
            # Not the first inputs of this key in this very frame.
            known = Outcome(replace(slot, inputs=b""), Status.BOUGHT)
        met.add(slot.hash)
        move = next_move(slot, known, probe.policy)
        if move is Move.OTHER_SLOT:
            others.append(replace(slot, hash=slot_hash(slot.step, slot.key, inputs=slot.inputs)))
        else:
            yield move
    view = _look(ledger, [slot.hash for slot in others])
    for slot in others:
        known = view.outcomes.get(slot.hash) or view.open.get(slot.hash)
        yield next_move(slot, known, probe.policy)


def _inputs_of(found: object, policy: Policy) -> Sequence[bytes]:
    inputs: Sequence[bytes] = list(found)  # type: ignore[call-overload]  # a list of Arrow's
    return inputs[:1] if policy.input_change == "keep" else inputs


def _look(ledger: Ledger | None, hashes: Sequence[SlotHash]) -> View:
    return View(0, {}, {}) if ledger is None else ledger.lookup(hashes)


def told(step: str, rows: int, moves: Counter[str], each_usd: float | None) -> DryRun:
    """Return what was counted, with a price."""
    to_buy = sum(moves[move.value] for move in _CALLS)
    money = 0.0 if to_buy == 0 else None if each_usd is None else round(to_buy * each_usd, 6)
    return DryRun(
        step,
        rows,
        sum(count for move, count in moves.items() if move),
        moves[Move.REUSE.value] + moves[Move.RAISE.value],
        to_buy,
        moves[Move.INPUT_CHANGED.value],
        money,
    )
