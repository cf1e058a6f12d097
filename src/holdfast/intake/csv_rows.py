r"""Where the rows of a CSV text end, by the rule of the parser that will read it (Arrow's C++ one).

The rule: a quote opens only as the first byte of a field, so the one in `5" pipe` does not; `""`
inside quotes is a quote; after the closing quote the rest of the field is plain text in which
quotes mean nothing; a newline inside quotes ends no row. Counting quotes (parity) is wrong here.

Rows also end at a lone CR, but nothing is ever cut there: a CR may be the first half of a CRLF.
All patterns are possessive: they never try again, so that time and memory stay linear.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

BOM = b"\xef\xbb\xbf"

# From a quote on. It opens if the byte before it is a separator or there is none; then all up to
# the closing quote belongs to it. Otherwise it is a plain byte.
_FROM_QUOTE = rb'"(?:(?<![^,\r\n]")[^"]*+(?:""[^"]*+)*+"%b|(?<=[^,\r\n]"))'
# Where more bytes may follow, a closing quote is known as one only by the byte behind it.
_IN_WINDOW = _FROM_QUOTE % rb'(?=[^"])'
_IN_WHOLE = _FROM_QUOTE % rb'(?!")'

_FIELDS = re.compile(rb'[^"]*+(?:' + _IN_WINDOW + rb'[^"]*+)*+')
_ROWS = re.compile(rb'(?:[^"\n]*+(?:' + _IN_WINDOW + rb'[^"\n]*+)*+\n)*+')
_ALL_FIELDS = re.compile(rb'[^"]*+(?:' + _IN_WHOLE + rb'[^"]*+)*+')
_ONE_ROW = re.compile(rb'[^"\r\n]*+(?:' + _IN_WHOLE + rb'[^"\r\n]*+)*+')
_LINE_END = re.compile(rb"\r\n|\r|\n|\Z")

_TAIL_BYTES = 1 << 18
"""How far back from the end of a window the last row is looked for. The pattern that stops at
newlines is three times slower than the one that only steps over quoted fields; a row longer than
this costs a second look at the whole window."""


def last_row_end(window: bytes | bytearray, size: int) -> int:
    """Return where the last whole row within the first `size` bytes ends; 0 if none does.

    The window begins at the start of a row. Whatever follows the result is the beginning of a row.
    """
    if window.find(b'"', 0, size) < 0:
        return window.rfind(b"\n", 0, size) + 1
    fields = _FIELDS.match(window, 0, max(0, size - _TAIL_BYTES))
    # The lexer stands outside of quotes at the end of this match, wherever that is in a row.
    outside = fields.end() if fields else 0
    rows = _ROWS.match(window, outside, size)
    if outside and rows and rows.end() == outside:
        rows = _ROWS.match(window, 0, size)
    return rows.end() if rows else 0


def ends_in_quotes(data: bytes, begin: int = 0) -> bool:
    """Tell whether the last quoted field is never closed: to the parser it holds all the rest."""
    fields = _ALL_FIELDS.match(data, begin)
    return fields is not None and fields.end() < len(data)


def count_line_ends(data: bytes, start: int, stop: int) -> int:
    """Return how many line ends of any kind there are in data[start:stop]."""
    ends = data.count(b"\n", start, stop) + data.count(b"\r", start, stop)
    return ends - data.count(b"\r\n", start, stop)


def line_ends_in(pieces: Iterable[bytes]) -> int:
    """Return how many line ends there are in a text that comes in pieces."""
    found = 0
    last = b""
    for piece in pieces:
        text = last + piece
        # A carriage return at the end may be the first half of a line end: it waits for the rest.
        last = text[-1:] if text.endswith(b"\r") else b""
        found += count_line_ends(text, 0, len(text) - len(last))
    return found + len(last)


def shown(data: bytes, limit: int) -> str:
    """Return at most `limit` characters of some bytes of a file as one line for a message."""
    text = data[: 4 * limit].decode(errors="backslashreplace")[:limit]
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def header_of(data: bytes | memoryview) -> tuple[bytes, int]:
    """Return the header line of a CSV document, without BOM and line end, and where rows begin."""
    begin = len(BOM) if data[: len(BOM)] == BOM else 0
    stop, following = _row_from(data, begin)
    return bytes(data[begin:stop]), following


def row_spans(data: bytes, begin: int = 0) -> Iterator[tuple[int, int]]:
    """Yield begin and end (without the line end) of each row from `begin` on, which is the start
    of one. Empty lines are no rows.

    For bad input only: it costs a step of Python for each row.
    """
    while begin < len(data):
        stop, following = _row_from(data, begin)
        if stop > begin:
            yield begin, stop
        begin = following


def _row_from(data: bytes | memoryview, begin: int) -> tuple[int, int]:
    row = _ONE_ROW.match(data, begin)
    stop = row.end() if row else begin
    line_end = _LINE_END.match(data, stop)
    # What stops a row without ending it is a quote that is never closed: it takes all the rest.
    return (stop, line_end.end()) if line_end else (len(data), len(data))
