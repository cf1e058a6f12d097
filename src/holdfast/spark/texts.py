"""Which texts can be a value of a declared type at all. For bad rows only.

`pyarrow.csv` stops at the first value it cannot convert and has no "try". To find all bad values
in a column of which most are bad, each distinct one is first looked at here. The answer False is
final and must be right; True only means that the parser itself is to be asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Context, Decimal
from functools import partial

import pyarrow as pa

from holdfast.spark.types import INSTANT, Column

_INTEGER = re.compile(rb"[ \t]*(?:(-?[0-9]+)|0[xX][0-9a-fA-F]+)[ \t]*")
_DECIMAL = re.compile(
    rb"[ \t]*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?([0-9]+))?)[ \t]*",
)
_NUMBER = re.compile(
    _DECIMAL.pattern + rb"|[ \t]*[+-]?(?:nan(?:\([0-9a-z_]*\))?|inf|infinity)[ \t]*",
    re.IGNORECASE,
)
_DATE = rb"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
_TIME = rb"[0-2][0-9](?::[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,6})?)?)?"
_ZONE = rb"(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)?"
_PATTERNS = {
    pa.bool_(): re.compile(rb"0|1|[a-zA-Z]{4,5}"),
    pa.float32(): _NUMBER,
    pa.float64(): _NUMBER,
    pa.date32(): re.compile(rb"[ \t]*" + _DATE + rb"[ \t]*"),
    pa.timestamp("us"): re.compile(_DATE + rb"(?:[ T]" + _TIME + rb")?"),
    INSTANT: re.compile(_DATE + rb"(?:[ T]" + _TIME + _ZONE + rb")?"),
}

_DIGITS_CHECKED = 100
"""No type has more than 38 digits. Longer texts (of zeros, say) are left to the parser."""
_EXACT = Context(prec=2000)
"""Room for a text of 100 digits with an exponent of three: nothing is rounded."""


def possible(column: Column) -> Callable[[bytes], bool]:
    """Return the check for the values of a column; nulls are not shown to it."""
    kind = column.arrow_type
    if pa.types.is_string(kind):
        return _is_utf8
    if pa.types.is_integer(kind):
        return partial(_may_be_integer, bits=kind.bit_width)
    if pa.types.is_decimal(kind):
        return partial(_may_be_decimal, precision=kind.precision, scale=kind.scale)
    pattern = _PATTERNS.get(kind)
    if pattern is None:
        return lambda _: True
    return lambda value: pattern.fullmatch(value) is not None


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _may_be_integer(value: bytes, *, bits: int) -> bool:
    match = _INTEGER.fullmatch(value)
    if match is None:
        return False
    if match[1] is None or len(match[1]) > _DIGITS_CHECKED:
        return True
    return -(1 << bits - 1) <= int(match[1]) < 1 << bits - 1


def _may_be_decimal(value: bytes, *, precision: int, scale: int) -> bool:
    match = _DECIMAL.fullmatch(value)
    if match is None:
        return False
    if len(match[1]) > _DIGITS_CHECKED or len(match[2] or b"") > 3:
        return True
    scaled = _EXACT.scaleb(Decimal(match[1].decode()), scale)
    return scaled == _EXACT.to_integral_value(scaled) and abs(scaled) < 10**precision
