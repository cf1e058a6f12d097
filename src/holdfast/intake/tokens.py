"""Tokens by which clients show who they are.

    hf_<16 hexadecimal digits: a public id>_<64: the secret, 256 random bits>

The store keeps the id and the SHA-256 of the secret. A fast hash is enough: the secret is random,
there is nothing to guess. The text itself is shown once, when it is made.
"""

from __future__ import annotations

import hashlib
import hmac
import re

from holdfast._base.ids import fresh_secret, fresh_token
from holdfast.errors import TokenRefused, UsageInvalid
from holdfast.store.client_contract import ClientStore
from holdfast.store.client_rows import Client, Token

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Names of clients, keys of runs, senders. They stand in addresses, logs and file names."""
_TOKEN = re.compile(r"hf_([0-9a-f]{16})_([0-9a-f]{64})")
_NOBODY = "0" * 64


def check_name(name: str, what: str) -> None:
    """Refuse a name that could mean something else somewhere.

    Raises:
        UsageInvalid: it is empty, too long, or has other characters.
    """
    if not NAME.fullmatch(name):
        remedy = "Use 1 to 64 letters, digits, _ and -."
        raise UsageInvalid(what=f"{what} {name[:80]!r} is no name", remedy=remedy)


def make_token() -> tuple[str, Token]:
    """Return a fresh token as its client is given it, and what is kept of it."""
    token_id, secret = fresh_token()[:16], fresh_secret()
    return f"hf_{token_id}_{secret}", Token(token_id, _checksum(secret))


def _checksum(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def client_of(store: ClientStore, text: str) -> Client:
    """Return the client whose token this is.

    The secret is compared in constant time, also where no such token is known.

    Raises:
        TokenRefused: nobody's, or nobody's any more. Which of the two is not said.
    """
    parts = _TOKEN.fullmatch(text)
    login = store.find_login(parts[1]) if parts else None
    sent = _checksum(parts[2] if parts else _NOBODY)
    is_same = hmac.compare_digest(sent, login.checksum if login else _NOBODY)
    if login is None or not is_same:
        raise TokenRefused(what="the token opens nothing")
    return login.client
