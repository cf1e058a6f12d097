"""Backends by URL: `memory://name`, `file:///path`, `kafka://host:port/prefix`,
`tansu+sqlite:///path`, and those that other packages bring.

A package offers a backend by an entry point of the group `holdfast.queue_backends`. Its name is
the URL scheme; what it loads is called with the URL and returns a `QueueBackend`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib.metadata import entry_points
from urllib.parse import unquote, urlsplit
from weakref import WeakValueDictionary

from holdfast.errors import DependencyMissing, UsageInvalid
from holdfast.log.contract import QueueBackend
from holdfast.log.embedded import EmbeddedBackend
from holdfast.log.memory import MemoryBackend

ENTRY_POINTS = "holdfast.queue_backends"

_named: WeakValueDictionary[str, MemoryBackend] = WeakValueDictionary()
_guard = threading.Lock()


def _open_memory(url: str) -> QueueBackend:
    """Return the memory log of that name: the same one while anybody in this process holds it."""
    name = urlsplit(url).netloc
    if not name:
        raise UsageInvalid(what=f"{url} has no name", remedy="Write memory://name.")
    with _guard:
        found = _named.get(name)
        if found is None:
            found = _named[name] = MemoryBackend(name)
        return found


def _open_file(url: str) -> QueueBackend:
    parts = urlsplit(url)
    if parts.netloc or not parts.path.startswith("/") or parts.query or parts.fragment:
        raise UsageInvalid(what=f"{url} names no local file", remedy="Write file:///path/to/file.")
    return EmbeddedBackend(unquote(parts.path))


def _open_broker(url: str) -> QueueBackend:
    # Late: the client library is an extra.
    try:
        from holdfast.log.kafka.backend import KafkaBackend
        from holdfast.log.tansu.backend import TansuBackend
    except ModuleNotFoundError as error:
        install = "pip install 'holdfast[kafka]'"
        what = "a log on a broker needs confluent-kafka"
        raise DependencyMissing(what=what, install=install) from error
    return KafkaBackend(url) if url.startswith("kafka:") else TansuBackend(url)


_BUILT_IN: dict[str, Callable[[str], QueueBackend]] = {
    "memory": _open_memory,
    "file": _open_file,
    "kafka": _open_broker,
    "tansu+memory": _open_broker,
    "tansu+sqlite": _open_broker,
    "tansu+s3": _open_broker,
}


def open_backend(url: str) -> QueueBackend:
    """Return the backend that `url` names, not started.

    Raises:
        UsageInvalid: the URL says nothing a backend understands.
        DependencyMissing: no installed package knows its scheme.
    """
    scheme = urlsplit(url).scheme
    if not scheme:
        raise UsageInvalid(what=f"{url!r} is no URL", remedy="Write file:///path or memory://name.")
    if scheme in _BUILT_IN:
        return _BUILT_IN[scheme](url)
    for entry in entry_points(group=ENTRY_POINTS, name=scheme):
        backend = entry.load()(url)
        if not isinstance(backend, QueueBackend):
            raise UsageInvalid(
                what=f"{entry.value} made {type(backend).__name__} for {url}, not a QueueBackend",
                remedy="Correct that package.",
            )
        return backend
    raise DependencyMissing(
        what=f"no installed package brings a log for {scheme}:// URLs",
        install=f"one with an entry point {scheme!r} in the group {ENTRY_POINTS!r}",
    )
