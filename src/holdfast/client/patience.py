"""How long a client goes on trying, and how long it waits in between. Pure.

Waits double, with a jitter: many clients that a restart threw out must not come back as one.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast._base.ids import digest
from holdfast.client.refusals import BUSY

ASKED_MOST_S = 60.0
"""The longest wait that a server may ask for: one strange header must not stop a client."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one request is tried before its error is raised."""

    silent_s: float = 120.0
    """Without a word from the server: a restart takes seconds, an upgrade a minute."""
    busy_s: float = 3600.0
    """While it says 429: it is there, and works off what it has taken in."""
    first_s: float = 0.1
    most_s: float = 5.0
    """The wait doubles from the first to the most. Less: a server that starts again is kept from
    it. More: a client stands still long after the server is back."""

    def pause_s(
        self, attempt: int, elapsed_s: float, *, status: int | None, asked_s: float | None, who: str
    ) -> float | None:
        """Return how long to wait before the next attempt; None: give up.

        `attempt` counts from 1. `who` makes the jitter differ from client to client.
        """
        limit_s = self.busy_s if status == BUSY else self.silent_s
        doubled_s = min(self.first_s * 2 ** min(attempt - 1, 30), self.most_s)
        share = int(digest("jitter", who, attempt)[:8], 16) / 0x1_0000_0000
        pause_s = doubled_s * (0.5 + share / 2)
        if asked_s is not None:
            pause_s += min(asked_s, ASKED_MOST_S)
        return pause_s if elapsed_s + pause_s <= limit_s else None
