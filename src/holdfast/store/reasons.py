"""Why a run ended, as it is kept and as its client reads it. Pure."""

from __future__ import annotations

import re

REASON_CHARACTERS_MAX = 2000
"""Of why a run failed. A stage may raise with a whole document in its words, and clients are told
the reason with every look at their runs."""
_TAIL_CHARACTERS = 500
"""Of a reason that is too long: what to do is said last."""
_GAP = " ... "
_UPLOADED = re.compile(r"blobs/chunks/\w+/(\w+)/\w+/(\d+)-\w+")
"""Where an uploaded chunk lies, below the state directory: table, ordinal. See
docs/internals/blobs.md."""


def shortened(reason: str) -> str:
    """Return a reason as it is kept: of one that is too long its beginning and its end."""
    if len(reason) <= REASON_CHARACTERS_MAX:
        return reason
    head = REASON_CHARACTERS_MAX - _TAIL_CHARACTERS - len(_GAP)
    return f"{reason[:head]}{_GAP}{reason[-_TAIL_CHARACTERS:]}"


def without_places(reason: str | None) -> str | None:
    """Return a reason for its client: it says which chunk, not where the server keeps it."""
    return None if reason is None else _UPLOADED.sub(r"chunk \2 of table \1", reason)
