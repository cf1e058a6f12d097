"""A small provider of chat completions over HTTP that counts, on its own side, what it charges.

    python -m holdfast.apps.paid.provider --books FILE [--port N] [--delay-ms N]

It speaks OpenAI's `POST /v1/chat/completions`, usage included, so that what runs against it runs
against a real one by another URL. It says of each text whether it is praise or blame. Every request
it answers is charged and is one line of its books, durable before the reply: the idempotency key
and the text. `GET /count` returns how many. Nothing of Holdfast is imported.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_PRAISE = {"good", "great", "love", "fresh", "friendly", "perfect"}
_BLAME = {"bad", "cold", "slow", "rude", "stale", "never"}


class Books:
    """The provider's own record of what it charged."""

    def __init__(self, path: Path) -> None:
        """Append to a file; what stands in it already counts."""
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.count = len(path.read_text(encoding="utf-8").splitlines())

    def charge(self, key: str, text: str) -> None:
        """Write one line, durable before the reply leaves."""
        line = json.dumps({"key": key, "text": text}) + "\n"
        with self._lock:
            os.write(self._file, line.encode())
            os.fdatasync(self._file)
            self.count += 1


def label_of(text: str) -> str:
    """Return what the provider thinks of a text."""
    words = {word.strip(".,!").lower() for word in text.split()}
    score = len(words & _PRAISE) - len(words & _BLAME)
    return "praise" if score > 0 else "blame" if score < 0 else "unclear"


class Answering(BaseHTTPRequestHandler):
    """One request."""

    books: Books
    delay_s = 0.0
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Say how many requests were charged."""
        self._reply(200, {"count": self.books.count})

    def do_POST(self) -> None:
        """Answer a chat completion, and charge for it."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            request = json.loads(body)
            text = str(request["messages"][-1]["content"])
        except (ValueError, KeyError, IndexError, TypeError):
            self._reply(400, {"error": {"message": "no messages"}})
            return
        threading.Event().wait(self.delay_s)
        self.books.charge(self.headers.get("Idempotency-Key", ""), text)
        self._reply(200, _completion(str(request.get("model", "")), text))

    def _reply(self, status: int, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing on the terminal."""


def _completion(model: str, text: str) -> dict[str, Any]:
    label = label_of(text)
    prompt, answer = len(text.split()), len(label.split())
    return {
        "object": "chat.completion",
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": label},
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
        },
    }


def main() -> None:
    """Serve until killed; the port is the first line of the output."""
    parser = argparse.ArgumentParser(description="A provider that counts what it charges.")
    parser.add_argument("--books", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    wanted = parser.parse_args()
    Answering.books = Books(wanted.books)
    Answering.delay_s = wanted.delay_ms / 1000
    ThreadingHTTPServer.request_queue_size = 128
    server = ThreadingHTTPServer(("127.0.0.1", wanted.port), Answering)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
