"""Gets what the tests of brokers need, before they start: `python -m tests.integration.obtain`.

Debian packages come by apt-get, Kafka from Maven Central into a cache outside the tree. SeaweedFS
came with the Python packages, from the lock; here it is only looked for. What is there already is
not fetched again. What cannot be had ends it with an error: no test is skipped.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.integration import kafka_server, s3_server

PACKAGES = {"java": "openjdk-17-jre-headless", "mvn": "maven", "ip": "iproute2"}
"""Program -> the package that brings it."""


def _install_packages() -> None:
    missing = [package for program, package in PACKAGES.items() if shutil.which(program) is None]
    if missing:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        subprocess.run(["apt-get", "install", "-y", "-qq", *missing], check=True)


def _install_rabbit() -> None:
    subprocess.run(["bash", str(Path(__file__).with_name("install_rabbit.sh"))], check=True)


def _look_for_seaweed() -> None:
    subprocess.run([str(s3_server.program()), "version"], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    for what, get in (
        ("Debian packages", _install_packages),
        ("RabbitMQ", _install_rabbit),
        ("Kafka", kafka_server.jars),
        ("SeaweedFS", _look_for_seaweed),
    ):
        began = time.monotonic()
        get()
        sys.stdout.write(f"{what}: there, after {time.monotonic() - began:.0f} s\n")


if __name__ == "__main__":
    main()
