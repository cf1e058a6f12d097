"""A provider for tests that keeps its own books: one fsynced line per call. No Holdfast imports."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any


class Refused(Exception):
    """The provider's lasting no."""


class Provider:
    """Answers a row by its id's text, after an optional delay. It may be told to misbehave."""

    def __init__(
        self,
        log: Path,
        *,
        delay_s: float = 0.0,
        kill_at: int | None = None,
        refuse: int | None = None,
        answer_bytes: int = 0,
    ) -> None:
        self.log, self.delay_s, self.answer_bytes = str(log), delay_s, answer_bytes
        self.kill_at, self.refuse = kill_at, refuse

    def book(self, line: str) -> None:
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, f"{line}\n".encode())
        os.fsync(descriptor)
        os.close(descriptor)

    def __call__(self, row: Any) -> str:
        self.book(str(row.id))
        if row.id == self.kill_at and not os.path.exists(self.log + ".killed"):
            Path(self.log + ".killed").touch()
            os.kill(os.getpid(), 9)
        if row.id == self.refuse:
            raise Refused(f"never {row.id}")
        time.sleep(self.delay_s)
        return f"answer {row.id}".ljust(self.answer_bytes, ".")

    def calls(self) -> Counter[str]:
        path = Path(self.log)
        return Counter(path.read_text().split()) if path.exists() else Counter()
