"""The HTTP API in memory, with a network that fails as told: a second implementation, no mock."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx

from holdfast._base.ids import digest
from holdfast._base.intervals import Intervals
from holdfast.client.client import Client
from holdfast.client.patience import Patience

TOKEN = "a-token"
Fault = Callable[["FakeServer", httpx.Request], httpx.Response | None]
QUICK = Patience(silent_s=5.0, busy_s=5.0, first_s=0.001, most_s=0.002)


@dataclass
class FakeRun:
    run: str
    key: str
    tables: dict[str, list[str]]
    chunks: dict[tuple[str, str, int], bytes] = field(default_factory=dict)
    ends: dict[tuple[str, str], int] = field(default_factory=dict)
    state: str = "OPEN"
    error: str | None = None
    series: dict[str, tuple[list[str], list[bytes]]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        tables = [self._table(t, s) for t, senders in self.tables.items() for s in senders]
        facts = {"pipeline": "shop", "kind": "spark", "created_ms": 1, "updated_ms": 2}
        own = {"run": self.run, "key": self.key, "state": self.state, "error": self.error}
        return {**own, **facts, "tables": tables, "barriers": []}

    def _table(self, table: str, sender: str) -> dict[str, Any]:
        here = Intervals.of(o for t, s, o in self.chunks if (t, s) == (table, sender))
        announced = self.ends.get((table, sender))
        missing = Intervals.first(announced or 0).minus(here)
        return {
            "table": table,
            "sender": sender,
            "announced": announced,
            "received": len(here),
            "applied": 0,
            "received_ordinals": str(here).replace(" ", "").replace("none", ""),
            "missing": str(missing),
        }


class FakeServer(httpx.BaseTransport):
    """Knows runs, chunks and results; `faults` are tried first, one per request."""

    def __init__(self, tables: Iterable[str] = ("sales", "shops")) -> None:
        self.tables = {table: [""] for table in tables}
        self.columns: dict[str, list[str]] = {}
        self.formats: dict[str, str] = {}
        self.result_formats: dict[str, str] = {}
        self.whole: set[str] | None = set()
        """None: as a server of before, which does not tell."""
        self.runs: dict[str, FakeRun] = {}
        self.faults: deque[Fault] = deque()
        self.requests: list[tuple[str, str]] = []
        self.stored: list[tuple[str, int]] = []
        self.events: deque[list[str]] = deque()

    def client(self, patience: Patience = QUICK) -> Client:
        return Client("http://127.0.0.1:1", token=TOKEN, transport=self, patience=patience)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append((request.method, request.url.path))
        fault = self.faults.popleft() if self.faults else None
        if fault is not None and (answer := fault(self, request)) is not None:
            return answer
        return self.answer(request)

    def answer(self, request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == f"Bearer {TOKEN}"
        match [request.method, *request.url.path.strip("/").split("/")[1:]]:
            case ["GET", "tables"]:
                return reply(200, {"pipeline": "shop", "tables": self._inputs()})
            case ["POST", "runs"]:
                return self._create(request)
            case ["GET", "runs", run]:
                return reply(200, self.runs[run].document())
            case ["PUT", "runs", run, "tables", table, "chunks", ordinal]:
                return self._chunk(request, self.runs[run], table, int(ordinal))
            case ["PUT", "runs", run, "tables", table, "end"]:
                ends, key = self.runs[run].ends, (table, sender_of(request))
                count = json.loads(request.read())["count"]
                known = ends.get(key)
                ends.setdefault(key, count)
                right = 201 if known is None else 200
                return reply(right if ends[key] == count else 409, {"count": count})
            case ["GET", "runs", run, "events"]:
                return stream(self.events.popleft())
            case ["GET", "runs", run, "results"]:
                return reply(200, self._results(self.runs[run]))
            case ["GET", "runs", run, "results", series, "files", ordinal]:
                return piece(request, self.runs[run].series[series][1][int(ordinal) - 1])
        return refusal(404, "NO_SUCH", message="not there")

    def _inputs(self) -> list[dict[str, Any]]:
        return [
            {
                "table": table,
                "columns": self.columns.get(table, []),
                "format": self.formats.get(table, "csv"),
                "optional": False,
                **({} if self.whole is None else {"whole": table in self.whole}),
            }
            for table in self.tables
        ]

    def _create(self, request: httpx.Request) -> httpx.Response:
        key = request.headers["idempotency-key"]
        run = digest("run", key)
        status = 200 if run in self.runs else 201
        self.runs.setdefault(run, FakeRun(run, key, self.tables))
        return reply(status, self.runs[run].document())

    def _chunk(
        self, request: httpx.Request, run: FakeRun, table: str, ordinal: int
    ) -> httpx.Response:
        named, sender = request.headers["holdfast-checksum"], sender_of(request)
        stored = run.chunks.get((table, sender, ordinal))
        if stored is not None:
            known = hashlib.sha256(stored).hexdigest()
            if known == named:
                return reply(200, {"ordinal": ordinal})
            facts = {"table": table, "sender": sender, "ordinal": ordinal, "what": "other bytes"}
            return refusal(409, "CHUNK_CONFLICT", **facts, stored=known, sent=named)
        data = request.read()
        assert int(request.headers["content-length"]) == len(data)
        if (arrived := hashlib.sha256(data).hexdigest()) != named:
            facts = {"table": table, "ordinal": ordinal, "arrived": arrived, "named": named}
            return refusal(400, "CHECKSUM_WRONG", **facts)
        run.chunks[table, sender, ordinal] = data
        self.stored.append((table, ordinal))
        return reply(201, {"ordinal": ordinal})

    def _results(self, run: FakeRun) -> dict[str, Any]:
        series = [
            {
                "series": name,
                "columns": columns,
                "pieces": [],
                "files": pieces_of(data, self.result_formats.get(name, "csv")),
            }
            for name, (columns, data) in run.series.items()
        ]
        return {"state": run.state, "final": run.state == "DONE", "series": series}


def pieces_of(data: list[bytes], fmt: str) -> list[dict[str, Any]]:
    return [
        {
            "ordinal": n,
            "size": len(one),
            "checksum": hashlib.sha256(one).hexdigest(),
            "rows": 1,
            "format": fmt,
        }
        for n, one in enumerate(data, 1)
    ]


def sender_of(request: httpx.Request) -> str:
    return str(request.url.params.get("sender", ""))


def reply(status: int, document: object, **headers: str) -> httpx.Response:
    return httpx.Response(status, json=document, headers=headers)


def refusal(status: int, code: str, **facts: object) -> httpx.Response:
    return httpx.Response(status, json={"code": code, "message": code, **facts})


def stream(lines: list[str]) -> httpx.Response:
    return httpx.Response(200, content=["".join(f"{line}\n" for line in lines).encode()])


def piece(request: httpx.Request, data: bytes) -> httpx.Response:
    if found := request.headers.get("range"):
        start = int(found.removeprefix("bytes=").rstrip("-"))
        return httpx.Response(206, content=data[start:])
    return httpx.Response(200, content=data)


def lost_request(server: FakeServer, request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


def lost_answer(server: FakeServer, request: httpx.Request) -> httpx.Response:
    server.answer(request)
    raise httpx.ReadError("reset", request=request)


def status(code: int, **headers: str) -> Fault:
    def fault(server: FakeServer, request: httpx.Request) -> httpx.Response:
        return httpx.Response(code, json={"code": "X", "message": "later"}, headers=headers)

    return fault


def fine(server: FakeServer, request: httpx.Request) -> None:
    """Let one request through."""
