"""Where a file ledger lies: its URL, its directories."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast._base.files import make_directories, os_errors
from holdfast.errors import Damaged, UsageInvalid

_DIRECTORIES = ("owners", "segments", "settled", "blobs", "rate", "reuse")


def ledger_path(url: str) -> Path:
    """Return the directory that a `file:` URL or an absolute path names.

    Raises:
        UsageInvalid: it is relative, or of another kind.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        # The URL may carry a password: it is not repeated.
        raise UsageInvalid(
            what=f"a ledger of kind {parts.scheme or 'unknown'} is not known",
            remedy="Use file:///a/path or postgresql://USER@HOST/DATABASE.",
        )
    path = Path(unquote(parts.path) if parts.scheme else url)
    if not path.is_absolute():
        raise UsageInvalid(
            what=f"ledger {url} is a relative path, which means another place in each process",
            remedy="Give the whole path: file:///a/path.",
        )
    return path


def make_ledger_directory(path: Path) -> None:
    """Make the directory, unless files of a ledger lie there without their database."""
    with os_errors(path):
        if not (path / "ledger.sqlite").exists():
            for name in ("segments", "settled"):
                if (path / name).is_dir() and any((path / name).iterdir()):
                    what = "recorded answers are here, but ledger.sqlite is missing"
                    raise Damaged(path=str(path), what=what)
        for name in _DIRECTORIES:
            make_directories(path / name)
