"""Names of replayable things: a hash of what they identify, so that a replay finds the same name.

A random id for something that a crash may make again would turn one thing into two, so nothing
here draws random numbers, save `fresh_token`, which names things that are never replayed.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import NewType

RunId = NewType("RunId", str)
BatchId = NewType("BatchId", str)
Epoch = NewType("Epoch", int)
Offset = NewType("Offset", int)
Ordinal = NewType("Ordinal", int)

START = Offset(0)
"""The offset of the first record of a partition."""

NAME_PATTERN = "[A-Za-z0-9_-]{1,64}"
"""What a name that stands in an address may be: the whole of it has to match."""
_NAME = re.compile(NAME_PATTERN)

_DIGEST_BYTES = 16
"""128 bits: two different things share a name once in about 2^64 names; less would be felt."""


def is_name(text: str) -> bool:
    """Tell whether a text may stand in an address as a name, of a run or of a series."""
    return _NAME.fullmatch(text) is not None


def digest(*parts: str | int | bytes) -> str:
    """Return the name of what `parts` identify, as 32 hexadecimal digits.

    Each part goes in with its type and length, so ("ab", "c") and ("a", "bc") differ, and so do
    1 and "1".
    """
    return digest_bytes(*parts).hex()


def digest_bytes(*parts: str | int | bytes) -> bytes:
    """Return the same name as 16 bytes, for those who make many of them."""
    pieces: list[bytes] = []
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        pieces += (f"{type(part).__name__}:{len(data)}:".encode(), data)
    return hashlib.blake2b(b"".join(pieces), digest_size=_DIGEST_BYTES).digest()


def fresh_token() -> str:
    """Return a random name for something that is never made again: an upload, a process."""
    return secrets.token_hex(_DIGEST_BYTES)


def fresh_secret() -> str:
    """Return 256 random bits as text: a token's secret, a key for signatures."""
    return secrets.token_hex(32)
