"""The process: a socket, perhaps TLS, uvicorn, and its end.

SIGTERM and SIGINT let requests under way come to their end, for `DRAIN_S`; a second one ends the
process at once, which is safe: nothing that was not committed has been acknowledged.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import os
import resource
import socket
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import cast

import uvicorn

from holdfast._base.clock import Clock, SystemClock
from holdfast._base.tell import tell
from holdfast.config import Config
from holdfast.engine.parts import BEAT_S, Life
from holdfast.engine.spec import PipelineSpec
from holdfast.engine.state import share
from holdfast.errors import HoldfastError, StorageFailed, UsageInvalid
from holdfast.gateway.app import make_app
from holdfast.gateway.desk import Desk, say
from holdfast.gateway.protocol import guarded, secured

DRAIN_S = 8
"""For requests under way when the process is asked to end. A supervisor waits 10 s."""
KEEP_ALIVE_S = 30
"""For the next request on a line. Shorter: clients that pause between chunks connect anew."""
_BACKLOG = 512
_AGE_S = 1.0
"""Between two looks at tokens in their grace."""
_AGE_MAX_S = 2.0
"""What one look counts at most: a process that was stopped served nobody meanwhile."""


@dataclass(frozen=True, slots=True)
class Listen:
    """Where to listen, and how."""

    host: str
    port: int
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False
    """The operator said that others may listen in."""


def parse_listen(
    text: str, *, tls_cert: Path | None, tls_key: Path | None, insecure: bool
) -> Listen:
    """Return where to listen.

    Raises:
        UsageInvalid: it is no HOST:PORT, half of TLS is missing, or tokens and data would cross a
            network unprotected.
    """
    host, colon, port = text.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        remedy = "Write it as 127.0.0.1:8080, with a port up to 65535."
        raise UsageInvalid(what=f"--listen {text!r}", remedy=remedy)
    if (tls_cert is None) != (tls_key is None):
        what = "only one of --tls-cert and --tls-key is given"
        raise UsageInvalid(what=what, remedy="Give both.")
    for path in (tls_cert, tls_key):
        if path is not None and not path.is_file():
            raise UsageInvalid(what=f"there is no file {path}", remedy="Correct it.")
    if tls_cert is None and not insecure and not _is_loopback(host):
        what = f"tokens and data would cross the network to {host} unprotected"
        remedy = "Give --tls-cert and --tls-key, or say --insecure-listen behind a proxy with TLS."
        raise UsageInvalid(what=what, remedy=remedy)
    return Listen(host, int(port), tls_cert, tls_key, insecure)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(
    state: Path,
    spec: PipelineSpec,
    config: Config,
    listen: Listen,
    *,
    metrics_client: str | None = None,
    producer: str = "",
    as_json: bool = False,
) -> None:
    """Serve until a signal comes. Ends the process with 1 if it cannot go on."""
    # Whatever is made here is for its owner only.
    os.umask(0o077)
    _raise_file_limit()
    clock = SystemClock()
    with share(state, config, part="gateway", spec=spec) as shared:
        desk = Desk(shared, spec, config, clock, metrics_client=metrics_client, producer=producer)
        try:
            desk.blobs.sweep_dead()
            with bind(listen) as bound:
                server = _Server(_settings(desk, config, listen), desk)
                _announce(bound, listen, as_json=as_json)
                asyncio.run(_serve(server, bound, desk, clock, shared.life))
        finally:
            desk.close()
    if server.broken:
        sys.exit(1)


def _announce(bound: socket.socket, listen: Listen, *, as_json: bool) -> None:
    host, port = bound.getsockname()[:2]
    scheme = "https" if listen.tls_cert else "http"
    shown = f"[{host}]" if ":" in host else host
    url = f"{scheme}://{shown}:{port}"
    text = json.dumps({"url": url, "pid": os.getpid()}) if as_json else f"listening on {url}"
    tell(f"{text}\n", is_answer=True)
    if listen.insecure and not _is_loopback(listen.host):
        say("warning: no TLS here; whoever sees the network sees tokens and data")


def bind(listen: Listen) -> socket.socket:
    """Return a socket that listens, so that whoever is told of it can connect."""
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((listen.host, listen.port))
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        where = f"{listen.host}:{listen.port}"
        raise StorageFailed(path=where, error=error.strerror or str(error)) from error
    return bound


def _settings(desk: Desk, config: Config, listen: Listen) -> uvicorn.Config:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    # Its warnings are about what strangers send: they could fill the disk with them.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    line = guarded(config.header_wait_s, config.answer_wait_s, config.connections_max)
    return uvicorn.Config(
        make_app(desk),
        http=secured(line, _context(listen)) if listen.tls_cert else line,  # type: ignore[arg-type] # takes any factory
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=DRAIN_S,
    )


def _context(listen: Listen) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cast(Path, listen.tls_cert), listen.tls_key)
    return context


def _raise_file_limit() -> None:
    """Take all the open files that the system grants.

    The usual 1,024 are for programs that `select` on them. Here each connection is one, and each
    upload and download another.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _Server(uvicorn.Server):
    """uvicorn's, which tells the desk that it ends, and ends at once when asked twice."""

    def __init__(self, config: uvicorn.Config, desk: Desk) -> None:
        super().__init__(config)
        self.broken = False
        self._desk = desk
        desk.stop = self._break

    def _break(self) -> None:
        """End the process: what it knows may be wrong."""
        self.broken = self.should_exit = self._desk.closing = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain; asked again, end."""
        del frame
        if self.should_exit:
            self.force_exit = True
        self.should_exit = self._desk.closing = True
        del sig


async def _serve(
    server: _Server, bound: socket.socket, desk: Desk, clock: Clock, life: Life
) -> None:
    beside = [asyncio.create_task(_age_tokens(desk, clock)), asyncio.create_task(_live(life))]
    try:
        await server.serve(sockets=[bound])
    finally:
        for task in beside:
            task.cancel()


async def _live(life: Life) -> None:
    """Show that this loop, which answers everybody, comes round."""
    with life.working() as go_on:
        while True:
            go_on()
            await asyncio.sleep(BEAT_S)


async def _age_tokens(desk: Desk, clock: Clock) -> None:
    """Count down the grace of replaced tokens, by our own monotonic time, unless another gateway
    of this state does.

    While the store cannot, or takes its time, that is counted later: no token is good for longer.
    Time in which this process stood still is none that was served.
    """
    seen, elapsed_s, is_told = -1, 0.0, False
    while True:
        elapsed_ms = int(elapsed_s * 1000)
        counting = asyncio.create_task(desk.write(desk.store.age_tokens, elapsed_ms, seen=seen))
        elapsed_s += await _serve_on(clock)
        while not counting.done():
            elapsed_s += await _serve_on(clock)
        try:
            seen = counting.result()
        except HoldfastError as error:
            if not is_told:
                desk.note(error)
            is_told = True
        else:
            elapsed_s, is_told = elapsed_s - elapsed_ms / 1000, False


async def _serve_on(clock: Clock) -> float:
    """Wait for the next look; return the seconds in which requests were served meanwhile."""
    began_s = clock.monotonic_s()
    await asyncio.sleep(_AGE_S)
    return min(clock.monotonic_s() - began_s, _AGE_MAX_S)
