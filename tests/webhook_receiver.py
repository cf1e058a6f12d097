"""A webhook's receiver that shares no code with Holdfast: it counts what came, durably.

    python webhook_receiver.py BOOKS [ANSWERS]

Prints its port. Appends a line of JSON per request to BOOKS, fsynced before it answers. ANSWERS is
a file with the status codes to answer with, one per line, used up one per request; 200 afterwards.
One that begins with "held " is given when there is a file "release" beside BOOKS.
"""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def main() -> None:
    books = Path(sys.argv[1])
    answers = Path(sys.argv[2]).read_text().split("\n") if len(sys.argv) > 2 else []

    class Receiver(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            body = self.rfile.read(length)
            if len(body) < length:  # the sender was killed while it sent: nothing came
                self.close_connection = True
                return
            entry = {
                "id": self.headers["Holdfast-Id"],
                "signature": self.headers["Holdfast-Signature"],
                "body": body.decode(),
            }
            with books.open("a") as file:
                file.write(json.dumps(entry) + "\n")
                file.flush()
                os.fsync(file.fileno())
            answer = answers.pop(0) if answers else "200"
            while answer.startswith("held ") and not books.with_name("release").exists():
                time.sleep(0.01)
            status, _, after = answer.removeprefix("held ").partition(" ")
            self.send_response(int(status or 200))
            if after:
                self.send_header("Retry-After", after)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
