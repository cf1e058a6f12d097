"""Lines for people on standard error and output: whoever tells something is never ended by it.

The log may be on the disk that is full, or a pipe whose reader died: then the line is lost.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def tell(text: str, *, is_answer: bool = False) -> None:
    """Write text as it is, if it can be written. `is_answer`: on standard output."""
    stream = sys.stdout if is_answer else sys.stderr
    # AttributeError: it was closed before this process began, so there is none.
    with suppress(OSError, AttributeError):
        stream.write(text)
        stream.flush()


def tell_at_once(text: str) -> None:
    """The same on standard error past all buffers, for a signal handler."""
    with suppress(OSError, AttributeError):
        os.write(sys.stderr.fileno(), text.encode())
