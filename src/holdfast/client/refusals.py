"""What a refusal means: an error of ours, and whether the same request may succeed later. Pure."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from holdfast.errors import HoldfastError, ServerRefused, all_errors

RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504, 507})
"""Statuses of the moment: too much, too slow, a process that is being replaced, a full disk."""
BUSY = 429
_SHOWN_CHARACTERS = 300


def error_of(status: int, body: bytes) -> HoldfastError:
    """Return the error that the server raised, made of its code and facts where we know them."""
    document = _document(body)
    cls = all_errors().get(str(document.get("code")))
    if cls is not None:
        names = [field.name for field in fields(cls)]
        if all(name in document for name in names):
            return cls(**{name: document[name] for name in names})
    text = document.get("message") or document.get("detail") or body.decode(errors="replace")
    what = " ".join(str(text).split())[:_SHOWN_CHARACTERS].rstrip(".")
    return ServerRefused(status=status, what=what or "no reason given")


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
