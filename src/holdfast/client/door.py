"""Requests to a server, tried again while that may help. The only importer of httpx here.

Every request of the API may be repeated: creating finds the run, a chunk or an END that is there
already is told so. So whatever was lost on the way, request or answer, is simply sent again.
"""

from __future__ import annotations

import ipaddress
import json
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from holdfast._base.clock import Clock
from holdfast._base.files import os_errors
from holdfast._base.ids import fresh_token
from holdfast.client.patience import Patience
from holdfast.client.refusals import RETRYABLE, error_of, retry_after_s
from holdfast.errors import (
    DependencyMissing,
    HoldfastError,
    RunStopped,
    ServerRefused,
    ServerUnreachable,
    UsageInvalid,
)

try:
    import httpx
except ImportError as missing:
    raise DependencyMissing(
        what="httpx is not installed", install="pip install 'holdfast[client]'"
    ) from missing

_CONNECT_S = 10.0
_SILENCE_S = 60.0
"""Between two bytes. An ack waits for an fsync and for other clients' transactions; events have
heartbeats that are closer together than this."""

T = TypeVar("T")
Transport = httpx.BaseTransport
Body = Callable[[], Iterable[bytes]]
"""Makes a request's body, anew for each attempt."""


class _Passing(Exception):
    """An attempt failed, and the next one may not."""

    def __init__(self, error: HoldfastError, status: int | None, asked_s: float | None) -> None:
        super().__init__(str(error))
        self.error, self.status, self.asked_s = error, status, asked_s


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: a status that is no refusal, and a JSON document."""

    status: int
    document: Any


class Door:
    """One server, and who we are to it. Usable from several threads."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        clock: Clock,
        patience: Patience,
        ca_file: Path | None,
        plain_http: bool,
        transport: Transport | None = None,
        on_wait: Callable[[str], None] = lambda _: None,
    ) -> None:
        local = check_url(url, plain_http=plain_http)
        self._url, self._clock, self._patience = url, clock, patience
        self._who, self._stopped = fresh_token(), threading.Event()
        # A lock for what an Event cannot do: of several threads only one tells.
        self._on_wait, self._told = on_wait, threading.Lock()
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {check_token(token)}"},
            timeout=httpx.Timeout(_SILENCE_S, connect=_CONNECT_S),
            verify=_trusted(ca_file),
            # A proxy is for other machines.
            trust_env=not local,
            transport=transport,
        )

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
    ) -> Answer:
        """Make a request until it is answered.

        Raises:
            HoldfastError: refused; the server's own error where its code is known.
            ServerUnreachable: no answer within our patience.
        """

        def once() -> Answer:
            content = body() if body is not None else None
            response = self._http.request(
                method, path, params=dict(query or {}), headers=dict(headers or {}), content=content
            )
            _refuse(response)
            return Answer(response.status_code, self._json(response))

        return self.try_again(once)

    @contextmanager
    def stream(self, path: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """Get something long, one attempt: whoever reads it knows where to go on.

        Inside of `try_again`: what breaks while it is read counts as a failed attempt.
        """
        with self._http.stream("GET", path, headers=dict(headers)) as response:
            if response.is_error:
                response.read()
            _refuse(response)
            yield response

    def try_again(self, once: Callable[[], T], *, progress: Callable[[], int] = int) -> T:
        """Call `once` until it returns; attempts count anew whenever `progress` has changed."""
        begun_s, attempt, before = self._clock.monotonic_s(), 0, progress()
        while True:
            attempt += 1
            try:
                return once()
            except httpx.TransportError as error:
                passing = self._passing(error)
            except _Passing as error:
                passing = error
            now_s = self._clock.monotonic_s()
            if progress() != before:
                begun_s, attempt, before = now_s, 1, progress()
            pause_s = self._patience.pause_s(
                attempt,
                now_s - begun_s,
                status=passing.status,
                asked_s=passing.asked_s,
                who=self._who,
            )
            if pause_s is None:
                raise passing.error from passing
            self._tell(passing.error)
            self.pause(pause_s)

    def _tell(self, error: HoldfastError) -> None:
        """Say once that it is being tried again: whoever waits should know for what."""
        if isinstance(error, ServerUnreachable) and self._told.acquire(blocking=False):
            seconds = round(self._patience.silent_s)
            told = f"{error.url} does not answer ({error.error})"
            self._on_wait(f"{told}: it is tried again for up to {seconds} s")

    def pause(self, seconds: float) -> None:
        """Wait, unless somebody asks to stop.

        Raises:
            RunStopped: somebody did.
        """
        if self._stopped.wait(seconds):
            raise RunStopped(what="stopped", resume="The same command goes on.")

    def stop(self) -> None:
        """Begin nothing more, in any thread. May be called by a signal handler."""
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        """Tell whether somebody asked to stop."""
        return self._stopped.is_set()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def _passing(self, error: httpx.TransportError) -> _Passing:
        text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        told = ServerUnreachable(url=self._url, error=text)
        if _is_certificate(error) or isinstance(error, httpx.UnsupportedProtocol):
            raise told from error
        return _Passing(told, None, None)

    def _json(self, response: httpx.Response) -> Any:
        try:
            return response.json()
        except ValueError as error:
            what = f"{self._url} answers, but not as Holdfast does"
            raise ServerRefused(status=response.status_code, what=what) from error


def _refuse(response: httpx.Response) -> None:
    """Raise what a refusal says."""
    if not response.is_error:
        if response.is_redirect:
            what = f"it points to {response.headers.get('location')}: give that address"
            raise ServerRefused(status=response.status_code, what=what)
        return
    error = error_of(response.status_code, response.content)
    if response.status_code in RETRYABLE:
        asked_s = retry_after_s(response.headers.get("retry-after"))
        raise _Passing(error, response.status_code, asked_s)
    raise error


def _is_certificate(error: BaseException) -> bool:
    """Tell whether the server's certificate is not trusted: trying again does not help."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _trusted(ca_file: Path | None) -> ssl.SSLContext:
    if ca_file is None:
        return ssl.create_default_context()
    with os_errors(ca_file):
        try:
            return ssl.create_default_context(cafile=str(ca_file))
        except ssl.SSLError as error:
            what = f"{ca_file} holds no certificate"
            raise UsageInvalid(what=what, remedy="Give a PEM file.") from error


def check_url(url: str, *, plain_http: bool) -> bool:
    """Refuse an address that is none, or over which a token would go in clear. Pure.

    Returns whether it is this machine's own.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        what = f"{url!r} is no address of a server"
        raise UsageInvalid(what=what, remedy="Write it like http://127.0.0.1:8080.")
    if parts.username or parts.password or parts.query or parts.fragment:
        what = "the address has more than scheme, host, port and path"
        raise UsageInvalid(what=what, remedy="A token goes into a file: --token-file.")
    local = _is_local(parts.hostname)
    if parts.scheme == "http" and not local and not plain_http:
        what = f"the token would go to {parts.hostname} in clear"
        raise UsageInvalid(what=what, remedy="Use https, or allow it: --plain-http.")
    return local


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_token(token: str) -> str:
    """Return a token as it stands in a file, without the line end. Never shown. Pure."""
    found = token.strip()
    if not found or not found.isascii() or not found.isprintable() or " " in found:
        remedy = "Give the file that holds just the token."
        raise UsageInvalid(what="the token is not one line of plain text", remedy=remedy)
    return found


def json_body(document: object) -> Body:
    """Return a body that is a JSON document."""
    data = json.dumps(document).encode()
    return lambda: [data]
