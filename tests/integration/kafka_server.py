"""A real Kafka: one node that is its own controller, from the JARs of Maven Central.

The JARs are fetched once for all checkouts: `python -m tests.integration.obtain`.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from tests.integration.nodes import Node
from tests.integration.processes import ServerProcess, cache, free_ports

VERSION = "4.1.0"
CLUSTER = "aG9sZGZhc3QtdGVzdHMtMQ"
"""Any 16 bytes, in the base64 that Kafka writes."""
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>holdfast</groupId><artifactId>kafka-server</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
    <version>{VERSION}</version>
  </dependency></dependencies>
</project>
"""
_FLAGS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""For a short life: quick to start rather than quick in the long run."""


def jars() -> Path:
    """Return the directory of Kafka's JARs, fetching them if they are missing."""
    target = cache() / "kafka" / VERSION
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"{VERSION}-", dir=target.parent))
    (work / "pom.xml").write_text(_POM, encoding="ascii")
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
    command = ["mvn", "-q", "-B", "-f", str(work / "pom.xml"), *goal]
    subprocess.run([*command, f"-DoutputDirectory={work / 'jars'}"], check=True)
    try:
        (work / "jars").rename(target)
    except OSError:
        assert target.is_dir()  # somebody else was quicker
    shutil.rmtree(work)
    return target


class KafkaServer:
    """One broker, its data below `directory`: on 127.0.0.1, or on a node of its own."""

    def __init__(
        self,
        directory: Path,
        *,
        node: Node | None = None,
        flags: tuple[str, ...] = _FLAGS,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`more` are settings of the broker, by Kafka's own names."""
        directory.mkdir(parents=True, exist_ok=True)
        self._node = node
        self.host = host = node.address if node else "127.0.0.1"
        self.port, controller = free_ports(2)
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{host}:{controller}",
            "listeners": f"PLAINTEXT://{host}:{self.port},CONTROLLER://{host}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{host}:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(directory / "data"),
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # The controller lets a killed node in again only when its old session has ended.
            "broker.session.timeout.ms": "1000",
            "broker.heartbeat.interval.ms": "200",
            **more,
        }
        file = directory / "server.properties"
        file.write_text("".join(f"{k}={v}\n" for k, v in properties.items()), encoding="ascii")
        java = ["java", *flags, "-cp", f"{jars()}/*"]
        subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(file)],
            check=True,
            capture_output=True,
        )
        command = [*java, f"-Dkafka.logs.dir={directory}", "kafka.Kafka", str(file)]
        self.process = ServerProcess(
            node.inside(command) if node else command,
            log=directory / "server.log",
            ready=self._is_ready,
        )

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def url(self, prefix: str, options: str = "") -> str:
        """Return a log of its own on this server."""
        return f"kafka://{self.address}/{prefix}{options and '?'}{options}"

    def _is_ready(self) -> bool:
        with self._node.entered() if self._node else nullcontext():
            asker = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        try:
            return bool(asker.list_topics(timeout=1.0).brokers)
        except KafkaException:
            return False

    def start(self) -> None:
        self.process.start()

    def kill(self) -> None:
        self.process.kill()

    def stop(self) -> None:
        self.process.stop()


@contextmanager
def running(directory: Path, *, node: Node | None = None) -> Iterator[KafkaServer]:
    """Run a server below `directory` for a block."""
    server = KafkaServer(directory, node=node)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
