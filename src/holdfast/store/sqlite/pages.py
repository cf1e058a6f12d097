"""A checksum in every page of the store's file: a flipped bit is an error, never another answer.

SQLite itself believes what it reads: of single bits flipped in a store in the middle of a run,
one in forty gave a finished run with a wrong answer. Its checksum extension, which comes with
`apsw`, keeps 8 bytes at the end of each page and compares them whenever a page is read. The log
has checksums of its own.

Whoever writes to the file without the extension (the sqlite3 shell, say) leaves pages that do not
fit their checksums: Holdfast then calls the store damaged. Reading it is harmless.
"""

from __future__ import annotations

import threading

import apsw
import apsw.sqlite_extra

from holdfast.errors import DependencyMissing

VFS = "cksmvfs"
CHECKSUM_BYTES = 8
"""Kept free at the end of each page. The extension knows no other number."""

_guard = threading.Lock()


def load_checksums() -> str:
    """Make the extension known to this process; returns the name to open a database by.

    Raises:
        DependencyMissing: this `apsw` was built without it.
    """
    with _guard:
        if VFS in apsw.vfs_names():
            return VFS
        usual = apsw.vfs_names()[0]
        try:
            apsw.sqlite_extra.load(apsw.Connection(":memory:"), "cksumvfs")
        except (apsw.sqlite_extra.NotAvailable, apsw.ExtensionLoadingError) as error:
            raise DependencyMissing(
                what="this apsw has no page checksums, without which damage goes unnoticed",
                install="pip install --force-reinstall --only-binary apsw apsw",
            ) from error
        # It makes itself the way to open any database; others in this process did not ask for it.
        apsw.set_default_vfs(usual)
    return VFS
