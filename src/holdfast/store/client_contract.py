"""What a store must do for clients: who they are, and the runs that they create.

The rules of `holdfast.store.contract` hold here too.
"""

from __future__ import annotations

from typing import Protocol

from holdfast._base.ids import RunId
from holdfast.store.client_rows import (
    ChunkLook,
    Client,
    ClientRun,
    ClientUse,
    Login,
    Opening,
    OpeningRule,
    Standing,
    Token,
)
from holdfast.store.rows import Chunk, NewRun, Run


class ClientStore(Protocol):
    """Clients, their tokens, and the runs they create. A run is found by (client, run id) only."""

    def add_client(self, client: Client, token: Token) -> bool:
        """Make a client known, with its first token. False: the name is taken, nothing changed."""

    def read_client(self, client: str) -> Client | None:
        """Return a client, or None."""

    def list_clients(self) -> list[Client]:
        """Return all clients, by name, revoked ones too."""

    def read_use(self, client: str) -> ClientUse:
        """Return what a client takes now: runs, open runs, bytes of chunks, tokens."""

    def read_standing(self) -> Standing:
        """Return how many runs are in each state, and how many wait for an END."""

    def rotate_token(self, client: str, token: Token, *, grace_ms: int) -> bool:
        """Give a client another token; its old ones stay good for `grace_ms` of served time.

        A revoked client is one no longer. False: there is no such client.
        """

    def revoke_client(self, client: str) -> bool:
        """Take all tokens of a client away, at once. Its runs stay. False: no such client."""

    def find_login(self, token_id: str) -> Login | None:
        """Return whose token this is. None: there is none, or it opens nothing any more.

        The caller compares the secret with the checksum, in constant time.
        """

    def age_tokens(self, elapsed_ms: int, *, seen: int) -> int:
        """Count down the grace of replaced tokens by time that was served; returns how much was
        counted in all. No wall clock is asked: while nobody serves, no token is of any use.

        `seen` is what was returned when the elapsed time began, -1 at first. If the sum is another
        one now, somebody else counted that time, and nothing changes: of several that serve, one
        counts. No time is counted twice; when the one that counted ends, up to one step is lost.
        """

    def open_client_run(self, run: NewRun, opening: Opening, rule: OpeningRule) -> bool:
        """Create a client's run in state OPEN, its senders and topics, if `rule` says so.

        Returns what the rule returned.
        """

    def read_client_run(self, client: str, run_id: RunId) -> ClientRun | None:
        """Return a run of this client. None: it has no such run, whoever else has."""

    def list_client_runs(
        self, client: str, *, after: RunId | None = None, count: int
    ) -> list[ClientRun]:
        """Return up to `count` runs of a client, oldest first: those behind `after`, if given."""

    def look_at_chunk(self, client: str, run_id: RunId, chunk: Chunk) -> ChunkLook | None:
        """Return what is known of a chunk before its bytes come. None: no such run.

        Only `bind_chunk` decides: between the two anything may happen.
        """

    def cancel_run(self, client: str, run_id: RunId) -> Run | None:
        """Move a client's run to CANCELLED, from wherever it still works; returns it.

        Without a fence: the run's own row is locked, and whoever works on it meets RunGone at its
        next commit. None: no such run. A cancelled one is returned as it is. Raises RunClosed if
        it ended otherwise, RunGone if it is swept.
        """
