"""A directory handed in as a run: over and over again, if need be, without sending anything twice.

What was sent is known by the server alone: nothing is kept here. A process that is killed leaves
a run with some chunks; the next one makes the same documents of the same files, asks which
ordinals are there, compares their checksums, and sends the rest.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from holdfast._base.crashpoint import crashpoint
from holdfast.client.answers import PipelineInfo, RunInfo, TableInfo
from holdfast.client.client import Client
from holdfast.client.documents import Document, cut_files, find_files, key_of, number
from holdfast.config import MIB
from holdfast.errors import (
    BodyTooLarge,
    CallerError,
    ChecksumWrong,
    ChunkConflict,
    DocumentRefused,
    HoldfastError,
    RunOver,
    RunStopped,
    SubmissionChanged,
    UsageInvalid,
)
from holdfast.intake.tables import TableSpec

CHUNK_BYTES = 16 * MIB
"""What one request carries. Smaller: more requests, rows in the store and Spark tasks. Larger: a
broken connection repeats more, and progress is seen later."""
CONNECTIONS = 4
"""Uploads at the same time: enough to keep the server's disk busy while some wait for an fsync."""
_CHUNK = re.compile(r"chunk (\d+) of table (\w+)")
"""What a server says of a chunk: it does not know the files that it was cut from."""
_TRIES_MAX = 3
"""How often a chunk is sent whose bytes arrive wrong: once more may help, always is in vain."""


@dataclass(frozen=True, slots=True)
class Sent:
    """How far a submission is."""

    chunks: int
    """Acknowledged, those of former processes among them."""
    chunks_all: int
    size: int
    """Bytes that are acknowledged or on their way."""
    size_all: int
    size_before: int
    """Bytes that former processes sent."""


Watch = Callable[[Sent], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to hand in, and how."""

    directory: Path
    key: str | None = None
    """None: one that is made of the files' names and bytes."""
    tables: Sequence[TableSpec] | None = None
    """The pipeline's, where it is known here: files are then found by them."""
    pipeline: str | None = None
    """Its name: a server that runs another one is refused."""
    empty: Sequence[str] = ()
    ignore_unknown: bool = False
    chunk_bytes: int = CHUNK_BYTES
    connections: int = CONNECTIONS


@dataclass(frozen=True, slots=True)
class Submitted:
    """What came of a submission: all chunks and ENDs are acknowledged."""

    info: RunInfo
    documents: Sequence[Document]
    """All of them, also those of former processes."""
    chunks_sent: int
    size_sent: int
    empty_files: Sequence[Path]
    """Those without a row, which gave no document."""

    @property
    def chunks(self) -> int:
        """How many documents there are."""
        return len(self.documents)

    @property
    def size(self) -> int:
        """Their bytes."""
        return sum(one.size for one in self.documents)

    def origin_of(self, reason: str) -> str:
        """Return from which file the chunk came that a server's reason names; empty, if none."""
        named = _CHUNK.search(reason)
        for one in self.documents if named else ():
            if named and (str(one.ordinal), one.table) == named.groups():
                return f"{named[0]} is {one.path} from byte {one.start} on"
        return ""


def submit(client: Client, plan: Plan, watch: Watch) -> Submitted:
    """Hand in a directory, or go on with it.

    1. What can be known here is looked at before the server is asked, which may be away for long.
       It says what it takes; every file is read once, checked by that and cut. Crash, or a refusal:
       nothing happened.
    2. The run is created, or found by its key.
    3. What the server has is compared by checksum, what it lacks is sent, several chunks at a time;
       each is durable there when it is acknowledged. Crash: the next process asks again.
    4. END for every sender, when all of its table is there. Crash: said again, the same.

    Steps 3 and 4 are done for the whole tables first. A server takes so much of the others as it
    can work off, and may work off none before those ENDs.

    Raises:
        SubmissionChanged: a file is not what was sent under this key before.
        RunOver: the run ended without results.
    """
    found = find_files(
        *(plan.directory, plan.tables), ignore_unknown=plan.ignore_unknown, empty=plan.empty
    )
    served = client.pipeline()
    _refuse_other(served, plan.pipeline)
    files = cut_files(plan.directory, found, chunk_bytes=plan.chunk_bytes, inputs=served.tables)
    documents = number(
        *(plan.directory, files, served.tables),
        ignore_unknown=plan.ignore_unknown,
        empty=plan.empty,
    )
    info = client.create_run(plan.key or key_of(files))
    crashpoint("client.create.after")
    left = left_of(info.tables, documents)
    if info.is_final and (left or info.state != "DONE"):
        reason = " ".join((info.error or "it takes nothing more").split()).rstrip(".")
        raise RunOver(run=info.run, state=info.state, reason=reason)
    sending = _Sending(client, info, plan, watch)
    sending.compare(documents, left)
    for senders in () if info.is_final else _in_order(info.tables, served):
        names = {one.table for one in senders}
        sending.send([one for one in left if one.table in names])
        _say_end(client, info, documents, senders)
    return Submitted(
        info=info,
        documents=documents,
        chunks_sent=len(left),
        size_sent=sum(one.size for one in left),
        empty_files=[one.path for one in files if not one.pieces],
    )


def _refuse_other(served: PipelineInfo, pipeline: str | None) -> None:
    if pipeline is not None and served.pipeline != pipeline:
        what = f"the server runs pipeline {served.pipeline}, not {pipeline}"
        raise UsageInvalid(what=what, remedy="Ask another server, or leave --pipeline out.")


def first_senders(tables: Sequence[TableInfo]) -> Mapping[str, TableInfo]:
    """Return, by table, the sender that its files come from: the first one. Pure."""
    first: dict[str, TableInfo] = {}
    for table in tables:
        first.setdefault(table.table, table)
    return first


def left_of(tables: Sequence[TableInfo], documents: Sequence[Document]) -> list[Document]:
    """Return the documents whose ordinals the server lacks. Pure.

    Raises:
        SubmissionChanged: it has more ordinals than there are documents, or lacks a table.
    """
    first = first_senders(tables)
    last: dict[str, Document] = {one.table: one for one in documents}
    for name, table in first.items():
        count = last[name].ordinal if name in last else 0
        if more := [ordinal for ordinal in table.received_ordinals if ordinal > count]:
            path = str(last[name].path) if name in last else f"table {name}"
            what = f"has less than this run, which has a chunk {more[0]} of {name}"
            raise SubmissionChanged(path=path, what=what)
    for name, document in last.items():
        if name not in first:
            what = f"belongs to table {name}, which this run was created without"
            raise SubmissionChanged(path=str(document.path), what=what)
    return [one for one in documents if one.ordinal not in first[one.table].received_ordinals]


def _in_order(
    tables: Sequence[TableInfo], served: PipelineInfo
) -> tuple[list[TableInfo], list[TableInfo]]:
    """Return the senders of whole tables, and the others. Pure."""
    whole = {one.table for one in served.tables if one.whole}
    return (
        [one for one in tables if one.table in whole],
        [one for one in tables if one.table not in whole],
    )


def _say_end(
    client: Client, info: RunInfo, documents: Sequence[Document], senders: Sequence[TableInfo]
) -> None:
    first = first_senders(info.tables)
    for table in senders:
        own = [one for one in documents if one.table == table.table]
        count = len(own) if table == first[table.table] else 0
        client.put_end(info.run, table.table, count, sender=table.sender)
        crashpoint("client.end.after")


class _Sending:
    """Sends documents, several at a time, and counts."""

    def __init__(self, client: Client, info: RunInfo, plan: Plan, watch: Watch) -> None:
        self._client, self._run, self._watch = client, info.run, watch
        self._senders = {name: one.sender for name, one in first_senders(info.tables).items()}
        self._plan = plan
        self._lock = threading.Lock()
        self._under_way: dict[tuple[str, int], int] = {}
        self._chunks = self._size = self._size_before = 0
        self._chunks_all = self._size_all = 0

    def compare(self, documents: Sequence[Document], left: Sequence[Document]) -> None:
        """Compare what is not left with what the server has, and count from there."""
        there = sorted(set(documents) - set(left), key=lambda one: (one.table, one.ordinal))
        self._chunks_all, self._size_all = len(documents), sum(one.size for one in documents)
        self._chunks, self._size = len(there), sum(one.size for one in there)
        self._size_before = self._size
        self._tell()
        self._each(self._compare_one, there)

    def send(self, left: Sequence[Document]) -> None:
        """Send what is left. Returns when all of it is acknowledged."""
        self._each(self._send_one, left)

    def _each(self, do: Callable[[Document], None], documents: Sequence[Document]) -> None:
        """Do it for several at a time. The first error ends it, when what is under way is over."""
        with ThreadPoolExecutor(self._plan.connections, thread_name_prefix="upload") as pool:
            futures = [pool.submit(do, one) for one in documents]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:  # whatever it was, it is raised again: nothing more is begun
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _compare_one(self, one: Document) -> None:
        """Refuse a file whose chunk went to the server with other bytes before."""
        self._go_on()
        try:
            self._client.has_chunk(
                *(self._run, one.table, one.ordinal, one.checksum),
                sender=self._senders[one.table],
                format=one.format,
            )
        except ChunkConflict as error:
            raise _differs(one) from error

    def _send_one(self, one: Document) -> None:
        for tries in range(1, _TRIES_MAX + 1):
            self._go_on()
            try:
                self._client.send_chunk(
                    *(self._run, one.table, one.ordinal, lambda: self._counted(one)),
                    size=one.size,
                    checksum=one.checksum,
                    sender=self._senders[one.table],
                    format=one.format,
                )
                break
            except CallerError as error:
                told = _explained(one, error, self._run, named=self._plan.key is not None)
                if not isinstance(told, ChecksumWrong) or tries == _TRIES_MAX:
                    raise told from error
        crashpoint("client.chunk.after")
        with self._lock:
            self._under_way.pop((one.table, one.ordinal), None)
            self._chunks += 1
            self._size += one.size
        self._tell()

    def _go_on(self) -> None:
        if self._client.is_stopped:
            raise RunStopped(what="stopped", resume="The same command goes on.")

    def _counted(self, one: Document) -> Iterator[bytes]:
        sent = 0
        for piece in one.pieces():
            yield piece
            sent += len(piece)
            with self._lock:
                self._under_way[one.table, one.ordinal] = sent
            self._tell()

    def _tell(self) -> None:
        with self._lock:
            self._watch(
                Sent(
                    chunks=self._chunks,
                    chunks_all=self._chunks_all,
                    size=self._size + sum(self._under_way.values()),
                    size_all=self._size_all,
                    size_before=self._size_before,
                )
            )


def _explained(one: Document, error: CallerError, run: str, *, named: bool) -> HoldfastError:
    """Return what a refusal means for the file a document is of.

    `named`: the run has a key that stays the same when the file is another.
    """
    if not one.is_unchanged():
        return one.changed()
    match error:
        case ChunkConflict():
            return _differs(one)
        case DocumentRefused():
            end = f"holdfast cancel {run}, asked as this was"
            after = (
                f"Keep the file's name, then run the same command: run {run} goes on. If that makes"
                f" another number of chunks, end the run by {end}, and give another --key."
                if named
                else f"Run {run} waits in vain: end it by {end}."
            )
            return UsageInvalid(
                what=f"{one.path}: {error.what}", remedy=f"{error.remedy.rstrip('.')}. {after}"
            )
        case BodyTooLarge():
            what = f"{one.path} would be sent in chunks of {one.size} bytes, {error.limit} may be"
            return UsageInvalid(what=what, remedy="Give a smaller --chunk-bytes.")
        case _:
            return error


def _differs(one: Document) -> SubmissionChanged:
    what = f"differs from what this run has as chunk {one.ordinal} of {one.table}"
    return SubmissionChanged(path=str(one.path), what=what)
