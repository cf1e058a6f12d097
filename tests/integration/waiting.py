"""Waiting for a condition, with a deadline: tests that talk to real processes never just sleep."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], what: str, *, timeout_s: float = 60.0) -> None:
    """Return when `condition` holds; fail naming `what` when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)
