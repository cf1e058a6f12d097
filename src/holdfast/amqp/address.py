"""Where a broker is: its URL, and the part of it that messages may show.

A password belongs into the environment or a file: a command line is seen by everybody on the
machine. Nothing of a URL is ever echoed but user, host, port and virtual host.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from holdfast._base.files import os_errors
from holdfast.errors import UsageInvalid

SCHEMES = ("amqp", "amqps")
PASSWORD_VARIABLE = "HOLDFAST_AMQP_PASSWORD"  # noqa: S105 - the name of a variable
PASSWORD_FILE_VARIABLE = "HOLDFAST_AMQP_PASSWORD_FILE"  # noqa: S105 - the name of a variable


@dataclass(frozen=True, slots=True)
class Address:
    """A broker, a virtual host, a user and its password."""

    label: str
    url: str = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False, default=())

    def safe(self, text: object) -> str:
        """Return a text as one line without any password."""
        line = " ".join(str(text).split())
        for secret in self.secrets:
            line = line.replace(secret, "***")
        return line.rstrip(".")


def address_of(url: str, environment: Mapping[str, str] = os.environ) -> Address:
    """Read a broker's URL; a password that it lacks comes from the environment, or a file.

    Raises:
        UsageInvalid: it cannot be read without doubt. It is not repeated in the message.
        StorageFailed: the password's file cannot be read.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _unreadable() from None
    ambiguous = parts.netloc.count("@") > 1 or "@" in parts.path + parts.query
    if parts.scheme not in SCHEMES or not parts.hostname or ambiguous or parts.fragment:
        raise _unreadable()
    password = unquote(parts.password or "") or _password(environment)
    user = unquote(parts.username or "guest")
    place = f"{parts.hostname}{f':{port}' if port else ''}"
    login = f"{quote(user, safe='')}:{quote(password or 'guest', safe='')}"
    query = f"?{parts.query}" if parts.query else ""
    path = parts.path or "/"
    return Address(
        f"{parts.scheme}://{user}@{place}{path}",
        f"{parts.scheme}://{login}@{place}{path}{query}",
        tuple({secret for secret in (password, quote(password, safe="")) if secret}),
    )


def refuse_password(url: str) -> None:
    """Refuse a URL of a command line that carries a password itself.

    Raises:
        UsageInvalid: it does.
    """
    try:
        carries = bool(urlsplit(url).password)
    except ValueError:
        raise _unreadable() from None
    if carries:
        raise UsageInvalid(
            what="a password in a URL on the command line is seen by everybody on this machine",
            remedy=f"Give it by {PASSWORD_VARIABLE} or {PASSWORD_FILE_VARIABLE}.",
        )


def _password(environment: Mapping[str, str]) -> str:
    if value := environment.get(PASSWORD_VARIABLE):
        return value
    if path := environment.get(PASSWORD_FILE_VARIABLE):
        with os_errors(path):
            return Path(path).read_text(encoding="utf-8").rstrip("\n")
    return ""


def _unreadable() -> UsageInvalid:
    return UsageInvalid(
        what="the broker's URL cannot be read",
        remedy="Write amqp://USER@HOST:PORT/VHOST or amqps://..., and give the password by"
        f" {PASSWORD_VARIABLE} or {PASSWORD_FILE_VARIABLE}.",
    )
