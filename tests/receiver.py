"""Starts the webhook's receiver of `tests/webhook_receiver.py` as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Receiver:
    """A receiver that runs: where it listens, and what it saw."""

    url: str
    books: Path

    def seen(self) -> list[dict[str, Any]]:
        """Return what came, in order: id, signature, body."""
        if not self.books.exists():
            return []
        return [json.loads(line) for line in self.books.read_text().splitlines()]

    def release(self) -> None:
        """Give the answers that are held."""
        self.books.with_name("release").touch()


@contextmanager
def receiving(root: Path, *answers: str) -> Iterator[Receiver]:
    """Run a receiver that keeps its books in `root`; `answers` are its first status codes."""
    root.mkdir(parents=True, exist_ok=True)
    arguments = [str(root / "books.jsonl")]
    if answers:
        (root / "answers").write_text("\n".join(answers))
        arguments.append(str(root / "answers"))
    program = Path(__file__).with_name("webhook_receiver.py")
    process = subprocess.Popen(
        [sys.executable, "-I", str(program), *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        yield Receiver(f"http://127.0.0.1:{port}/hook", root / "books.jsonl")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
