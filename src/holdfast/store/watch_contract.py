"""What a store must do for whoever cleans up: how long each run is as it is, what is left of it.

The rules of `holdfast.store.contract` hold here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast._base.ids import RunId
from holdfast.store.result_rows import Watched
from holdfast.store.rows import Fence


class WatchStore(Protocol):
    """What happened to each run last, and for how long nothing has."""

    def add_elapsed(self, fence: Fence, ms: int) -> int:
        """Add to the accumulated time by which notices are due and runs grow old; the sum."""

    def read_elapsed(self) -> int:
        """Return the accumulated time in milliseconds."""

    def watch_runs(
        self, fence: Fence, *, sweep_ms: int = 0, expire_ms: int | None = 0
    ) -> list[Watched]:
        """Look at every run that is not over, and remember since when it is as it is.

        Returns those, oldest first, and among them the ones that are over and of which something
        is to go: SWEPT and not cleared, DONE with queues, DONE for `expire_ms` (None: that is
        never enough), ended otherwise for `sweep_ms`. It costs nothing that grows with the others.
        The end of a run is seen by the move that makes it.
        """

    def list_watched(self) -> list[Watched]:
        """Return every run that is not cleared, as it was last seen. Changes nothing."""

    def read_idle(self) -> dict[RunId, int]:
        """Return for how many milliseconds nothing happened to each run that is not over, as it
        was last seen.
        """

    def read_idle_of(self, run_id: RunId) -> int:
        """Return for how many milliseconds nothing happened to a run. 0: it is over, or something
        happened since it was last seen.
        """

    def count_uncleared(self) -> int:
        """Return of how many runs something is to go at once: SWEPT and not cleared, or DONE with
        queues.
        """

    def excuse_runs(self, fence: Fence, run_ids: Sequence[RunId]) -> None:
        """Let these runs count as if something happened to them now, if they are not over."""

    def abandon_run(self, fence: Fence, run_id: RunId, *, mark: str, error: str) -> bool:
        """Move a run to ABANDONED if it still is as `mark` says. False: something happened."""

    def forget_queues(self, fence: Fence, run_id: RunId, topics: tuple[str, ...] = ()) -> None:
        """Record that a run's queues are gone, and drop these topics of the embedded log."""

    def clear_run(self, fence: Fence, run_id: RunId, *, uploads: str) -> None:
        """Delete the rows of a SWEPT run whose bytes are gone, and the marks of condemned blobs
        that begin with `uploads`. The run, its works and notices, and under which key it was
        created stay: the tombstone.
        """
