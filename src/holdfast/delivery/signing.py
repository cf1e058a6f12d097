"""Signatures of notices: HMAC-SHA256 over time and body, with a secret per client.

    Holdfast-Signature: t=1700000000,v1=<hexadecimal HMAC-SHA256 of "1700000000.<body>">

The time is the sender's wall clock, for the receiver to refuse old copies by. The secret is a file
below the state directory that its owner alone may read; it stands in no table, log or error.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from contextlib import suppress
from pathlib import Path

from holdfast._base.files import fsync_file, make_directories, os_errors, write_temporary
from holdfast._base.ids import fresh_token
from holdfast.errors import UsageInvalid

SIGNATURE = "Holdfast-Signature"
NOTICE_ID = "Holdfast-Id"
_CLIENT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SIGNED = re.compile(r"t=(\d{1,15}),v1=([0-9a-f]{64})")


def secret_path(secrets: Path, client: str) -> Path:
    """Return the file of a client's signing secret, below the state's directory of secrets."""
    if not _CLIENT.fullmatch(client):
        remedy = "Use letters, digits, _ and -, at most 64."
        raise UsageInvalid(what=f"{client!r} is no client's name", remedy=remedy)
    return secrets / f"webhook-{client}"


def signing_secret(secrets: Path, client: str) -> bytes:
    """Return a client's signing secret; made, once, if it is missing.

    Of two processes that make it at once the first wins, and both return the same.
    """
    path = secret_path(secrets, client)
    with os_errors(path):
        if not path.exists():
            make_directories(secrets)
            temporary, _ = write_temporary(secrets, [(fresh_token() + fresh_token()).encode()])
            try:
                with suppress(FileExistsError):
                    os.link(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
            fsync_file(secrets)
        return path.read_bytes().strip()


def sign(secret: bytes, body: bytes, seconds: int) -> str:
    """Return the value of the signature header for `body`, sent at `seconds` since 1970."""
    return f"t={seconds},v1={_mac(secret, body, seconds)}"


def is_signed(secret: bytes, body: bytes, signature: str) -> bool:
    """Tell whether a signature header fits. The age of its time is the caller's to judge."""
    found = _SIGNED.fullmatch(signature)
    return found is not None and hmac.compare_digest(found[2], _mac(secret, body, int(found[1])))


def _mac(secret: bytes, body: bytes, seconds: int) -> str:
    return hmac.new(secret, b"%d.%s" % (seconds, body), hashlib.sha256).hexdigest()
