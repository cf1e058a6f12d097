"""Where a shared ledger is: its URL, and the part of it that messages may show.

A URL may carry a password. So nothing of it is ever echoed but user, host, port and database, and
a URL that two programs could read differently (an unescaped `@`, `/`, `?` or `#` in a password)
is refused before anybody quotes a piece of it as a host's name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from holdfast.errors import UsageInvalid

SCHEMES = ("postgresql", "postgres")


@dataclass(frozen=True, slots=True)
class Address:
    """A server, a database, and perhaps a password."""

    label: str
    url: str = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False, default=())

    def safe(self, text: object) -> str:
        """Return a text as one line without any password."""
        line = " ".join(str(text).split())
        for secret in self.secrets:
            line = line.replace(secret, "***")
        return line.rstrip(".")


def is_address(url: str) -> bool:
    """Tell whether a URL means a ledger in PostgreSQL."""
    return url.partition("://")[0].lower() in SCHEMES and "://" in url


def address_of(url: str) -> Address:
    """Read the URL of a shared ledger.

    Raises:
        UsageInvalid: it cannot be read without doubt. It is not repeated in the message.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _unreadable() from None
    ambiguous = parts.netloc.count("@") > 1 or "@" in parts.path + parts.query
    if ambiguous or parts.fragment or "/" in parts.path[1:]:
        raise _unreadable()
    options = parse_qs(parts.query, keep_blank_values=True)
    known = [unquote(parts.password or ""), parts.password or "", *options.get("password", ())]
    place = f"{parts.hostname or ''}{f':{port}' if port else ''}"
    user = f"{parts.username}@" if parts.username else ""
    label = f"postgresql://{user}{place}{parts.path}"
    return Address(label, url, tuple(secret for secret in known if secret))


def _unreadable() -> UsageInvalid:
    return UsageInvalid(
        what="the ledger's postgresql URL cannot be read",
        remedy="Write postgresql://USER@HOST:PORT/DATABASE, special characters of a password as"
        " %40 and the like, or leave the password to PGPASSFILE.",
    )
