"""What the engine asks of whoever does the work on data, and what comes back.

`holdfast.spark` fulfils it with Spark; `holdfast.testing.plain` without, for the crash loop.
An executor has no durable state and decides nothing: it reads what a work names, writes below
the directory the work names, and says how many rows it saw. It may be killed at any moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.errors import HoldfastError


@dataclass(frozen=True, slots=True)
class Source:
    """Bytes to be read: a whole file, or the range [start, stop) of one.

    `checksum` is the SHA-256 of exactly those bytes. `header` is the CSV header line of the file;
    a source that begins at byte 0 also has it in its bytes.
    """

    path: str
    start: int
    stop: int
    checksum: str
    format: str = "csv"
    header: str = ""


@dataclass(frozen=True, slots=True)
class BatchWork:
    """Make every output of a segment from these chunks, each below `directory`/output name."""

    directory: str
    segment: int
    chunks: Mapping[str, tuple[Source, ...]]
    """Table -> its chunks in this batch. Tables without one are absent."""
    pins: Mapping[str, tuple[Source, ...]]
    """Whole table -> all of its chunks."""
    piece_rows_max: int
    """Most rows in one file of a streamed result."""


@dataclass(frozen=True, slots=True)
class SeriesWork:
    """Compute one result after the barrier into files below `directory`/name, in the format that
    the series declares; the rows are in the order of the numbers in the files' names. Of Parquet
    there is always one: a result without rows has columns too.
    """

    directory: str
    name: str
    datasets: Mapping[str, tuple[str, ...]]
    """Combine, kept stage, durable stage or streamed series -> its Parquet files."""
    pins: Mapping[str, tuple[Source, ...]]
    piece_rows_max: int
    """Most rows in one file."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an attempt saw. The files, bad rows among them, are found below the directory."""

    rows: Mapping[str, int] = field(default_factory=dict)
    """Table -> how many rows of its chunks were read."""
    columns: tuple[str, ...] = ()
    """For a series: the names of its columns; files of CSV have no header line."""

    @property
    def rows_read(self) -> int:
        """The rows read of all tables."""
        return sum(self.rows.values())


class Executor(Protocol):
    """Does batches, and several series side by side. That of a service is asked by several threads
    at once.
    """

    replaceable: bool
    """True: after SparkLost the next call gets a new executor process; False: the caller's own
    session is gone, and only the caller can bring another."""

    def check(self) -> None:
        """Build every result on no rows. Raises StageInvalid for what can never work."""

    def run_batch(self, work: BatchWork) -> Outcome:
        """Do a batch. Raises a HoldfastError; anything half written below the directory stays."""

    def run_series(self, works: Sequence[SeriesWork]) -> list[Outcome | HoldfastError]:
        """Compute some series, in any order or at once. One that fails does not fail the others:
        what became of each stands at its place.
        """

    def stop(self) -> None:
        """Begin no other work; end now unless one is under way. May be called by a signal handler:
        it waits for nothing. Whoever asks for a work gets RunStopped.
        """

    def abort(self) -> None:
        """End what is under way too: whoever waits for it gets RunStopped. Waits for nothing."""

    def close(self) -> None:
        """Let go of what was started for this executor."""


BAD_ROWS_PREFIX = "_bad_rows."
"""An output of this name plus a table holds the rows that were kept aside from that table."""
