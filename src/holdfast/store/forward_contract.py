"""What a store must do for routers that feed shards: which shards a run has, which ENDs they lack.

The rules of `holdfast.store.contract` hold here too. `IntakeStore.record_end` makes an END owed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast._base.ids import RunId
from holdfast.store.rows import OwedEnd, SpreadRun


class ForwardStore(Protocol):
    """The shards of runs, and the ENDs that are owed to them: acked maybe, not forwarded yet."""

    def keep_shards(self, run_id: RunId, shards: Sequence[str]) -> tuple[str, ...]:
        """Keep which shards a run is spread over, in order; returns those that are kept.

        The first list counts: the ordinals of a shard are made by it. A run that is unknown or
        swept raises RunGone.
        """

    def list_spread_runs(self) -> list[SpreadRun]:
        """Return the runs with shards that take chunks, or owe an END, oldest first."""

    def list_owed_ends(self) -> list[OwedEnd]:
        """Return the ENDs that some shard may not have, of runs that are not swept, oldest run
        first; whatever else became of the run.
        """

    def record_forwarded(self, run_id: RunId, table: str, sender: str) -> None:
        """Record that every shard confirmed an END. One that is not owed is no error."""
