r"""`holdfast.Client`: the HTTP API as Python calls.

    with Client("http://127.0.0.1:8080", token_file="token") as client:
        run = client.create_run("2025-07").run
        client.put_chunk(run, "sales", 1, b"shop,amount\na,7\n")
        client.put_end(run, "sales", 1)
        client.wait(run)
        client.download(run, "answers")

Every call tries again while the server is away or busy, and every call may be made again: nothing
counts twice.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote

from holdfast._base.clock import Clock, SystemClock
from holdfast._base.files import os_errors
from holdfast.client import answers
from holdfast.client.answers import PipelineInfo, Results, RunInfo
from holdfast.client.door import Body, Door, Transport, json_body
from holdfast.client.download import fetch_series, wanted_of
from holdfast.client.follow import follow
from holdfast.client.patience import Patience
from holdfast.errors import ChecksumWrong, HoldfastError, RunOver, RunUnfinished, UsageInvalid

Format = Literal["csv", "json", "parquet"]
CONTENT_TYPES: Mapping[str, str] = {
    "csv": "text/csv",
    "json": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}


class Client:
    """One server, as one of its clients sees it. Usable from several threads.

    Args:
        url: the server, like http://127.0.0.1:8080.
        token: the client's token; or
        token_file: the file that holds it.
        ca_file: certificates to trust instead of the system's.
        plain_http: send the token over http to another machine, in clear.
        patience: how long a request is tried again.
        transport: another way to send requests, of httpx: a proxy, a test.
        on_wait: told once, in words, when the server does not answer and is tried again.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        token_file: str | Path | None = None,
        ca_file: str | Path | None = None,
        plain_http: bool = False,
        patience: Patience | None = None,
        clock: Clock | None = None,
        transport: Transport | None = None,
        on_wait: Callable[[str], None] = lambda _: None,
    ) -> None:
        if (token is None) == (token_file is None):
            raise UsageInvalid(what="no token, or two", remedy="Give token or token_file.")
        self._door = Door(
            url,
            token if token is not None else _read_token(Path(str(token_file))),
            clock=clock or SystemClock(),
            patience=patience or Patience(),
            ca_file=Path(ca_file) if ca_file is not None else None,
            plain_http=plain_http,
            transport=transport,
            on_wait=on_wait,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._door.close()

    def stop(self) -> None:
        """Make waiting calls end with RunStopped. May be called by a signal handler."""
        self._door.stop()

    @property
    def is_stopped(self) -> bool:
        """Tell whether somebody called `stop`."""
        return self._door.is_stopped

    def pipeline(self) -> PipelineInfo:
        """Return what the server runs, and which tables it takes."""
        return answers.pipeline_info(self._door.ask("GET", "v1/tables").document)

    def create_run(
        self,
        key: str,
        *,
        senders: Mapping[str, Sequence[str]] | None = None,
        kind: Literal["spark", "external"] | None = None,
    ) -> RunInfo:
        """Create the run of a key, or find it: the same key always means the same run.

        `senders`: those who fill a table, by table; a table not named has one without a name.
        """
        wanted: dict[str, object] = {}
        if senders is not None:
            wanted["senders"] = {table: list(names) for table, names in senders.items()}
        if kind is not None:
            wanted["kind"] = kind
        headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
        answer = self._door.ask("POST", "v1/runs", headers=headers, body=json_body(wanted))
        return answers.run_info(answer.document)

    def runs(self) -> list[RunInfo]:
        """Return all of this client's runs."""
        found: list[RunInfo] = []
        after = ""
        while True:
            query = {"after": after} if after else None
            document = self._door.ask("GET", "v1/runs", query=query).document
            found += [answers.run_info(one) for one in answers.rows(document, "runs")]
            after = document.get("next") or ""
            if not after:
                return found

    def state(self, run: str) -> RunInfo:
        """Return how far a run is."""
        return answers.run_info(self._door.ask("GET", _run_path(run)).document)

    def put_chunk(
        self,
        run: str,
        table: str,
        ordinal: int,
        data: bytes,
        *,
        sender: str = "",
        format: Format = "csv",  # noqa: A002 - the word of the whole house
    ) -> bool:
        """Hand in one chunk, a whole document. False: it was there already, the same.

        Raises:
            ChunkConflict: other bytes came under this ordinal before.
            RunGone: the run takes nothing more.
        """
        checksum = hashlib.sha256(data).hexdigest()
        return self.send_chunk(
            *(run, table, ordinal, lambda: [data]),
            size=len(data),
            checksum=checksum,
            sender=sender,
            format=format,
        )

    def send_chunk(
        self,
        run: str,
        table: str,
        ordinal: int,
        body: Body,
        *,
        size: int,
        checksum: str,
        sender: str = "",
        format: str = "csv",  # noqa: A002 - the word of the whole house
    ) -> bool:
        """Hand in one chunk that `body` yields piece by piece, anew for each attempt."""
        answer = self._door.ask(
            "PUT",
            f"{_run_path(run)}/tables/{quote(table, safe='')}/chunks/{ordinal}",
            query=_query(sender),
            headers={
                "Content-Type": CONTENT_TYPES[format],
                "Content-Length": str(size),
                "Holdfast-Checksum": checksum,
            },
            body=body,
        )
        return answer.status == 201

    def put_end(self, run: str, table: str, count: int, *, sender: str = "") -> bool:
        """Say that a table has this many chunks from this sender. False: it was said before."""
        path = f"{_run_path(run)}/tables/{quote(table, safe='')}/end"
        headers = {"Content-Type": "application/json"}
        body = json_body({"count": count})
        answer = self._door.ask("PUT", path, query=_query(sender), headers=headers, body=body)
        return answer.status == 201

    def has_chunk(
        self,
        run: str,
        table: str,
        ordinal: int,
        checksum: str,
        *,
        sender: str = "",
        format: str = "csv",  # noqa: A002 - the word of the whole house
    ) -> bool:
        """Ask whether the server has this very chunk, without sending it.

        The body of a chunk that is there is not looked at, so none is sent; one that is not there
        is refused, because nothing has not its checksum.

        Raises:
            ChunkConflict: it has other bytes under this ordinal.
        """
        try:
            return not self.send_chunk(
                *(run, table, ordinal, list),
                size=0,
                checksum=checksum,
                sender=sender,
                format=format,
            )
        except ChecksumWrong:
            return False

    def events(self, run: str) -> Iterator[RunInfo]:
        """Yield a run's description now and whenever it changes, up to its final state."""
        return follow(self._door, f"{_run_path(run)}/events")

    def wait(self, run: str) -> RunInfo:
        """Wait until a run is DONE. However long that takes: a run waits for all its chunks.

        Raises:
            RunOver: it ended without results.
        """
        (last,) = deque(self.events(run), maxlen=1)
        return done_or_over(last)

    def results(self, run: str) -> Results:
        """Return what a run has to give: its series and their pieces."""
        return answers.results(self._door.ask("GET", f"{_run_path(run)}/results").document)

    def download(self, run: str, out: str | Path) -> dict[str, Path]:
        """Write each series of a DONE run to `out`/SERIES.csv; returns the paths by file name.

        A series of Parquet becomes the directory `out`/SERIES.parquet of part files.

        Checksums are verified; what an earlier call brought is not fetched again. A reader of
        `out` sees whole files only.

        Raises:
            RunUnfinished, RunOver: there are no final results.
            Damaged: bytes came that are not those the server named, again and again.
        """
        found = self.results(run)
        if not found.final:
            raise _not_final(self.state(run))
        path = f"{_run_path(run)}/results"
        wanted = [file for one in found.series for file in wanted_of(one, path)]
        return {file.name: fetch_series(self._door, run, file, Path(out)) for file in wanted}

    def cancel(self, run: str) -> RunInfo:
        """Cancel a run. One that was cancelled before stays so.

        Raises:
            HoldfastError: it is over already.
        """
        try:
            self._door.ask("POST", f"{_run_path(run)}/cancel")
        except HoldfastError:
            # The answer to a first attempt may have been lost on the way.
            if self.state(run).state != "CANCELLED":
                raise
        return self.state(run)


def done_or_over(info: RunInfo) -> RunInfo:
    """Return a run that is DONE.

    Raises:
        RunOver, RunUnfinished: it is not.
    """
    if info.state != "DONE":
        raise _not_final(info)
    return info


def _not_final(info: RunInfo) -> HoldfastError:
    if info.is_final and info.state != "DONE":
        reason = " ".join((info.error or "no reason is kept").split()).rstrip(".")
        return RunOver(run=info.run, state=info.state, reason=reason)
    return RunUnfinished(run=info.run, state=info.state)


def _run_path(run: str) -> str:
    if not run:
        raise UsageInvalid(what="the id of the run is empty", remedy="Give what submit printed.")
    return f"v1/runs/{quote(run, safe='')}"


def _query(sender: str) -> dict[str, str]:
    return {"sender": sender} if sender else {}


def _read_token(path: Path) -> str:
    with os_errors(path):
        if not path.is_file():
            what = f"there is no token file {path}"
            raise UsageInvalid(what=what, remedy="Give the one that `holdfast client add` wrote.")
        token = path.read_text(encoding="utf-8", errors="replace")
    if not token.strip():
        what = f"the token file {path} is empty"
        raise UsageInvalid(what=what, remedy="Give the one that `holdfast client add` wrote.")
    return token
