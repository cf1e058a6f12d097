"""How a broker that we start is named.

    tansu+memory://PREFIX                   lost when it ends
    tansu+sqlite:///path/to/file            in one file
    tansu+s3://BUCKET                       in a bucket

Options, as `?name=value&...`: docs/backends.md. Keys of S3 come from `AWS_ACCESS_KEY_ID` and
`AWS_SECRET_ACCESS_KEY`, or from the file that `HOLDFAST_S3_SECRETS` names, with the lines
`access_key=...` and `secret_key=...`; never from a URL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast._base.files import os_errors
from holdfast.errors import DependencyMissing, UsageInvalid
from holdfast.log.contract import Capability
from holdfast.log.kafka.names import PREFIX
from holdfast.log.kafka.settings import KafkaSettings

BINARY = "HOLDFAST_TANSU"
"""Names the binary, where it is not found by its name."""
SECRETS = "HOLDFAST_S3_SECRETS"
NAMES = ("tansu", "nisshi")
INSTALL = "make broker, or cargo install tansu --version 0.6.0 --locked --features dynostore,libsql"
STARTUP_S = {"memory": 10.0, "sqlite": 20.0, "s3": 60.0}
"""How long a broker may take to answer: on S3 it reads its bucket first."""

LOOPBACK = "127.0.0.1"
_ANY = "0.0.0.0"  # noqa: S104 - it is refused: nobody can connect to it
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_WRITE = "Write tansu+memory://PREFIX, tansu+sqlite:///path/to/file or tansu+s3://BUCKET."
_OPTIONS = frozenset(
    (
        *("prefix", "host", "port", "data_dir", "s3_endpoint", "s3_region"),
        *("startup_timeout_s", "timeout_s"),
    )
)


@dataclass(frozen=True, slots=True)
class TansuSettings:
    """One broker: what it stores where, and how long to wait for it."""

    engine: str
    """memory, sqlite or s3."""
    place: str
    """The file, or the bucket."""
    prefix: str
    host: str = LOOPBACK
    """Where it listens, and what others are told to connect to. It asks nobody who they are."""
    port: int = 0
    """0: a free one."""
    data_dir: str = ""
    """Where its output goes; empty: beside the file, or a temporary directory."""
    s3_endpoint: str = ""
    s3_region: str = "us-east-1"
    startup_timeout_s: float = 10.0
    timeout_s: float = 60.0

    @property
    def storage(self) -> str:
        """What the broker calls its storage. A file is always relative to where it runs."""
        match self.engine:
            case "sqlite":
                return f"sqlite://{Path(self.place).name}"
            case "s3":
                return f"s3://{self.place}/"
            case _:
                return "memory://holdfast/"

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What this broker can do: only S3 has it all on disk before it answers."""
        durable = {Capability.DURABLE} if self.engine == "s3" else set()
        return frozenset({Capability.SHARED, *durable})

    def client(self, port: int) -> KafkaSettings:
        """Return how to talk to the broker on `port`, and what it lacks."""
        return KafkaSettings(
            servers=f"{self.host}:{port}",
            prefix=self.prefix,
            flush="always" if self.engine == "s3" else "broker",
            truncate="mark",
            reads="record" if self.engine == "sqlite" else "batch",
            timeout_s=self.timeout_s,
        )


def read_settings(url: str) -> TansuSettings:
    """Return what a URL says.

    Raises:
        UsageInvalid: it says something else.
    """
    parts = urlsplit(url)
    engine = parts.scheme.removeprefix("tansu+")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options.keys() - _OPTIONS:
        raise UsageInvalid(what=f"a {parts.scheme}:// URL has no option {name}", remedy=_WRITE)
    if engine not in STARTUP_S or parts.fragment or "@" in parts.netloc:
        raise UsageInvalid(what="a URL that names no broker to start", remedy=_WRITE)
    place, prefix = parts.netloc, options.get("prefix", "holdfast")
    if engine == "sqlite":
        place = unquote(parts.path)
        _require(not parts.netloc and Path(place).is_absolute() and Path(place).name, url)
    elif engine == "s3":
        _require(_BUCKET.fullmatch(place) and parts.path in ("", "/"), url)
    else:
        place, prefix = "", options.get("prefix", place)
        _require(parts.path in ("", "/"), url)
    _require(PREFIX.fullmatch(prefix), url)
    host = options.get("host", LOOPBACK)
    _require(_HOST.fullmatch(host) and host != _ANY, url)
    return TansuSettings(
        engine=engine,
        place=place,
        prefix=prefix,
        host=host,
        port=int(_number(options, "port", 0, 65535)),
        data_dir=options.get("data_dir", ""),
        s3_endpoint=options.get("s3_endpoint", ""),
        s3_region=options.get("s3_region", "us-east-1"),
        startup_timeout_s=_number(options, "startup_timeout_s", STARTUP_S[engine], 3600),
        timeout_s=_number(options, "timeout_s", 60, 3600),
    )


def _require(good: object, url: str) -> None:
    if not good:
        raise UsageInvalid(what=f"{url} names no broker to start", remedy=_WRITE)


def _number(options: Mapping[str, str], name: str, default: float, most: float) -> float:
    text = options.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number <= most or (name == "port" and number != int(number)):
        remedy = f"Give a number from 1 to {most:g}."
        raise UsageInvalid(what=f"{name}={text} in a tansu URL", remedy=remedy)
    return number


def environment_of(
    settings: TansuSettings, port: int, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the broker's environment: its settings, and its keys if it needs them."""
    address = f"tcp://{settings.host}:{port}"
    found = {
        **environment,
        "STORAGE_ENGINE": settings.storage,
        "LISTENER_URL": address,
        "ADVERTISED_LISTENER_URL": address,
        # In a bucket, everything of a broker lies below this name.
        "CLUSTER_ID": settings.prefix,
        "RUST_LOG": environment.get("RUST_LOG", "warn"),
    }
    if settings.engine == "s3":
        found["AWS_REGION"] = settings.s3_region
        if settings.s3_endpoint:
            found["AWS_ENDPOINT"] = settings.s3_endpoint
        if found.get("AWS_ENDPOINT", "").startswith("http:"):
            found["AWS_ALLOW_HTTP"] = "true"
        found |= _keys(environment)
    return found


def _keys(environment: Mapping[str, str]) -> dict[str, str]:
    path = environment.get(SECRETS)
    if not path:
        return {}
    names = {"access_key": "AWS_ACCESS_KEY_ID", "secret_key": "AWS_SECRET_ACCESS_KEY"}
    with os_errors(Path(path)):
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    pairs = (line.partition("=") for line in lines)
    return {names[a.strip()]: b.strip() for a, _, b in pairs if a.strip() in names}


def find_binary(environment: Mapping[str, str]) -> str:
    """Return the broker's binary: the one that is named, one on the path, one that was built.

    Raises:
        DependencyMissing: there is none.
    """
    named = environment.get(BINARY, "")
    base = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    built = sorted((base / "holdfast" / "tansu").glob("*/bin"), reverse=True)
    folders = [*environment.get("PATH", "").split(os.pathsep), *map(str, built)]
    tried = [named] if named else [f"{folder}/{name}" for folder in folders for name in NAMES]
    for path in tried:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    what = f"{named} is no broker that can be run" if named else "there is no tansu binary"
    raise DependencyMissing(what=what, install=INSTALL)
