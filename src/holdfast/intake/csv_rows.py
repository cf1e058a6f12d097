r"""Where the rows of a CSV text end, by the rule of the parser that will read it (Arrow's C++ one).

The rule: a quote opens only as the first byte of a field, so the one in `5" pipe` does not; `""`
inside quotes is a quote; after the closing quote the rest of the field is plain text in which
quotes mean nothing; a newline inside quotes ends no row. Counting quotes (parity) is wrong here.

Rows also end at a lone CR, but nothing is ever cut there: a CR may be the first half of a CRLF.
All patterns are possessive: they never try again, so that time and memory stay linear.
"""

from __future__ import annotations

import re

BOM = b"\xef\xbb\xbf"

# From a quote on. It opens if the byte before it is a separator or there is none; then all up to
# the closing quote belongs to it, and that one is known only when something else follows it.
# Otherwise it is a plain byte.
_FROM_QUOTE = rb'"(?:(?<![^,\r\n]")[^"]*+(?:""[^"]*+)*+"(?=[^"])|(?<=[^,\r\n]"))'

_FIELDS = re.compile(rb'[^"]*+(?:' + _FROM_QUOTE + rb'[^"]*+)*+')
_ROWS = re.compile(rb'(?:[^"\n]*+(?:' + _FROM_QUOTE + rb'[^"\n]*+)*+\n)*+')
_ONE_ROW = re.compile(
    rb'[^"\r\n]*+(?:' + _FROM_QUOTE.replace(rb'(?=[^"])', rb'(?!")') + rb'[^"\r\n]*+)*+'
)
_LINE_END = re.compile(rb"\r\n|\r|\n|\Z")

_TAIL_BYTES = 1 << 18
"""How far back from the end of a window the last row is looked for. The pattern that stops at
newlines is three times slower than the one that only steps over quoted fields; a row longer than
this costs a second look at the whole window."""


def last_row_end(window: bytes | bytearray | memoryview, size: int) -> int:
    """Return where the last whole row within the first `size` bytes ends; 0 if none does.

    The window begins at the start of a row. Whatever follows the result is the beginning of a row.
    """
    data = window[:size]
    if isinstance(data, memoryview):
        data = bytes(data)
    if b'"' not in data:
        return data.rfind(b"\n") + 1
    match = _FIELDS.match(data, 0, max(0, size - _TAIL_BYTES))
    # The lexer stands outside of quotes at the end of this match, wherever that is in a row.
    outside = match.end() if match else 0
    match = _ROWS.match(data, outside)
    if match is None or match.end() == outside:
        match = _ROWS.match(data)
    return match.end() if match else 0
