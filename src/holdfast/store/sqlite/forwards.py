"""The shards of runs, and the ENDs that are owed to them."""

from __future__ import annotations

import json
from collections.abc import Sequence

import apsw

from holdfast._base.ids import RunId
from holdfast.errors import RunGone
from holdfast.store.rows import End, OwedEnd, RunState, SpreadRun
from holdfast.store.sqlite.base import Part, canonical, lock_run, rows_of

_SPREAD = """
SELECT client, run_id, shards FROM run_shards JOIN run USING (run_id)
WHERE run.state = 'OPEN' OR run.state <> 'SWEPT' AND run_id IN (SELECT run_id FROM owed_end)
ORDER BY number
"""
_OWED = """
SELECT client, run_id, tbl, sender, announced
FROM owed_end JOIN sender USING (run_id, tbl, sender) JOIN run USING (run_id)
WHERE run.state <> 'SWEPT' ORDER BY number, position
"""


def owe(connection: apsw.Connection, run_id: RunId, end: End) -> None:
    """Note that the shards of a run are still to hear of an END that stands in intake."""
    connection.execute(
        "INSERT INTO owed_end VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        (run_id, end.table, end.sender),
    )


class ForwardPart(Part):
    """Fills `holdfast.store.forward_contract.ForwardStore`."""

    def keep_shards(self, run_id: RunId, shards: Sequence[str]) -> tuple[str, ...]:
        """Keep which shards a run is spread over, in order; returns those that are kept."""
        with self._database.transaction() as connection:
            run = lock_run(connection, run_id)
            if run.state == RunState.SWEPT:
                raise RunGone(run=run_id, state=run.state)
            connection.execute(
                "INSERT INTO run_shards VALUES (?, ?) ON CONFLICT DO NOTHING",
                (run_id, canonical(list(shards))),
            )
            sql = "SELECT shards FROM run_shards WHERE run_id = ?"
            [(kept,)] = rows_of(connection, sql, run_id)
        return tuple(json.loads(kept))

    def list_spread_runs(self) -> list[SpreadRun]:
        """Return the runs with shards that take chunks, or owe an END, oldest first."""
        with self._database.reading() as connection:
            found = rows_of(connection, _SPREAD)
        return [SpreadRun(client, run, tuple(json.loads(kept))) for client, run, kept in found]

    def list_owed_ends(self) -> list[OwedEnd]:
        """Return the ENDs that some shard may not have, of runs that are not swept."""
        with self._database.reading() as connection:
            return [OwedEnd(*row) for row in rows_of(connection, _OWED)]

    def record_forwarded(self, run_id: RunId, table: str, sender: str) -> None:
        """Record that every shard confirmed an END. One that is not owed is no error."""
        with self._database.transaction() as connection:
            lock_run(connection, run_id)
            connection.execute(
                "DELETE FROM owed_end WHERE run_id = ? AND tbl = ? AND sender = ?",
                (run_id, table, sender),
            )
