"""What a router has done and holds, as Prometheus reads it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_HELP = {
    "chunks_total": ("counter", "Chunks committed in intake."),
    "ends_received_total": ("counter", "ENDs that came, copies included."),
    "ends_redelivered_total": ("counter", "ENDs that came again after a crash or a lost channel."),
    "ends_spilled_total": ("counter", "ENDs committed at once because the window was full."),
    "ends_forwarded_total": ("counter", "ENDs confirmed by a shard."),
    "ends_acked_total": ("counter", "ENDs let go."),
    "postponed_total": ("counter", "Times that a message went behind others: no room for it."),
    "dead_letters_total": ("counter", "Messages that went to the dead letters."),
    "lost_channels_total": ("counter", "Channels whose tags all died."),
    "ends_held": ("gauge", "ENDs held un-acked now."),
    "ends_waiting": ("gauge", "ENDs known and not let go, spilled ones included."),
    "ends_overdue": ("gauge", "ENDs held longer than the alert's limit."),
    "end_held_seconds_max": ("gauge", "How long the oldest one is held."),
}


class Figures:
    """Counters, and gauges that are asked when somebody looks. Used by many threads."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._guard = threading.Lock()
        self.gauges: Callable[[], Mapping[str, float]] = dict

    def add(self, name: str) -> None:
        """Count one more."""
        with self._guard:
            self._counts[name] += 1

    def values(self) -> dict[str, float]:
        """Return every figure by name."""
        with self._guard:
            counts = dict(self._counts)
        found: dict[str, float] = dict.fromkeys(_HELP, 0)
        return found | counts | dict(self.gauges())

    def text(self) -> str:
        """Return all of it in Prometheus' text format."""
        lines = []
        for name, value in self.values().items():
            kind, meaning = _HELP[name]
            full = f"holdfast_router_{name}"
            lines += [f"# HELP {full} {meaning}", f"# TYPE {full} {kind}", f"{full} {value:g}"]
        return "\n".join(lines) + "\n"


@contextmanager
def served(figures: Figures, port: int | None) -> Iterator[int]:
    """Serve the figures on this machine's own address while the block runs; yields the port."""
    if port is None:
        yield 0
        return

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = figures.text().encode()
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", port), Page)
    thread = threading.Thread(target=server.serve_forever, name="figures", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
