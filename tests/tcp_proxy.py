"""A TCP proxy that does harm on purpose: it loses a message or its answer, or holds all of them."""

from __future__ import annotations

import socket
import threading
from typing import Literal

Lose = Literal["request", "rest", "answer", "ack"]
"""A whole message; what stands in it behind the text; all answers from then on, to a server that
hears that nothing more will come; the one answer, when the server has given it."""


class Proxy:
    """Forwards to a port of this machine. `lose_next` cuts the line at a chosen message,
    `slow_down` makes the way to the server long.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._armed: list[tuple[bytes, Lose]] = []
        self._arming = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._silenced: set[socket.socket] = set()
        self._unheard: set[socket.socket] = set()
        self._hung_up = threading.Event()
        self.lost = 0
        self._delay_s = 0.0
        self._quick = threading.Event()
        self._quick.set()
        self.held = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_next(self, text: bytes, what: Lose) -> None:
        """Cut the connection at the next message of a client that has `text` in it, once.

        Several may be asked for beforehand, in any order.
        """
        self._hung_up.clear()
        with self._arming:
            self._armed.append((text, what))

    def slow_down(self, delay_s: float) -> None:
        """Hold what a client sends for so long, until `speed_up`; `held` counts."""
        self._delay_s = delay_s
        self._quick.clear()

    def speed_up(self) -> None:
        """Let everything pass at once again, what is held too."""
        self._quick.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            pair = (client, server)
            self._pairs.append(pair)
            threading.Thread(target=self._to_server, args=pair, daemon=True).start()
            threading.Thread(target=self._to_client, args=pair, daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := client.recv(1 << 16):
                if (armed := self._due(data)) is not None and self._lose(server, data, *armed):
                    break
                if not self._quick.is_set():
                    self.held += 1
                    self._quick.wait(self._delay_s)
                server.sendall(data)
        except OSError:
            pass
        finally:
            _cut(client, server)

    def _due(self, data: bytes) -> tuple[bytes, Lose] | None:
        with self._arming:
            for armed in self._armed:
                if armed[0] in data:
                    self._armed.remove(armed)
                    self.lost += 1
                    return armed
        return None

    def _lose(self, server: socket.socket, data: bytes, text: bytes, what: Lose) -> bool:
        """Lose a message as asked. Returns whether the line is cut now, or goes on."""
        if what == "ack":
            self._unheard.add(server)
            return False
        if what == "rest":
            server.sendall(data[: data.index(text) + len(text)])
        if what == "answer":
            # All answers are swallowed until the server, which hears that nothing more will
            # come, has done everything it was told and hung up.
            self._silenced.add(server)
            server.sendall(data)
            server.shutdown(socket.SHUT_WR)
            self._hung_up.wait()
        return True

    def _to_client(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := server.recv(1 << 16):
                if server in self._unheard:
                    _cut(client, server)
                    return
                if server not in self._silenced:
                    client.sendall(data)
            if server in self._silenced:
                self._hung_up.set()
        except OSError:
            _cut(client, server)

    def refuse(self) -> None:
        """Take no new connection."""
        _cut(self._listener)  # closing alone would leave the thread inside `accept`
        self._listener.close()

    def close(self) -> None:
        self.refuse()
        for pair in self._pairs:
            _cut(*pair)
            for end in pair:
                end.close()


def _cut(*ends: socket.socket) -> None:
    for end in ends:
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue
