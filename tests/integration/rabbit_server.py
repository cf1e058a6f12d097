"""A real RabbitMQ server for tests: own node, ports, data and cookie; killed and started by pid.

Nothing of the distribution's own service is used or left running: this process starts the node and
the name server (epmd) it asks, both as children, and ends both.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from tests.integration.waiting import until

SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
PASSWORD = "canary-2718281828"
"""Of the one user. Tests look for it in every message: it must never be there."""

_SETTINGS = """\
listeners.tcp.1 = 127.0.0.1:{port}
loopback_users = none
default_user = holdfast
default_pass = {password}
log.file = false
log.console = true
log.console.level = warning
vm_memory_high_watermark.absolute = 1GB
disk_free_limit.absolute = 50MB
"""
_TERMS = """\
[{{rabbit, [{{consumer_timeout, {timeout_ms}}}, {{channel_tick_interval, 250}}]}},
 {{ra, [{{wal_max_size_bytes, 16777216}}]}}].
"""
"""The time-out is looked at once per tick, which is a minute unless told otherwise."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as line:
            line.sendall(b"AMQP\x00\x00\x09\x01")
            return line.recv(1) == b"\x01"
    except OSError:
        return False


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


class RabbitServer:
    """One node, with everything that is its own below `directory`."""

    def __init__(self, directory: Path, *, consumer_timeout_s: float = 1800) -> None:
        assert SCRIPT.is_file(), "RabbitMQ is missing: tests/integration/install_rabbit.sh"
        self._directory = directory
        self.port, self._dist_port, self._epmd_port = _free_port(), _free_port(), _free_port()
        self._node = f"holdfast-{os.getpid()}-{self.port}@localhost"
        self._cookie = secrets.token_hex(16)
        self._process: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        settings = _SETTINGS.format(port=self.port, password=PASSWORD)
        terms = _TERMS.format(timeout_ms=round(consumer_timeout_s * 1000))
        for name, text in {
            "rabbitmq.conf": settings,
            "advanced.config": terms,
            "enabled_plugins": "[].\n",
        }.items():
            (directory / name).write_text(text)
        (directory / "home").mkdir()

    @property
    def _environment(self) -> dict[str, str]:
        here = self._directory
        own = {
            "HOME": here / "home",
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_CONFIG_FILE": here / "rabbitmq.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": here / "advanced.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": here / "enabled_plugins",
            "RABBITMQ_MNESIA_BASE": here / "data",
            "RABBITMQ_LOG_BASE": here / "logs",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_DIST_PORT": self._dist_port,
            "ERL_EPMD_PORT": self._epmd_port,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            # The script then becomes the node instead of waiting for it: its pid is the node's.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                f"-noinput -setcookie {self._cookie} -kernel inet_dist_use_interface {{127,0,0,1}}"
            ),
        }
        return {**os.environ, **{name: str(value) for name, value in own.items()}}

    def start(self) -> None:
        """Start it, and return when it greets."""
        if self._epmd is None:
            command = ["epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"]
            with (self._directory / "epmd.log").open("ab") as log:
                self._epmd = subprocess.Popen(command, env=self._environment, stderr=log)
            until(lambda: _listens(self._epmd_port), "the name server listens")
        with (self._directory / "server.log").open("ab") as log:
            self._process = process = subprocess.Popen(
                [str(SCRIPT)],
                env=self._environment,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

        def ready() -> bool:
            assert process.poll() is None, (self._directory / "server.log").read_text()[-4000:]
            return _answers(self.port)

        until(ready, "the server greets", timeout_s=120)

    @property
    def pid(self) -> int:
        """The node's process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """End it as a power cut would end the program: SIGKILL, no flush."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def settle(self) -> None:
        """Stop it in order and start it again: what it keeps of its queues is then on disk.

        This version writes its list of quorum queues late. One that was declared less than a
        second before a kill may be known afterwards, and have no leader for ever.
        """
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)
        self.start()

    def let_write(self) -> None:
        """Wait until queues that were declared just now are on its disk, as for `settle`, while
        clients are at work: it tells nobody when it has written them.
        """
        time.sleep(2.0)

    def restart(self) -> None:
        """Kill it and start it again on the same data."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """End it and its name server; waits for both."""
        for process in (self._process, self._epmd):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
        self._process = self._epmd = None

    def url(self, *, password: str = PASSWORD, port: int | None = None) -> str:
        """Return the URL of its default virtual host."""
        return f"amqp://holdfast:{quote(password)}@127.0.0.1:{port or self.port}/"


@contextmanager
def running(*, consumer_timeout_s: float = 1800) -> Iterator[RabbitServer]:
    """Run a server of its own for a block."""
    directory = Path(tempfile.mkdtemp(prefix=f"holdfast-rabbit-{os.getpid()}-"))
    server = RabbitServer(directory, consumer_timeout_s=consumer_timeout_s)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
