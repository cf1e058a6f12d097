"""What a refusal means: an error of ours, and whether the same request may succeed later. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, fields
from typing import Any

from holdfast.errors import HoldfastError, ServerRefused, all_errors

RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504, 507})
"""Statuses of the moment: too much, too slow, a process that is being replaced, a full disk."""
BUSY = 429
_SHOWN_CHARACTERS = 300
_TAG = re.compile(r"<[^>]*>")


def error_of(status: int, body: bytes) -> HoldfastError:
    """Return the error that the server raised, made of its code and facts where we know them."""
    document = _document(body)
    cls = all_errors().get(str(document.get("code")))
    if cls is not None:
        facts = {one.name: document[one.name] for one in fields(cls) if one.name in document}
        if all(one.name in facts for one in fields(cls) if one.default is MISSING):
            return cls(**facts)
    text = str(document.get("message") or document.get("detail") or body.decode(errors="replace"))
    is_page = text.lstrip().startswith("<")
    words = " ".join((_TAG.sub(" ", text) if is_page else text).split())
    what = words[:_SHOWN_CHARACTERS].rstrip(".") or "no reason given"
    if is_page:
        what = f"a page of some other server's, which says {what!r}"
    return ServerRefused(status=status, what=what)


def _document(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def retry_after_s(header: str | None) -> float | None:
    """Return the seconds a server asks to wait; None if it names none, or names a date."""
    digits = "" if header is None else header.strip()
    return float(digits) if digits.isascii() and digits.isdigit() else None
