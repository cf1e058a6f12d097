"""Outcomes of segments as the columns of a settled file, without an object per outcome.

Compaction shares its process with the calls, so what it takes per outcome the calls do not get.
Columns are made from buffers: `pyarrow.array` would load pandas, a second of everybody's time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.ledger.contract import HASH_BYTES
from holdfast.ledger.segment import DEAD_LETTER, FIXED, HAS_ANSWER, IN_BLOB, STATUSES

SCHEMA = pa.schema(
    [
        pa.field("hash", pa.binary(HASH_BYTES), nullable=False),
        pa.field("step", pa.int32(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("inputs", pa.binary(HASH_BYTES), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("attempts", pa.int32(), nullable=False),
        pa.field("cost_micros", pa.int64(), nullable=False),
        pa.field("recorded_ms", pa.int64(), nullable=False),
        pa.field("dead_letter", pa.bool_(), nullable=False),
        pa.field("answer", pa.binary()),
        pa.field("blob", pa.string()),
    ]
)
_NAMES = [status.value.encode() for status in STATUSES]


def table_of(payloads: Iterable[bytes]) -> pa.Table:
    """Return outcomes, as `segment.encode_entry` makes them, as a table sorted by hash."""
    fixed: list[tuple[bytes, bytes, int, int, int, int, int, int, int, int, int]] = []
    keys: list[bytes] = []
    reasons: list[bytes] = []
    bodies: list[bytes] = []
    for payload in payloads:
        row = FIXED.unpack_from(payload)
        reason = FIXED.size + row[9]
        body = reason + row[10]
        fixed.append(row)
        keys.append(payload[FIXED.size : reason])
        reasons.append(payload[reason:body])
        bodies.append(payload[body:])
    if not fixed:
        return SCHEMA.empty_table()
    hashes, inputs, steps, statuses, flags, attempts, costs, recorded, *_ = zip(*fixed, strict=True)
    answered = [flag & (HAS_ANSWER | IN_BLOB) == HAS_ANSWER for flag in flags]
    in_blob = [bool(flag & IN_BLOB) for flag in flags]
    table = pa.Table.from_arrays(
        [
            _hashes(hashes),
            numbers("i", steps),
            _texts(keys, pa.string()),
            _hashes(inputs),
            _texts([_NAMES[status] for status in statuses], pa.string()),
            _texts(reasons, pa.string()),
            numbers("i", attempts),
            numbers("q", costs),
            numbers("q", recorded),
            pa.Array.from_buffers(
                pa.bool_(), len(fixed), [None, _bits([bool(flag & DEAD_LETTER) for flag in flags])]
            ),
            _texts(bodies, pa.binary(), there=answered),
            _texts(bodies, pa.string(), there=in_blob),
        ],
        schema=SCHEMA,
    )
    return table.take(pc.sort_indices(table["hash"].cast(pa.binary())))


def _hashes(values: Sequence[bytes]) -> pa.Array:
    data = pa.py_buffer(b"".join(values))
    return pa.Array.from_buffers(pa.binary(HASH_BYTES), len(values), [None, data])


def numbers(code: str, values: Sequence[int]) -> pa.Array:
    """Return a column of numbers; `code` as in `array`."""
    kind = pa.int32() if code == "i" else pa.int64()
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(array(code, values))])


def _texts(
    values: Sequence[bytes], kind: pa.DataType, there: Sequence[bool] | None = None
) -> pa.Array:
    """Return a column of texts; null where it is not `there`."""
    if there is not None:
        values = [value if here else b"" for value, here in zip(values, there, strict=True)]
    offsets = array("i", accumulate(map(len, values), initial=0))
    buffers = [pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    valid = None if there is None else _bits(there)
    return pa.Array.from_buffers(kind, len(values), [valid, *buffers])


def _bits(values: Sequence[bool]) -> pa.Buffer:
    packed = bytearray((len(values) + 7) // 8)
    for number, value in enumerate(values):
        if value:
            packed[number >> 3] |= 1 << (number & 7)
    return pa.py_buffer(bytes(packed))
