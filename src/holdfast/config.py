"""Every limit and time-out, with its unit in its name and its reason beside it.

Where the command line takes them from, and how they are written there: docs/configuration.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from holdfast.errors import UsageInvalid

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Range:
    """The smallest and the largest value that a number may have."""

    least: float
    most: float


def _number(default: Any, least: float, most: float) -> Any:
    return field(default=default, metadata={"range": Range(least, most)})


BATCH_SIZE = 100
"""References in one request to a log elsewhere, unless a stage says otherwise."""
FETCH_TIMEOUT_MS = 1000


def _option(least: float, most: float) -> Any:
    return field(default=None, metadata={"range": Range(least, most)})


@dataclass(frozen=True, slots=True)
class StageOptions:
    """What may be set for one stage: in `@pipe.stage(...)`, in `[stages.NAME]`, in `Config.stages`.

    None: not given here. `durable` makes the stage's output a table with a topic, and belongs to
    the pipeline's plan. The others say how that topic's references travel: they change no answer
    and may change between two starts. A light stage has no topic, so it takes none of them.

    Raises:
        UsageInvalid: a number is out of its range.
    """

    durable: bool | None = None
    """Keep the output of this stage, or compute it again in memory when it is needed. Default:
    false, which is a light stage. Durable for what is expensive, light for what is not."""

    log: str | None = None
    """The log that references to its output travel on: a URL, or "" for the store's own. Default:
    the setting `log`. On a light stage only `memory://...`, which is what it has anyway."""

    port: int | None = _option(1, 65535)
    """The port of a broker that Holdfast starts (`tansu+...://`). Default: a free one."""

    batch_size: int | None = _option(1, 10_000)
    """Most references in one request to that log, sent or fetched. Default: 100. Smaller: a round
    trip each. Larger: a broker's limit on a request."""

    fetch_timeout_ms: int | None = _option(1, 600_000)
    """How long one fetch waits for that log to show what it has confirmed. Default: 1000. Shorter:
    a slow broker is sent the same again. Longer: one that lost records is noticed later."""

    def __post_init__(self) -> None:
        """Refuse what is out of range, wherever it came from."""
        for name, allowed in STAGE_RANGES.items():
            value = getattr(self, name)
            if value is not None and not allowed.least <= value <= allowed.most:
                raise UsageInvalid(what=f"{name} = {value}", remedy=remedy_of(allowed))

    def over(self, below: Self) -> Self:
        """Return what is given here, and below it where nothing is given here.

        A stage that is made light here has no use for what was said of its topic.
        """
        if self.durable is False:
            return self
        return type(self)(
            *(
                getattr(below if getattr(self, name) is None else self, name)
                for name in STAGE_OPTIONS
            )
        )


@dataclass(frozen=True, slots=True)
class Config:
    """What may be set. The defaults suit one machine with a few cores.

    Raises:
        UsageInvalid: a number is out of its range.
    """

    chunk_bytes: int = _number(32 * MIB, 1, 1024 * MIB)
    """Size at which an input file is cut. Smaller: more rows in the store and smaller tasks than
    Spark likes. Larger: fewer tasks than cores, and more memory per parse."""

    batch_bytes: int = _number(64 * MIB, 1, 1 << 50)
    """Input of one Spark job. Smaller: the fixed cost of a job (0.2 s) shows. Larger: more work
    is repeated after a crash, and results stream out later."""

    batch_chunks: int = _number(1000, 1, 100_000)
    """Most chunks in one batch: many tiny files must not make one plan without end."""

    piece_rows_max: int = _number(1_000_000, 1, 1 << 40)
    """Most rows in one piece of a result: a client fetches and checks it as a whole, and fetches it
    again after a broken line. It is rows that Spark counts as it writes; rows of a hundred bytes
    make CSV of 100 MB. Smaller: more files, each with its row and fsync. A new value is for
    results that are not yet written."""

    works_at_once: int = _number(2, 1, 64)
    """Works of different runs that a service's engine has under way together. Fewer: cores idle
    while Spark plans, or waits for the last task of a job. More: they share the same memory.
    Results of large runs never have the last one; with 1, everybody waits for a large result."""

    attempts_max: int = _number(3, 1, 1000)
    """Failed attempts after which a run is FAILED. Fewer: a passing fault ends a run. More: a
    stage that always fails is paid for that often."""

    spark_losses_max: int = _number(10, 1, 1000)
    """Times that Spark may die under one work before its run is FAILED. Fewer: a machine that is
    short of memory for a while, or somebody's `kill -9`, ends a run that nothing is wrong with.
    More: a work that always kills Spark costs its time, and a start of Spark, that often."""

    transaction_wait_s: float = _number(60.0, 0.001, 3600.0)
    """How long a store transaction waits for another process's. Transactions take milliseconds;
    a longer wait means that the other one hangs."""

    lease_patience_s: float = _number(10.0, 0.1, 3600.0)
    """How long the active engine or delivery of a service may be silent before one that stands by
    takes over; it beats ten times as often. Shorter: a machine that is busy for a moment changes
    owners. Longer: a stopped process holds everybody up for so long. A dead one never does."""

    hang_patience_s: float = _number(300.0, 3.0, 86400.0)
    """How long the loop that does the work of a gateway, engine or delivery may not come round
    before it counts as hanging: `holdfast up` kills it, or one that stands by takes over. A batch
    may take any time, that is not the loop. Shorter: a step that is slow on a busy machine, or
    waits for the store (`transaction_wait_s`) again and again, is cut off. Longer: a loop that
    hangs holds everybody up for so long."""

    fetch_records: int = _number(1000, 1, 100_000)
    """Records taken from a topic at once: bounds memory, costs one query per so many chunks."""

    upload_chunk_bytes: int = _number(128 * MIB, 1, 1 << 40)
    """Largest chunk that the gateway takes, unless a client has its own quota. Larger: more is
    sent again after a broken line, and one parse takes more memory."""

    upload_rate_bytes: int = _number(4096, 0, 1 << 30)
    """Least bytes a second of an upload, after its first 10 s. Smaller: idle connections stay for
    longer. Larger: a sender on a bad line is refused."""

    header_wait_s: float = _number(10.0, 0.1, 3600.0)
    """How long a connection may take to send a request's head, and for a handshake of TLS before
    it. Shorter: a sender on a bad line is cut off. Longer: connections that say nothing pile up."""

    answer_wait_s: float = _number(30.0, 0.1, 3600.0)
    """How long a client may read nothing of an answer; then its connection is cut. Shorter: a
    client that pauses fetches again. Longer: answers that nobody reads take connections and
    memory."""

    connections_max: int = _number(512, 1, 100_000)
    """Most connections at once, for all clients; beyond, the one that has asked nothing for longest
    is cut, and one client has at most a quarter of them under way. More need more memory, up to
    half a MiB each while they upload at full speed, and over TLS as much at any time."""

    unpacked_bytes: int = _number(8192 * MIB, 1, 1 << 50)
    """What a Parquet chunk may hold when it is unpacked, by its own footer. Larger: a document of
    a few kilobytes can take a machine's memory."""

    unpacked_rows_max: int = _number(1_000_000_000, 1, 1 << 50)
    """Most rows in a Parquet chunk, by its own footer. Repeated values take no room in it: rows
    can be many where bytes are few."""

    backlog_bytes: int = _number(8192 * MIB, 1, 1 << 50)
    """Bytes of one client that may wait to be worked on; then it is asked to come back later.
    Smaller: senders wait while the engine could work. Larger: more of the disk is taken by what
    nobody has looked at."""

    disk_floor_bytes: int = _number(1024 * MIB, 0, 1 << 50)
    """Room that must be left on the disk, or uploads are refused. Smaller: a batch that writes its
    results meets a full disk. The store and results need room too, so it is not 0."""

    client_open_runs: int = _number(100, 1, 1_000_000)
    """Unfinished runs of one client, unless it has its own quota. Each is looked at in turn."""

    client_stored_bytes: int = _number(1 << 40, 1, 1 << 60)
    """Bytes of chunks that one client may keep here, unless it has its own quota: in all of its
    runs that are not swept."""

    client_run_chunks: int = _number(100_000, 1, 1_000_000_000)
    """Chunks of one run, unless its client has its own quota. Each is a row, and a file."""

    client_request_rate: int = _number(200, 1, 1_000_000)
    """Requests a second of one client, unless it has its own quota; twice as many at once. Each
    takes a look at the store: a few thousand a second are all there are, for everybody."""

    notice_timeout_s: float = _number(5.0, 0.1, 60.0)
    """How long a webhook's receiver may take to answer. Longer: a slow one holds up the end of the
    delivery process for so long."""

    notice_wait_s: float = _number(1.0, 0.01, 3600.0)
    """First wait before a notice that was not taken is sent again; it doubles from there."""

    notice_wait_max_s: float = _number(3600.0, 0.01, 86400.0)
    """Longest wait between two attempts at a notice, and the longest Retry-After that is heeded."""

    notice_attempts_max: int = _number(20, 1, 1000)
    """Failures after which a notice is given up and listed as a dead letter. With the default waits
    that is after about six hours."""

    abandon_after_s: float = _number(0.0, 0.0, 1e9)
    """A run that waits for its client or its producer, and to which nothing happens for so long,
    is ABANDONED. 0: never. It is no time-out of completion: an abandoned run has no results."""

    sweep_after_s: float = _number(3600.0, 0.0, 1e9)
    """How long a FAILED, CANCELLED or ABANDONED run keeps its bytes, for whoever asks why. Shorter:
    less disk. It is counted while a delivery process is active."""

    expire_after_s: float = _number(0.0, 0.0, 1e9)
    """How long the results of a DONE run can be fetched. 0: for ever; then disk fills for ever."""

    log: str = ""
    """The log that references travel on: the store's own, unless a URL names another, such as
    `kafka://host:9092/shop` (docs/backends.md). It may change between two starts: the store keeps
    what was not read yet."""

    stages: Mapping[str, StageOptions] = field(default_factory=dict)
    """Options of single stages, by name. They win over those in the pipeline's code."""

    master: str = "local[*]"
    """Where the command line runs Spark: all cores of this machine. `Pipeline.run` has a session
    already and takes no notice."""

    spark: Mapping[str, str] = field(default_factory=dict)
    """Spark settings of the command line's own session. They win over those that Holdfast chooses
    for the machine. `Pipeline.run` has a session already and takes no notice."""

    def __post_init__(self) -> None:
        """Refuse what is out of range, wherever it came from."""
        for name, allowed in RANGES.items():
            value = getattr(self, name)
            if not allowed.least <= value <= allowed.most:
                raise UsageInvalid(what=f"{name} = {value}", remedy=remedy_of(allowed))


def remedy_of(allowed: Range) -> str:
    """Return what to do about a number that is out of range."""
    return f"Give a number from {allowed.least:g} to {allowed.most:.15g}."


def _ranges(options: type[Config | StageOptions]) -> dict[str, Range]:
    known = {setting.name: setting.metadata.get("range") for setting in fields(options)}
    return {name: allowed for name, allowed in known.items() if allowed is not None}


RANGES: Mapping[str, Range] = _ranges(Config)
STAGE_RANGES: Mapping[str, Range] = _ranges(StageOptions)
STAGE_OPTIONS = tuple(option.name for option in fields(StageOptions))

DEFAULT = Config()
