"""Clients, their tokens, and what they created: the rows behind the HTTP door."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.store.rows import ChunkFacts, Run


@dataclass(frozen=True, slots=True)
class Quotas:
    """What one client may take. None: as the gateway's settings say."""

    open_runs: int | None = None
    stored_bytes: int | None = None
    chunk_bytes: int | None = None
    run_chunks: int | None = None
    request_rate: int | None = None


@dataclass(frozen=True, slots=True)
class Client:
    """A tenant. `weight` is its share of the engine against that of others."""

    client: str
    weight: int = 1
    quotas: Quotas = field(default_factory=Quotas)
    created_ms: int = 0
    revoked: bool = False


@dataclass(frozen=True, slots=True)
class Token:
    """What is kept of a token: its public id, and the SHA-256 of its secret. Never the secret."""

    token_id: str
    checksum: str


@dataclass(frozen=True, slots=True)
class Login:
    """The client that a token belongs to, and what its secret is compared with."""

    client: Client
    checksum: str


@dataclass(frozen=True, slots=True)
class ClientUse:
    """What a client takes now. `stored_bytes` are those of its chunks in runs not yet swept."""

    runs: int
    open_runs: int
    stored_bytes: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Standing:
    """How all runs stand, as counters."""

    states: dict[str, int]
    """State -> how many runs are in it."""
    without_end: int
    """Open runs of which a sender has not said END."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a client created a run with: its own key, and all that it declared, as JSON."""

    client: str
    key: str
    declaration: str


@dataclass(frozen=True, slots=True)
class OpeningFacts:
    """What the rule for a creation may look at, read in the transaction that will act on it."""

    stored: Opening | None
    """What the run with this key was created with, if there is one."""
    is_swept: bool
    """Of that run only its key and kind are known any more."""
    open_runs: int
    """How many runs of this client are not closed."""


@dataclass(frozen=True, slots=True)
class ClientRun:
    """A run, and what its client created it with."""

    run: Run
    opening: Opening


@dataclass(frozen=True, slots=True)
class ChunkLook:
    """What is known before the bytes of a chunk come: the same facts that will decide, and more."""

    facts: ChunkFacts
    whole: bool
    """The chunk is of a whole table."""
    run_chunks: int
    """How many chunks of this run are bound."""


OpeningRule = Callable[[Opening, OpeningFacts], bool]
"""True: create it. False: it is there already, tell so. Raises a CallerError: refused."""
