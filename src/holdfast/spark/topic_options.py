"""What `format("holdfast")` may be told about a topic. Read here, and refused by name.

Both sides: `topic`, `url`. Reading: `startingOffsets` (earliest, latest), `maxRecordsPerBatch`,
`group`. Writing: `idColumn`, `valueColumn`, `keyColumn`, `partitions`, `delivery`. Page:
docs/spark-topics.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from holdfast.errors import UsageInvalid
from holdfast.log.contract import Capability, QueueBackend
from holdfast.log.open import open_backend

EARLIEST, LATEST = "earliest", "latest"
AT_LEAST_ONCE = "at-least-once"
_BOTH = ("topic", "url")
_READING = (*_BOTH, "startingOffsets", "maxRecordsPerBatch", "group")
_WRITING = (*_BOTH, "idColumn", "valueColumn", "keyColumn", "partitions", "delivery")
_SPARKS_OWN = ("checkpointlocation",)
"""Options that Spark keeps for itself and shows to every sink."""
_IDS = (StringType, ByteType, ShortType, IntegerType, LongType)
"""Types whose values have one text each. A float or a timestamp has several."""
_BYTES = (StringType, BinaryType)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What is read."""

    topic: str
    url: str
    starting: str
    records_max: int | None
    group: str | None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What is written, and where it comes from. Without `id_column`: at least once."""

    topic: str
    url: str
    id_column: str | None
    value_column: str
    key_column: str | None
    partitions: int | None


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Return the options of a reader.

    Raises:
        UsageInvalid: one is missing, unknown or makes no sense.
    """
    _refuse_unknown(options, _READING)
    starting = options.get("startingOffsets", EARLIEST)
    if starting not in (EARLIEST, LATEST):
        raise _bad(f"startingOffsets is {starting!r}", f"Give {EARLIEST} or {LATEST}.")
    return ReadOptions(
        *_named(options), starting, _count(options, "maxRecordsPerBatch"), options.get("group")
    )


def write_options(options: Mapping[str, str], schema: StructType) -> WriteOptions:
    """Return the options of a writer, checked against the columns that are written.

    Raises:
        UsageInvalid: one is missing, unknown or makes no sense.
    """
    _refuse_unknown(options, _WRITING)
    delivery, id_column = options.get("delivery"), options.get("idColumn")
    if delivery not in (None, AT_LEAST_ONCE):
        raise _bad(f"delivery is {delivery!r}", f"Give {AT_LEAST_ONCE}, or nothing.")
    if id_column is None and delivery is None:
        remedy = "Name the column that identifies a record; or accept duplicates with"
        raise _bad("no idColumn", f"{remedy} option('delivery', '{AT_LEAST_ONCE}').")
    found = WriteOptions(
        *_named(options),
        id_column,
        options.get("valueColumn", "value"),
        options.get("keyColumn"),
        _count(options, "partitions"),
    )
    if id_column is not None:
        _check_column(schema, "idColumn", id_column, _IDS)
    _check_column(schema, "valueColumn", found.value_column, _BYTES)
    if found.key_column is not None:
        _check_column(schema, "keyColumn", found.key_column, _BYTES)
    return found


def _bad(what: str, remedy: str) -> UsageInvalid:
    return UsageInvalid(what=f"format holdfast: {what}", remedy=remedy)


def _refuse_unknown(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    names = {name.lower() for name in known}
    for name in options:
        if name.lower() not in names and name.lower() not in _SPARKS_OWN:
            raise _bad(f"it has no option {name!r} here", f"It knows {', '.join(known)}.")


def _named(options: Mapping[str, str]) -> tuple[str, str]:
    for name in _BOTH:
        if not options.get(name):
            raise _bad(f"no {name}", "Give option('topic', NAME) and option('url', URL).")
    return options["topic"], options["url"]


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise _bad(f"{name} is {text!r}", "Give a whole number of 1 or more.")
    return int(text)


def _check_column(
    schema: StructType, option: str, name: str, types: tuple[type[DataType], ...]
) -> None:
    if name not in schema.fieldNames():
        remedy = "Select it, for example to_json(struct('*')) as value."
        raise _bad(f"{option} is {name!r}, which is no column", remedy)
    found = schema[name].dataType
    if not isinstance(found, types):
        wanted = ", ".join(one.typeName() for one in types)
        raise _bad(f"column {name} ({option}) is {found.simpleString()}", f"Cast it: {wanted}.")


@contextmanager
def opened(url: str, *, write: bool = False, create: bool = False) -> Iterator[QueueBackend]:
    """Open a log that drivers and tasks, wherever they run, find the same.

    To `write` it must be durable: Spark does not write again what a log lost after it confirmed it.

    Raises:
        UsageInvalid: it is not such a log, or its file is not on this machine.
    """
    parts = urlsplit(url)
    if parts.scheme.startswith("tansu+"):
        # Each call and task would start a broker of its own on the same storage.
        remedy = "Use the kafka:// endpoint of the one that runs."
        raise _bad(f"{parts.scheme}:// starts a broker", remedy)
    if parts.scheme == "file" and not create and not Path(unquote(parts.path)).exists():
        # Opening would make it: a task on another machine would read and fill an empty log.
        remedy = "Create it first; on a cluster, use a log that all machines reach."
        raise _bad(f"{url} is not on this machine", remedy)
    backend = open_backend(url)
    if Capability.SHARED not in backend.capabilities:
        remedy = "Use file:///path, or a broker."
        raise _bad(f"{parts.scheme}:// is not shared by processes", remedy)
    if write and Capability.DURABLE not in backend.capabilities:
        remedy = "Use file:///path, a kafka:// broker with flush=always, or Tansu on S3."
        raise _bad(f"{url} is not durable, so it is only read", remedy)
    try:
        backend.start()
        yield backend
    finally:
        backend.stop()
