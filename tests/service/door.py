"""A real gateway process, its clients, and an engine without Spark that finishes their runs."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx
from tests.crash.workloads import CHUNKS, SMALL, make_pipeline

from holdfast._base.ids import RunId
from holdfast.blobs.local import LocalBlobs
from holdfast.engine.finish import finish
from holdfast.engine.loop import Engine
from holdfast.engine.state import Held, Shared, share
from holdfast.intake.tokens import make_token
from holdfast.log.embedded import EmbeddedBackend
from holdfast.store.client_rows import Client, Quotas
from holdfast.testing.plain import PlainExecutor

ROOT = Path(__file__).parents[2]
WAIT_S = 30.0
ENDS = [("sales", "", 3), ("sales", "b", 1), ("shops", "", 1), ("notes", "", 1)]
CSV = {"Content-Type": "text/csv"}
HEADER = b"shop,amount\n"


def document_of(size: int, fill: bytes = b"x", header: bytes = HEADER) -> bytes:
    """Return a document of so many bytes: only its header is looked at when it is handed in."""
    return (header + fill * (size // len(fill) + 1))[:size]


def environment(**more: str) -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **more}


def wait_for(condition: Callable[[], Any], what: str = "it", wait_s: float = WAIT_S) -> Any:
    """Return what the condition gives, once it gives anything."""
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what} did not happen within {wait_s} s")


def answer_on(line: socket.socket) -> tuple[int, bytes]:
    """Return status and body of one whole answer: its head and its body may come apart."""
    answer = HTTPResponse(line)
    answer.begin()
    return answer.status, answer.read()


def command(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `holdfast` in a directory."""
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *arguments],
        cwd=root,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


class Gateway:
    """One gateway process on `root/state`. Its own output is in `root/gateway.log`."""

    def __init__(self, root: Path, *options: str, pipeline: str, **more: str) -> None:
        self.root, self.state = root, root / "state"
        arguments = ["gateway", "--pipeline", pipeline, "--state", str(self.state)]
        if "--listen" not in options:
            arguments += ["--listen", "127.0.0.1:0"]
        with (root / "gateway.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.cli", *arguments, *options],
                cwd=root,
                env=environment(**more),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.url = self._url()

    def _url(self) -> str:
        """Return the address, as the process tells it."""
        assert self.process.stdout is not None
        line: list[str] = []
        reader = threading.Thread(target=lambda: line.append(self.process.stdout.readline()))  # type: ignore[union-attr]
        reader.start()
        reader.join(WAIT_S)
        assert line, "the gateway says nothing"
        assert line[0].startswith("listening on "), self.log()
        return line[0].removeprefix("listening on ").strip()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def log(self) -> str:
        return (self.root / "gateway.log").read_text()

    def client(self, token: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"}
        known = self.root / "cert.pem"
        verify = ssl.create_default_context(cafile=known if known.exists() else None)
        return httpx.Client(base_url=self.url, headers=headers, timeout=WAIT_S, verify=verify)

    def stop(self) -> int:
        """Ask it to end; returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def ended(self) -> int:
        """Wait until it ended by itself, or by a crash point; returns its exit code."""
        code = self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def make_certificate(root: Path) -> tuple[str, ...]:
    """Make one of this machine in `root`; returns the options of a gateway there that has it."""
    subprocess.run(
        shlex.split(
            "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
            " -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
        ),
        cwd=root,
        check=True,
        capture_output=True,
    )
    return ("--tls-cert", "cert.pem", "--tls-key", "key.pem")


@contextmanager
def serving(
    root: Path, *options: str, pipeline: str = "tests.service.toy:pipe", **more: str
) -> Iterator[Gateway]:
    root.mkdir(parents=True, exist_ok=True)
    gateway = Gateway(root, *options, pipeline=pipeline, **more)
    try:
        yield gateway
    finally:
        if gateway.process.poll() is None:
            gateway.process.kill()
        gateway.ended()


@contextmanager
def store_of(root: Path) -> Iterator[Shared]:
    """Open the state beside a gateway, as any part of a service does."""
    with share(root / "state", SMALL, part="test") as shared:
        yield shared


def add_client(root: Path, name: str, **quotas: int) -> str:
    """Add a client; returns its token."""
    text, token = make_token()
    with store_of(root) as shared:
        assert shared.store.add_client(Client(name, quotas=Quotas(**quotas)), token)
    return text


def checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def create(client: httpx.Client, key: str = "k", **body: Any) -> str:
    answer = client.post("/v1/runs", headers={"Idempotency-Key": key}, json=body)
    assert answer.status_code in (200, 201), answer.text
    run: str = answer.json()["run"]
    return run


def put(
    client: httpx.Client,
    run: str,
    data: bytes,
    *,
    table: str = "sales",
    ordinal: int = 1,
    sender: str = "",
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    sent = {**CSV, "Holdfast-Checksum": checksum(data), **(headers or {})}
    path = f"/v1/runs/{run}/tables/{table}/chunks/{ordinal}"
    return client.put(path, params={"sender": sender}, content=data, headers=sent)


def end(
    client: httpx.Client, run: str, count: int, table: str = "sales", sender: str = ""
) -> httpx.Response:
    path = f"/v1/runs/{run}/tables/{table}/end"
    return client.put(path, params={"sender": sender}, json={"count": count})


def send_all(client: httpx.Client, run: str) -> list[int]:
    """Send all of the toy pipeline's documents and ENDs; returns the statuses."""
    codes = [
        put(client, run, text.encode(), table=table, sender=sender, ordinal=ordinal).status_code
        for table, sender, ordinal, text in CHUNKS
    ]
    return codes + [end(client, run, n, table, sender).status_code for table, sender, n in ENDS]


def work_off(root: Path, run: str, results: str = "csv") -> None:
    """Be the engine and delivery: apply what is there, finish the run if it is complete."""
    pipeline = make_pipeline(results=results)
    with store_of(root) as shared:
        fence = shared.store.take_lease("engine", "test")
        held = Held(shared.directory, shared.store, fence)
        engine = Engine(
            held,
            pipeline.spec(),
            PlainExecutor(pipeline),
            log=EmbeddedBackend(shared.store),
            blobs=LocalBlobs(shared.directory.blobs),
            config=SMALL,
        )
        engine.advance(RunId(run))
        finish(held, RunId(run), root / "out")


def document(client: httpx.Client, run: str) -> Any:
    answer = client.get(f"/v1/runs/{run}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def events_of(lines: Iterator[str]) -> Iterator[Any]:
    """Yield the documents of a stream of server-sent events."""
    for line in lines:
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
