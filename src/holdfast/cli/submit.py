"""`holdfast submit`: a directory handed in to a server, and on request its results."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast._base.clock import SystemClock
from holdfast.cli.bar import Bar, LineBar, LiveBar
from holdfast.cli.remote import Server, connected, on_terminal
from holdfast.cli.results import fetched
from holdfast.cli.sizes import parse_size
from holdfast.cli.watch import followed
from holdfast.cli.words import counted, size_of
from holdfast.client.client import Client
from holdfast.client.submit import CHUNK_BYTES, CONNECTIONS, Plan, Submitted, submit
from holdfast.config import RANGES, remedy_of
from holdfast.errors import RunOver, UsageInvalid


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for on the command line."""

    directory: Path
    server: Server
    key: str | None = None
    pipeline: str | None = None
    empty: Sequence[str] = ()
    ignore_unknown: bool = False
    chunk_bytes: str | None = None
    connections: int = CONNECTIONS
    wait: bool = False
    out: Path | None = None
    as_json: bool = False


def submit_command(request: Request) -> None:
    """Hand in a directory, or go on with it; wait and fetch if that was asked for."""
    plan = _plan(request)
    clock = SystemClock()
    with connected(request.server) as client:
        bar: Bar = LiveBar(clock) if on_terminal() else LineBar(clock)
        try:
            done = submit(client, plan, bar)
        finally:
            bar.close()
        state, files = done.info.state, dict[str, Path]()
        if request.wait or request.out is not None:
            state, files = _fetch(client, done, request.out)
    if request.as_json:
        facts = _facts(done, state)
        if request.out is not None:
            facts["results"] = {name: str(path) for name, path in files.items()}
        sys.stdout.write(json.dumps(facts) + "\n")
        return
    for line in _lines(request, done, files):
        sys.stdout.write(line + "\n")


def _plan(request: Request) -> Plan:
    tables, name = None, None
    if request.pipeline is not None:
        from holdfast.spark.load import load_pipeline

        spec = load_pipeline(request.pipeline).spec()
        tables, name = spec.tables, spec.name
    return Plan(
        directory=request.directory,
        key=request.key,
        tables=tables,
        pipeline=name,
        empty=request.empty,
        ignore_unknown=request.ignore_unknown,
        chunk_bytes=_chunk_bytes(request.chunk_bytes),
        connections=request.connections,
    )


def _chunk_bytes(text: str | None) -> int:
    if text is None:
        return CHUNK_BYTES
    size, allowed = parse_size(text), RANGES["chunk_bytes"]
    if size is None or not allowed.least <= size <= allowed.most:
        raise UsageInvalid(what=f"--chunk-bytes {text}", remedy=remedy_of(allowed))
    return size


def _fetch(client: Client, done: Submitted, out: Path | None) -> tuple[str, dict[str, Path]]:
    """Wait for the end, and download what was asked for.

    Raises:
        RunOver: it ended without results; a chunk that is the reason is told by its file.
    """
    run = done.info.run
    try:
        state = followed(client, run).state
    except RunOver as error:
        if not (origin := done.origin_of(error.reason)):
            raise
        raise RunOver(run=run, state=error.state, reason=f"{error.reason}. {origin}") from error
    return state, client.download(run, out) if out is not None else {}


def _facts(done: Submitted, state: str) -> dict[str, object]:
    return {
        "run": done.info.run,
        "key": done.info.key,
        "state": state,
        "chunks": done.chunks,
        "chunks_sent": done.chunks_sent,
        "bytes": done.size,
        "bytes_sent": done.size_sent,
        "empty_files": [str(path) for path in done.empty_files],
    }


def _lines(request: Request, done: Submitted, files: Mapping[str, Path]) -> list[str]:
    before = done.chunks - done.chunks_sent
    handed = f"{counted(done.chunks, 'chunk')}, {size_of(done.size)}, handed in"
    if before:
        handed += f"; {before:,} of them before"
    lines = [f"run {done.info.run}: {handed}"]
    lines += [f"note: {path} has no rows" for path in done.empty_files]
    server = request.server.words()
    if request.out is not None:
        return [*lines, fetched(files, request.out)]
    if request.wait:
        return [*lines, f"next: holdfast results {done.info.run} {server} --out answers"]
    return [*lines, f"next: holdfast watch {done.info.run} {server}"]
