"""What every user of SQLite needs: a version that loses nothing, a log that is durable before it
is believed, and errors with a code.

Two parts have a database of their own, the store and the file ledger. They differ in everything
but this.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from holdfast._base.files import fsync_file, os_errors
from holdfast.errors import (
    Damaged,
    DependencyMissing,
    DiskFull,
    HoldfastError,
    InvariantViolated,
    StorageFailed,
    UsageInvalid,
)

SQLITE_MIN = (3, 51, 3)
"""Older ones have the WAL-reset bug: they lose committed data when two processes write."""


def sqlite_version() -> str:
    """Return the version of the SQLite that `apsw` brings."""
    return apsw.sqlite_lib_version()


def require_sqlite() -> None:
    """Refuse a SQLite that is known to lose data.

    Raises:
        DependencyMissing: the SQLite of `apsw` is older than 3.51.3.
    """
    found = sqlite_version()
    if tuple(int(part) for part in found.split(".")[:3]) < SQLITE_MIN:
        wanted = ".".join(map(str, SQLITE_MIN))
        raise DependencyMissing(
            what=f"SQLite {found} can lose committed data; {wanted} or newer is needed",
            install=f"pip install 'apsw>={wanted}.0'",
        )


def make_log_durable(connection: apsw.Connection) -> None:
    """Make durable what a new connection finds in the write-ahead log, before it is believed.

    A process that is killed between writing a commit and its fsync leaves it in the memory of the
    kernel. Whoever opens the database next recovers it like any other, and would acknowledge by it
    what a power cut takes away.

    1. The first look recovers the log. From then on no commit is seen before its own fsync.
    2. The log is fsynced, and the directory, which may have no durable entry of it. Crash before:
       nobody was told anything.
    """
    connection.pragma("user_version")
    path = Path(connection.filename_wal)
    with os_errors(path), suppress(FileNotFoundError):
        fsync_file(path)
        fsync_file(path.parent)


@contextmanager
def sqlite_errors(path: str, *, what: str) -> Iterator[None]:
    """Turn SQLite's errors on `path` into errors with a code. `what`: the store, the ledger."""
    try:
        yield
    except apsw.FullError as error:
        raise DiskFull(path=path) from error
    except (apsw.CorruptError, apsw.NotADBError, UnicodeDecodeError) as error:
        raise Damaged(path=path, what=f"the {what}'s database is damaged ({error})") from error
    except apsw.BusyError as error:
        text = f"another process holds the {what} for too long; see which one, and end it"
        raise StorageFailed(path=path, error=text) from error
    except apsw.IOError as error:
        raise _io_error(path, what, error) from error
    except (
        apsw.CantOpenError,
        apsw.ReadOnlyError,
        apsw.PermissionsError,
        apsw.ProtocolError,
        apsw.NoMemError,
    ) as error:
        raise StorageFailed(path=path, error=str(error)) from error
    except (OverflowError, UnicodeEncodeError) as error:
        # Raised while a value is handed to SQLite: over 64 bits, or a lone half of a character.
        raise UsageInvalid(
            what=f"a number or a text that no {what} can hold ({error})",
            remedy="Use numbers below 2^63 and well-formed text.",
        ) from error
    except apsw.Error as error:
        raise InvariantViolated(what=f"{path}: {type(error).__name__}: {error}") from error


def _io_error(path: str, what: str, error: apsw.IOError) -> HoldfastError:
    match getattr(error, "extendedresult", 0):
        case apsw.SQLITE_IOERR_SHMSIZE:
            # The log's index is a small file, which only a full disk refuses its size.
            return DiskFull(path=path)
        case apsw.SQLITE_IOERR_DATA:
            found = f"the {what}'s database is damaged (a page fails its checksum)"
            return Damaged(path=path, what=found)
        case _:
            return StorageFailed(path=path, error=str(error))
