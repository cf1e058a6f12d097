"""Who is silent for too long. Pure: counters and the watcher's own monotonic time.

An owner's row has a counter that grows with each of its beats and transactions. A watcher that sees
no change of it for `takeover_s` may take the owner's slots. Only time during which it really looked
counts: a gap between two looks (the server was away, this process stood still) counts as at most a
tenth of `takeover_s`, so an outage that silenced everybody convicts nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LOOKS = 10
"""At least so many looks see the same counter before an owner is taken for dead."""


@dataclass(frozen=True, slots=True)
class _Seen:
    beat: int
    silent_s: float
    at_s: float


class Watch:
    """What one process has seen of others' counters. Not for two threads at once."""

    def __init__(self, takeover_s: float) -> None:
        self._takeover_s = takeover_s
        self._seen: dict[int, _Seen] = {}

    def is_dead(self, owner: int, beat: int, now_s: float) -> bool:
        """Look at an owner's counter. Returns whether it was silent for `takeover_s`."""
        before = self._seen.get(owner)
        if before is None or before.beat != beat:
            self._seen[owner] = _Seen(beat, 0.0, now_s)
            return False
        passed_s = min(now_s - before.at_s, self._takeover_s / LOOKS)
        seen = _Seen(beat, before.silent_s + passed_s, now_s)
        self._seen[owner] = seen
        # Ten tenths may add up to a little less than one.
        return seen.silent_s > self._takeover_s * 0.999

    def forget(self, owners: Iterable[int]) -> None:
        """Forget owners that are gone."""
        for owner in owners:
            self._seen.pop(owner, None)
