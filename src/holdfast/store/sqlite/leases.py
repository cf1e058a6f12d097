"""Leases: who may act, and the epoch that fences whoever may no longer."""

from __future__ import annotations

from holdfast._base.ids import Epoch
from holdfast.store.rows import Fence, Lease
from holdfast.store.sqlite.base import Part, hold_fence, row_of, rows_of


class LeasePart(Part):
    """Fills `holdfast.store.contract.LeaseStore`."""

    def take_lease(self, resource: str, owner: str) -> Fence:
        """Grant the lease to `owner` with the next epoch, at once, whoever had it before."""
        with self._database.transaction() as connection:
            [(epoch,)] = rows_of(
                connection,
                """INSERT INTO lease VALUES (?1, 1, ?2, 0)
                   ON CONFLICT (resource) DO UPDATE SET epoch = epoch + 1, owner = ?2, beat = 0
                   RETURNING epoch""",
                resource,
                owner,
            )
        return Fence(resource, Epoch(epoch))

    def succeed_lease(self, seen: Lease, owner: str) -> Fence | None:
        """Grant the next epoch to `owner` if epoch and beat are still as they were `seen`."""
        with self._database.transaction() as connection:
            row = row_of(
                connection,
                """UPDATE lease SET epoch = epoch + 1, owner = ?, beat = 0
                   WHERE resource = ? AND epoch = ? AND beat = ? RETURNING epoch""",
                owner,
                seen.resource,
                seen.epoch,
                seen.beat,
            )
        return Fence(seen.resource, Epoch(row[0])) if row else None

    def beat_lease(self, fence: Fence) -> None:
        """Show that the owner lives. Raises Fenced if it is the owner no more."""
        with self._database.transaction() as connection:
            hold_fence(connection, fence)

    def read_lease(self, resource: str) -> Lease | None:
        """Return the lease as it stands, or None if it was never granted."""
        with self._database.reading() as connection:
            sql = "SELECT resource, epoch, owner, beat FROM lease WHERE resource = ?"
            row = row_of(connection, sql, resource)
        return Lease(*row) if row else None
