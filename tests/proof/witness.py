"""The witness: a provider in a process of its own that keeps its own books.

python witness.py LOG: serves HTTP on a free port, prints the port, ends when its standard input
does. It imports nothing but the standard library, so that it cannot share a mistake with what it
watches. Its log has one JSON line per event, and the line of a call's start is fsynced before
anything is answered: what was killed on the caller's side is still counted here.

POST /case {"case", ...Rules}: how to answer the calls of a case.
POST /call {"case", "key", "idempotency_key", "pid"}: a paid call.
POST /find {"case", "idempotency_key"}: the answer given for a key before, free of charge.
GET /state?CASE: calls begun, ended, answered and in flight, and who made the last one.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Rules:
    """How the calls of a case are answered.

    `acts`: for a key, what to do at its first, second, ... call: "ok", "400", "429", "500",
    "swallow" (charge, then cut the connection), "hang" (charge, then never answer), "die" and
    "die-executor" (the caller is told to kill itself, or the JVM above it). `hold_after`: so many
    calls are answered, the later ones only when it is taken back. `bytes`: the least length of an
    answer.
    """

    delay_s: float = 0.0
    acts: dict[str, list[str]] = field(default_factory=dict)
    hold_after: int | None = None
    bytes: int = 0


@dataclass
class Case:
    """The books of one case. They are kept for answering only: the log is what counts."""

    rules: Rules = field(default_factory=Rules)
    calls: Counter[str] = field(default_factory=Counter)
    bill: dict[str, str] = field(default_factory=dict)
    begun: int = 0
    ended: int = 0
    answered: int = 0
    pids: list[int] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Log:
    """Appends lines; those who wait share an fsync."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lines: list[str] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._flushing = False

    def note(self, **event: Any) -> None:
        self._lines.append(json.dumps({"at": time.monotonic(), **event}) + "\n")

    async def durable(self) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        if not self._flushing:
            self._flushing = True
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                lines, self._lines = self._lines, []
                await asyncio.to_thread(self._write, "".join(lines).encode())
                for one in waiting:
                    one.set_result(None)
            self._flushing = False
        await done

    def close(self) -> None:
        self._write("".join(self._lines).encode())

    def _write(self, data: bytes) -> None:
        os.write(self._file, data)
        os.fdatasync(self._file)


class Witness:
    """Answers requests."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._cases: dict[str, Case] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _read(reader)) is not None:
                reply = await self._answer(*request)
                if reply is None:  # the reply is swallowed
                    return
                status, body = reply
                data = json.dumps(body).encode()
                head = f"HTTP/1.1 {status} x\r\nContent-Length: {len(data)}\r\nRetry-After: 0\r\n"
                writer.write(head.encode() + b"\r\n" + data)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the caller is gone
        finally:
            writer.close()

    async def _answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
        place, _, name = path.partition("?")
        case = self._cases.setdefault(str(body.pop("case", name)), Case())
        if place == "/call":
            return await self._call(case, **body)
        if place == "/find":
            return 200, {"answer": case.bill.get(body["idempotency_key"])}
        if place == "/case":
            case.rules = Rules(**body)
            case.changed.set()
            case.changed = asyncio.Event()
        return 200, {
            "begun": case.begun,
            "ended": case.ended,
            "answered": case.answered,
            "in_flight": case.begun - case.ended,
            "pids": sorted(set(case.pids)),
        }

    async def _call(
        self, case: Case, key: str, idempotency_key: str, pid: int
    ) -> tuple[int, dict[str, Any]] | None:
        case.calls[key] += 1
        case.begun += 1
        case.pids.append(pid)
        number, nth = case.begun, case.calls[key]
        name = next(n for n, c in self._cases.items() if c is case)
        self._log.note(event="start", case=name, call=number, key=key, bill=idempotency_key)
        try:
            await self._log.durable()
            await self._pass_gate(case, number)
            await asyncio.sleep(case.rules.delay_s)
            return await self._act(case, key, nth, idempotency_key)
        finally:
            case.ended += 1
            self._log.note(event="end", case=name, call=number)

    async def _pass_gate(self, case: Case, number: int) -> None:
        while case.rules.hold_after is not None and number > case.rules.hold_after:
            await case.changed.wait()

    async def _act(
        self, case: Case, key: str, nth: int, idempotency_key: str
    ) -> tuple[int, dict[str, Any]] | None:
        acts = case.rules.acts.get(key, [])
        act = acts[nth - 1] if nth <= len(acts) else "ok"
        if act in ("400", "429", "500"):
            return int(act), {}
        # A model's text differs from call to call; a repeated idempotency key is the same call.
        text = f"{key} said {nth}".ljust(case.rules.bytes, ".")
        answer = case.bill.setdefault(idempotency_key or f"{key}#{nth}", text)
        if act == "swallow":
            return None
        if act == "hang":
            await asyncio.sleep(3600)
        case.answered += act == "ok"
        return 200, {"answer": answer, "act": act}


async def _read(reader: asyncio.StreamReader) -> tuple[str, dict[str, Any]] | None:
    head = await reader.readline()
    if not head:
        return None
    length = 0
    while (line := await reader.readline()).strip():
        name, _, value = line.decode().partition(":")
        if name.lower() == "content-length":
            length = int(value)
    body = await reader.readexactly(length)
    return head.decode().split()[1], json.loads(body or b"{}")


async def main(log: str) -> None:
    books = Log(log)
    witness = Witness(books)
    server = await asyncio.start_server(witness.serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    books.close()
    os._exit(0)  # calls that hang must not keep it


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
