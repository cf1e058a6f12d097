"""Webhooks of clients, and the outbox of notices to them.

A notice is inserted by the transaction that ends its run (`moves`). Here it is taken out, counted
before it is sent, and marked when the receiver took it or when it is given up.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from holdfast._base.ids import RunId
from holdfast._base.invariant import invariant
from holdfast.store.result_rows import Notice, NoticeKind, NoticeState
from holdfast.store.rows import Fence
from holdfast.store.sqlite.base import Part, hold_fence, row_of, rows_of

_NOTICES = """
SELECT notice_id, run_id, client, kind, url, body, notice.state, attempts, failures, due_ms,
    notice.error, notice.created_ms
FROM notice JOIN run USING (run_id)
"""
_ELAPSED = "SELECT COALESCE(SUM(ms), 0) FROM elapsed WHERE name = 'delivery'"

_HEADS = f"""
SELECT number FROM (
    SELECT notice.number, due_ms,
        ROW_NUMBER() OVER (PARTITION BY client ORDER BY due_ms, notice.number) AS place
    FROM notice JOIN run USING (run_id)
    WHERE notice.state = 'waiting' AND due_ms <= ({_ELAPSED})
        AND client NOT IN (SELECT value FROM json_each(?)))
WHERE place = 1 ORDER BY due_ms, number LIMIT ?
"""  # noqa: S608 - constants only
"""What each client is due first. No body is read for it: there may be many, and large ones."""

_SENT = """
UPDATE notice SET state = 'sent', error = NULL, body = CASE
    WHEN (SELECT state FROM run WHERE run.run_id = notice.run_id) = 'SWEPT' THEN '{}' ELSE body END
WHERE notice_id = ?
"""
"""Nobody needs the body then: that of another goes with its run (`watch.clear_run`)."""


def _notice_from(row: tuple[Any, ...]) -> Notice:
    name, run_id, client, kind, url, body, state, *rest = row
    kinds = NoticeKind(kind), url, body, NoticeState(state)
    return Notice(name, RunId(run_id), client, *kinds, *rest)


class NoticePart(Part):
    """Fills `holdfast.store.contract.NoticeStore`."""

    def set_webhook(self, client: str, url: str | None) -> None:
        """Say where a client's notices go; None: nowhere."""
        with self._database.transaction() as connection:
            if url is None:
                connection.execute("DELETE FROM webhook WHERE client = ?", (client,))
            else:
                connection.execute(
                    """INSERT INTO webhook VALUES (?, ?)
                       ON CONFLICT DO UPDATE SET url = excluded.url""",
                    (client, url),
                )

    def read_webhook(self, client: str) -> str | None:
        """Return where a client's notices go, or None."""
        with self._database.reading() as connection:
            row = row_of(connection, "SELECT url FROM webhook WHERE client = ?", client)
        return row[0] if row else None

    def list_notices(
        self, *, run_id: RunId | None = None, state: NoticeState | None = None
    ) -> list[Notice]:
        """Return notices, oldest first: all, of a run, in a state."""
        sql = f"""{_NOTICES} WHERE (?1 IS NULL OR run_id = ?1)
                  AND (?2 IS NULL OR notice.state = ?2) ORDER BY notice.number"""
        with self._database.reading() as connection:
            return [_notice_from(row) for row in rows_of(connection, sql, run_id, state)]

    def count_notices(self) -> dict[str, int]:
        """Return how many notices are in each state, without reading them."""
        with self._database.reading() as connection:
            return dict(rows_of(connection, "SELECT state, COUNT(*) FROM notice GROUP BY state"))

    def due_notices(self, count: int, *, without: Collection[str] = ()) -> list[Notice]:
        """Return up to `count` notices that are due, one of each client but those `without`."""
        sql = f"""{_NOTICES} WHERE notice.number IN ({_HEADS})
                  ORDER BY due_ms, notice.number"""
        with self._database.reading() as connection:
            rows = rows_of(connection, sql, json.dumps(sorted(without)), count)
        return [_notice_from(row) for row in rows]

    def begin_notice(self, fence: Fence, notice_id: str) -> int | None:
        """Count an attempt before it begins; returns its number. None: it is not due."""
        sql = f"""UPDATE notice SET attempts = attempts + 1
                  WHERE notice_id = ? AND state = 'waiting' AND due_ms <= ({_ELAPSED})
                  RETURNING attempts"""  # noqa: S608 - constants only
        with self._database.transaction() as connection:
            hold_fence(connection, fence)
            row = row_of(connection, sql, notice_id)
        return row[0] if row else None

    def record_sent(self, fence: Fence, notice_id: str) -> None:
        """Record that the receiver took a notice."""
        with self._database.transaction() as connection:
            hold_fence(connection, fence)
            connection.execute(_SENT, (notice_id,))
            invariant(connection.changes() == 1, f"notice {notice_id} is not there")

    def record_unsent(
        self, fence: Fence, notice_id: str, error: str, *, wait_ms: int | None
    ) -> None:
        """Record a failed attempt; due again after `wait_ms`. None: it is given up."""
        state = NoticeState.DEAD if wait_ms is None else NoticeState.WAITING
        sql = f"""UPDATE notice SET state = ?, error = ?, failures = failures + 1,
                      due_ms = ({_ELAPSED}) + ? WHERE notice_id = ? AND state = 'waiting'"""  # noqa: S608 - constants only
        with self._database.transaction() as connection:
            hold_fence(connection, fence)
            connection.execute(sql, (state, error, wait_ms or 0, notice_id))
            invariant(connection.changes() == 1, f"notice {notice_id} is not waiting")

    def revive_notice(self, notice_id: str) -> bool:
        """Make a notice that was given up wait again, with no failure. False: it was not."""
        with self._database.transaction() as connection:
            connection.execute(
                """UPDATE notice SET state = 'waiting', failures = 0, due_ms = 0
                   WHERE notice_id = ? AND state = 'dead'""",
                (notice_id,),
            )
            return connection.changes() == 1
