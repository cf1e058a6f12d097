"""How often recorded answers were given instead of calls: one small file per step, under a lock.

Format: docs/internals/ledger.md#reuse. A task adds its own counts once, when it ends. A task that
is killed adds nothing, so the figures are lower bounds; a file that is torn or altered counts from
zero. They serve a receipt, never a decision.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from pathlib import Path

from holdfast._base.files import FILE_MODE, os_errors
from holdfast.ledger.contract import Reused

_COUNTS = struct.Struct("<Qq")
_CRC = struct.Struct("<I")


def add_reused(path: Path, added: Reused) -> None:
    """Add to a step's counts, durably."""
    with os_errors(path):
        file = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            known = _read(file)
            rows = known.answers + added.answers
            data = _COUNTS.pack(rows, known.saved_micros + added.saved_micros)
            os.pwrite(file, data + _CRC.pack(zlib.crc32(data)), 0)
            os.fdatasync(file)
        finally:
            os.close(file)


def read_reused(path: Path) -> Reused:
    """Return a step's counts."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return Reused()
    with os_errors(path):
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
            return _read(file)
        finally:
            os.close(file)


def _read(file: int) -> Reused:
    data = os.pread(file, _COUNTS.size + _CRC.size, 0)
    counts, crc = data[: _COUNTS.size], data[_COUNTS.size :]
    if len(crc) != _CRC.size or _CRC.unpack(crc)[0] != zlib.crc32(counts):
        return Reused()
    return Reused(*_COUNTS.unpack(counts))
