"""How a log on a Kafka-protocol broker is named: kafka://host:port[,host:port]/prefix?options.

What each option means: docs/backends.md. A URL holds no secret: user and password come from the
environment (`HOLDFAST_KAFKA_USERNAME`, `HOLDFAST_KAFKA_PASSWORD`), or from the file that
`HOLDFAST_KAFKA_SECRETS` names, with the lines `username=...` and `password=...`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlsplit

from holdfast._base.files import os_errors
from holdfast.errors import UsageInvalid
from holdfast.log.kafka.names import PREFIX

USERNAME, PASSWORD = "HOLDFAST_KAFKA_USERNAME", "HOLDFAST_KAFKA_PASSWORD"
SECRETS = "HOLDFAST_KAFKA_SECRETS"

_CHOICES: dict[str, tuple[str, ...]] = {
    "flush": ("always", "broker"),
    "truncate": ("delete", "mark"),
    "reads": ("record", "batch"),
    "security": ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"),
    "mechanism": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
}
_OPTIONS = (
    *("replicas", "flush", "truncate", "reads", "timeout_s"),
    *("security", "mechanism", "ca"),
)
_WRITE = "Write kafka://host:port[,host:port]/prefix?option=value; see docs/backends.md."


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """One log on one broker or cluster. `url` names it to people and other processes."""

    servers: str
    prefix: str
    replicas: int = 1
    flush: str = "always"
    """`always`: the broker writes each batch to its disk before it confirms it. `broker`: as the
    broker is set up, which by default means that a power cut of all replicas loses data."""
    truncate: str = "delete"
    """`delete`: by DeleteRecords. `mark`: the broker lacks that; a position says what is held."""
    reads: str = "record"
    """`record`: a fetch begins at any offset. `batch`: the broker knows where batches begin only;
    the reader makes up for it."""
    timeout_s: float = 60.0
    """How long a broker may be away before a call gives up. It is tried again all that time."""
    security: str = "plaintext"
    mechanism: str = "PLAIN"
    ca: str = ""
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @property
    def url(self) -> str:
        """The log's URL, without any secret."""
        options = {
            name: str(getattr(self, name))
            for name in _OPTIONS
            if getattr(self, name) != _default(name)
        }
        query = "&".join(f"{name}={quote(value, safe='/')}" for name, value in options.items())
        return f"kafka://{self.servers}/{self.prefix}{'?' if query else ''}{query}"

    def waiting(self, timeout_s: float) -> KafkaSettings:
        """Return the same with another time-out."""
        return replace(self, timeout_s=timeout_s)

    def client(self) -> dict[str, str | int]:
        """Return the client library's settings that all clients of this log share."""
        settings: dict[str, str | int] = {
            "bootstrap.servers": self.servers,
            "security.protocol": self.security,
            # A broker that was killed is back within seconds: look for it at least every second.
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1000,
            # Its complaints go into our errors, not to the terminal.
            "log_level": 0,
        }
        if self.ca:
            settings["ssl.ca.location"] = self.ca
        if self.security.startswith("sasl"):
            settings["sasl.mechanism"] = self.mechanism
            settings["sasl.username"], settings["sasl.password"] = self.username, self.password
        return settings


def _default(name: str) -> object:
    return KafkaSettings.__dataclass_fields__[name].default


def read_settings(url: str, environment: Mapping[str, str] | None = None) -> KafkaSettings:
    """Return what a URL and the environment say.

    Raises:
        UsageInvalid: the URL says something else, or holds a secret, which is not repeated.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc:
        what = "a kafka:// URL holds a user or a password"
        remedy = f"Take them out and set {USERNAME} and {PASSWORD}, or {SECRETS}=FILE."
        raise UsageInvalid(what=what, remedy=remedy)
    servers, prefix = parts.netloc, parts.path.strip("/")
    if not all(_is_address(server) for server in servers.split(",")) or parts.fragment:
        raise UsageInvalid(what=f"{url} names no broker", remedy=_WRITE)
    if not PREFIX.fullmatch(prefix):
        remedy = "Write one after the broker: letters, digits and -, at most 64."
        raise UsageInvalid(what=f"{url} has no prefix for its topics", remedy=remedy)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    texts = {name: _chosen(name, value) for name, value in options.items() if name in _CHOICES}
    for name in options.keys() - _CHOICES.keys() - {"replicas", "timeout_s", "ca"}:
        raise UsageInvalid(what=f"a kafka:// URL has no option {name}", remedy=_WRITE)
    username, password = _secrets(os.environ if environment is None else environment)
    return KafkaSettings(
        servers=servers,
        prefix=prefix,
        replicas=int(_number(options, "replicas", "1")),
        timeout_s=_number(options, "timeout_s", "60"),
        ca=options.get("ca", ""),
        username=username,
        password=password,
        **texts,
    )


def _is_address(server: str) -> bool:
    host, colon, port = server.rpartition(":")
    return bool(host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16)


def _chosen(name: str, value: str) -> str:
    if value not in _CHOICES[name]:
        remedy = f"Give one of {', '.join(_CHOICES[name])}."
        raise UsageInvalid(what=f"{name}={value} in a kafka:// URL", remedy=remedy)
    return value


def _number(options: Mapping[str, str], name: str, default: str) -> float:
    value = options.get(name, default)
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number <= 3600 or (name == "replicas" and number != int(number)):
        raise UsageInvalid(what=f"{name}={value} in a kafka:// URL", remedy="Give a number from 1.")
    return number


def _secrets(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return user and password; both empty if none are given."""
    found = {
        "username": environment.get(USERNAME, ""),
        "password": environment.get(PASSWORD, ""),
    }
    if path := environment.get(SECRETS):
        with os_errors(Path(path)):
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        for line in lines:
            name, equals, value = line.partition("=")
            if equals and name.strip() in found:
                found[name.strip()] = value.strip()
    return found["username"], found["password"]
