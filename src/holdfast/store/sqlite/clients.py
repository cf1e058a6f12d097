"""Clients, tokens, and the runs they create. Every look at a run is by (client, run id).

A token's secret is never here, only its SHA-256. A token in its grace has `left_ms`, which whoever
serves counts down in its own monotonic time; at 0 it opens nothing. Of several that serve one does:
the sum of what was counted (`elapsed`, row tokens) tells each whether another did meanwhile.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import apsw

from holdfast._base.ids import RunId
from holdfast.errors import RunClosed, RunGone
from holdfast.store.client_rows import (
    ChunkLook,
    Client,
    ClientRun,
    ClientUse,
    Login,
    Opening,
    OpeningFacts,
    OpeningRule,
    Quotas,
    Standing,
    Token,
)
from holdfast.store.rows import CLOSED_STATES, Chunk, NewRun, Run, RunState
from holdfast.store.sqlite.base import (
    RUN_COLUMNS,
    Part,
    canonical,
    row_of,
    rows_of,
    run_from,
)
from holdfast.store.sqlite.intake import (
    chunk_facts,
    insert_run,
    run_chunks_of,
    sender_of,
    stored_bytes_of,
)
from holdfast.store.sqlite.moves import move

_CLIENT_COLUMNS = "client.client, weight, quotas, client.created_ms, revoked"
_CLOSED = ", ".join(f"'{state}'" for state in sorted(CLOSED_STATES))
_OPEN_RUNS = f"SELECT COUNT(*) FROM run WHERE client = ? AND state NOT IN ({_CLOSED})"  # noqa: S608 - constants only
_ONE_RUN = f"SELECT {RUN_COLUMNS} FROM run WHERE run_id = ? AND client = ?"  # noqa: S608 - constants only
_RUNS = f"""
SELECT {RUN_COLUMNS} FROM run WHERE client = ?1 AND number > COALESCE(
    (SELECT number FROM run WHERE client = ?1 AND run_id = ?2), 0)
ORDER BY number LIMIT ?3
"""  # noqa: S608 - constants only


def _client_from(row: tuple[Any, ...]) -> Client:
    name, weight, quotas, created_ms, revoked = row
    return Client(name, weight, Quotas(**json.loads(quotas)), created_ms, bool(revoked))


def _insert_token(connection: apsw.Connection, client: str, token: Token, now_ms: int) -> None:
    connection.execute(
        "INSERT INTO token (token_id, client, checksum, created_ms) VALUES (?, ?, ?, ?)",
        (token.token_id, client, token.checksum, now_ms),
    )


def _opening_of(connection: apsw.Connection, run_id: RunId) -> Opening | None:
    sql = "SELECT client, key, declaration FROM opening WHERE run_id = ?"
    row = row_of(connection, sql, run_id)
    return Opening(*row) if row else None


def _run_of(connection: apsw.Connection, client: str, run_id: RunId) -> Run | None:
    row = row_of(connection, _ONE_RUN, run_id, client)
    return run_from(row) if row else None


def _client_run(connection: apsw.Connection, run: Run) -> ClientRun:
    return ClientRun(run, _opening_of(connection, run.run_id) or Opening(run.client, "", "{}"))


def _counted_ms(connection: apsw.Connection) -> int:
    row = row_of(connection, "SELECT ms FROM elapsed WHERE name = 'tokens'")
    return row[0] if row else 0


class ClientPart(Part):
    """Fills `holdfast.store.client_contract.ClientStore`."""

    def add_client(self, client: Client, token: Token) -> bool:
        """Make a client known, with its first token. False: the name is taken."""
        with self._database.transaction() as connection:
            now_ms = self._clock.wall_ms()
            quotas = {name: value for name, value in asdict(client.quotas).items() if value}
            connection.execute(
                "INSERT INTO client VALUES (?, ?, ?, ?, 0) ON CONFLICT (client) DO NOTHING",
                (client.client, client.weight, canonical(quotas), now_ms),
            )
            if connection.changes() == 0:
                return False
            _insert_token(connection, client.client, token, now_ms)
        return True

    def read_client(self, client: str) -> Client | None:
        """Return a client, or None."""
        with self._database.reading() as connection:
            sql = f"SELECT {_CLIENT_COLUMNS} FROM client WHERE client = ?"  # noqa: S608 - constants only
            row = row_of(connection, sql, client)
        return _client_from(row) if row else None

    def list_clients(self) -> list[Client]:
        """Return all clients, by name."""
        with self._database.reading() as connection:
            sql = f"SELECT {_CLIENT_COLUMNS} FROM client ORDER BY client"  # noqa: S608 - constants only
            return [_client_from(row) for row in rows_of(connection, sql)]

    def read_use(self, client: str) -> ClientUse:
        """Return what a client takes now."""
        with self._database.reading() as connection:
            [(runs,)] = rows_of(connection, "SELECT COUNT(*) FROM run WHERE client = ?", client)
            [(open_runs,)] = rows_of(connection, _OPEN_RUNS, client)
            stored = stored_bytes_of(connection, client)
            sql = "SELECT COUNT(*) FROM token WHERE client = ? AND left_ms IS NOT 0"
            [(tokens,)] = rows_of(connection, sql, client)
        return ClientUse(runs, open_runs, stored, tokens)

    def read_standing(self) -> Standing:
        """Return how many runs are in each state, and how many wait for an END."""
        with self._database.reading() as connection:
            sql = "SELECT state, COUNT(*) FROM run GROUP BY state"
            states = dict(rows_of(connection, sql))
            [(waiting,)] = rows_of(
                connection,
                """SELECT COUNT(*) FROM run WHERE state = 'OPEN' AND EXISTS (
                       SELECT 1 FROM sender WHERE sender.run_id = run.run_id
                       AND announced IS NULL AND NOT produced)""",
            )
        return Standing(states, waiting)

    def rotate_token(self, client: str, token: Token, *, grace_ms: int) -> bool:
        """Give a client another token; the old ones stay good for `grace_ms`. False: no client."""
        with self._database.transaction() as connection:
            connection.execute("UPDATE client SET revoked = 0 WHERE client = ?", (client,))
            if connection.changes() == 0:
                return False
            connection.execute("DELETE FROM token WHERE client = ? AND left_ms = 0", (client,))
            connection.execute(
                "UPDATE token SET left_ms = MIN(COALESCE(left_ms, ?1), ?1) WHERE client = ?2",
                (grace_ms, client),
            )
            _insert_token(connection, client, token, self._clock.wall_ms())
        return True

    def revoke_client(self, client: str) -> bool:
        """Take all tokens of a client away, at once. Its runs stay. False: no such client."""
        with self._database.transaction() as connection:
            connection.execute("UPDATE client SET revoked = 1 WHERE client = ?", (client,))
            if connection.changes() == 0:
                return False
            connection.execute("DELETE FROM token WHERE client = ?", (client,))
        return True

    def find_login(self, token_id: str) -> Login | None:
        """Return whose token this is, if it still opens anything."""
        with self._database.reading() as connection:
            row = row_of(
                connection,
                f"""SELECT checksum, {_CLIENT_COLUMNS} FROM token JOIN client USING (client)
                    WHERE token_id = ? AND left_ms IS NOT 0 AND NOT revoked""",  # noqa: S608 - constants only
                token_id,
            )
        return Login(_client_from(row[1:]), row[0]) if row else None

    def age_tokens(self, elapsed_ms: int, *, seen: int) -> int:
        """Count down the grace of replaced tokens, unless somebody else did since `seen`."""
        with self._database.reading() as connection:
            counted = _counted_ms(connection)
            is_any = row_of(connection, "SELECT 1 FROM token WHERE left_ms > 0 LIMIT 1")
        if counted != seen or not is_any:
            return counted
        with self._database.transaction() as connection:
            counted = _counted_ms(connection)
            if counted != seen:
                return counted
            connection.execute(
                """INSERT INTO elapsed VALUES ('tokens', ?1)
                   ON CONFLICT DO UPDATE SET ms = ms + ?1""",
                (elapsed_ms,),
            )
            connection.execute(
                "UPDATE token SET left_ms = MAX(0, left_ms - ?) WHERE left_ms > 0", (elapsed_ms,)
            )
        return counted + elapsed_ms

    def open_client_run(self, run: NewRun, opening: Opening, rule: OpeningRule) -> bool:
        """Create a client's run, its senders and topics, if `rule` says so."""
        with self._database.transaction() as connection:
            [(open_runs,)] = rows_of(connection, _OPEN_RUNS, opening.client)
            stored = _opening_of(connection, run.run_id)
            known = _run_of(connection, opening.client, run.run_id)
            is_swept = known is not None and known.state == RunState.SWEPT
            if not rule(opening, OpeningFacts(stored, is_swept, open_runs)):
                return False
            insert_run(connection, run)
            connection.execute(
                "INSERT INTO opening VALUES (?, ?, ?, ?)",
                (run.run_id, opening.client, opening.key, opening.declaration),
            )
        return True

    def read_client_run(self, client: str, run_id: RunId) -> ClientRun | None:
        """Return a run of this client. None: it has no such run, whoever else has."""
        with self._database.reading() as connection:
            run = _run_of(connection, client, run_id)
            return _client_run(connection, run) if run else None

    def list_client_runs(
        self, client: str, *, after: RunId | None = None, count: int
    ) -> list[ClientRun]:
        """Return up to `count` runs of a client, oldest first, those behind `after`."""
        with self._database.reading() as connection:
            found = rows_of(connection, _RUNS, client, after, count)
            return [_client_run(connection, run_from(row)) for row in found]

    def look_at_chunk(self, client: str, run_id: RunId, chunk: Chunk) -> ChunkLook | None:
        """Return what is known of a chunk before its bytes come. None: no such run."""
        with self._database.reading() as connection:
            run = _run_of(connection, client, run_id)
            if run is None:
                return None
            known = sender_of(connection, run_id, table=chunk.table, sender=chunk.sender)
            facts = chunk_facts(connection, run, chunk, known)
            chunks = run_chunks_of(connection, run_id)
        return ChunkLook(facts, known is not None and known[0].whole, chunks)

    def cancel_run(self, client: str, run_id: RunId) -> Run | None:
        """Move a client's run to CANCELLED, from wherever it still works."""
        with self._database.transaction() as connection:
            run = _run_of(connection, client, run_id)
            if run is None or run.state == RunState.CANCELLED:
                return run
            if run.state == RunState.SWEPT:
                raise RunGone(run=run_id, state=run.state)
            if run.state in CLOSED_STATES:
                raise RunClosed(run=run_id, state=run.state)
            move(
                connection,
                run_id,
                expected=run.state,
                to=RunState.CANCELLED,
                now_ms=self._clock.wall_ms(),
            )
            return _run_of(connection, client, run_id)
