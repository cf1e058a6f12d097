"""Compressed inputs, known by their names or, where those lie, by their first bytes. Pure.

They are refused: a chunk is a byte range of a file, and a compressed file has no ranges that can
be read alone.
"""

from __future__ import annotations

import re

from holdfast.errors import UsageInvalid

EXTENSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2", ".xz": "xz", ".zip": "zip"}

# None of these can begin a text: each has bytes that no text has, or is too long for chance.
_BEGINNINGS = {
    "gzip": re.compile(rb"\x1f\x8b"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd"),
    "bzip2": re.compile(rb"BZh[1-9]1AY&SY"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
    "zip": re.compile(rb"PK\x03\x04"),
}
_TOOLS = {"zip": "unzip -p"}


def refusal(path: object, method: str) -> UsageInvalid:
    """Return the error for a file that is compressed by `method`."""
    tool = _TOOLS.get(method, f"{method} -dc")
    remedy = f"Put the file that `{tool}` makes of it in its place."
    return UsageInvalid(what=f"{path} is compressed ({method})", remedy=remedy)


def refuse_compressed(path: object, beginning: bytes | memoryview) -> None:
    """Refuse a file whose first bytes are those of a compressed one, whatever its name says.

    Raises:
        UsageInvalid: it is compressed.
    """
    for method, pattern in _BEGINNINGS.items():
        if pattern.match(beginning):
            raise refusal(path, method)
