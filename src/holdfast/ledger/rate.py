"""A rate shared by every process of a host: one small file per step, under a lock.

The file holds one number: the moment on the host's monotonic clock at which the next call may
start. That clock is one for all processes of a machine and restarts at boot, which is why a
moment that lies too far ahead is not believed. Nothing here needs to survive a power cut.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from pathlib import Path

from holdfast._base.clock import Clock
from holdfast._base.files import FILE_MODE, os_errors

_MOMENT = struct.Struct("<d")
_BURST_S = 0.1
"""Calls that may start at once after a pause, as seconds of the rate. Zero would need a wake-up
for each call; more would let a burst through that the provider may refuse."""
_FAR_S = 600.0
_FAR_CALLS = 10_000
"""A moment further ahead than both, seconds and calls, is from before the last boot."""


class RateGate:
    """Hands out moments at which a call may start."""

    def __init__(self, path: Path, rate_per_s: float, clock: Clock) -> None:
        self._path, self._each_s, self._clock = path, 1.0 / rate_per_s, clock
        self._far_s = max(_FAR_S, _FAR_CALLS * self._each_s)
        self._turn = threading.Lock()  # flock does not keep threads of one process apart
        with os_errors(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)

    def reserve_s(self) -> float:
        """Take the next moment. Returns how long to wait for it."""
        now = self._clock.monotonic_s()
        with self._turn, os_errors(self._path):
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                data = os.pread(self._file, _MOMENT.size, 0)
                moment = _MOMENT.unpack(data)[0] if len(data) == _MOMENT.size else 0.0
                if not moment < now + self._far_s:
                    moment = 0.0
                moment = max(moment, now - _BURST_S) + self._each_s
                os.pwrite(self._file, _MOMENT.pack(moment), 0)
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)
        return max(0.0, moment - self._each_s - now)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
