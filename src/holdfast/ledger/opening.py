"""Which kind of ledger a URL means, and opening it."""

from __future__ import annotations

from holdfast.ledger.books import Books
from holdfast.ledger.contract import Ledger
from holdfast.ledger.file_books import FileBooks
from holdfast.ledger.file_ledger import FileLedger
from holdfast.ledger.places import ledger_path
from holdfast.ledger.postgres.address import address_of, is_address


def check_url(url: str) -> None:
    """Refuse a URL that cannot mean a ledger.

    Raises:
        UsageInvalid: it is relative, of no known kind, or cannot be read without doubt.
    """
    if is_address(url):
        address_of(url)
    else:
        ledger_path(url)


def is_shared(url: str) -> bool:
    """Tell whether every machine sees the ledger of this URL."""
    return is_address(url)


def shown(url: str) -> str:
    """Return a ledger's URL as it may be shown: without a password."""
    return address_of(url).label if is_address(url) else url


def open_ledger(url: str, *, create: bool = True, expected_id: str | None = None) -> Ledger:
    """Open the ledger of a URL: `file:///a/path` or `postgresql://user@host/database`.

    Raises:
        UsageInvalid, LedgerMismatch, DependencyMissing, and what each kind adds.
    """
    if is_address(url):
        # Late: psycopg is an extra.
        from holdfast.ledger.postgres.ledger import PostgresLedger

        return PostgresLedger(url, create=create, expected_id=expected_id)
    return FileLedger(url, create=create, expected_id=expected_id)


def open_books(url: str) -> Books:
    """Open a ledger that exists, to read it as a whole.

    Raises:
        UsageInvalid: there is none.
        DependencyMissing, and what each kind adds.
    """
    if is_address(url):
        from holdfast.ledger.postgres.books import PostgresBooks

        return PostgresBooks(url)
    return FileBooks(url)
