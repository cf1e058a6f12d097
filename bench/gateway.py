"""The gateway: chunk bytes a second over loopback, tiny runs a second; what memory it takes then,
and the delivery beside it.

    .venv/bin/python -m bench.gateway

Chunks of 32 MiB are sent by four connections of another process that does nothing but `sendfile`,
so the figure is the server's, on a machine that both share. The peer is the disk: the same bytes
written by four threads to files that are fsynced, without a network, a hash or a store.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.harness import MIB, Size, alone, say
from holdfast.cli.measure import Figure, in_turn, stopwatch
from holdfast.intake.ddl import column_names
from holdfast.spark.load import load_pipeline

CHUNK_BYTES = 32 * MIB
CONNECTIONS = 4
REACH_MB_S = 300.0
REACH_RSS_MIB = 100.0
TINY_RUNS = 100


class Served:
    """A gateway process with one client, and a delivery beside it."""

    def __init__(self, root: Path) -> None:
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        state = str(root / "state")
        added = self._holdfast("client", "add", "bench", "--state", state, "--json")
        self.token = json.loads(added)["token"]
        settings = {"HOLDFAST_CLIENT_REQUEST_RATE": "100000", "HOLDFAST_CLIENT_OPEN_RUNS": "100000"}
        place = ("--pipeline", "coffee", "--state", state, "--listen", "127.0.0.1:0")
        self.process = subprocess.Popen(
            [*_COMMAND, "gateway", *place, "--json"],
            env={**os.environ, **settings, "HOLDFAST_BACKLOG_BYTES": "1000GiB"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        url = json.loads(self.process.stdout.readline())["url"]
        self.port = int(url.rpartition(":")[2])
        self.delivery = subprocess.Popen([*_COMMAND, "delivery", "--state", state])

    def _holdfast(self, *arguments: str) -> str:
        done = subprocess.run([*_COMMAND, *arguments], capture_output=True, text=True, check=True)
        return done.stdout

    def create(self, key: str) -> str:
        line = http.client.HTTPConnection("127.0.0.1", self.port)
        headers = {"Authorization": f"Bearer {self.token}", "Idempotency-Key": key}
        line.request("POST", "/v1/runs", body="{}", headers=headers)
        found: str = json.loads(line.getresponse().read())["run"]
        line.close()
        return found

    def peaks_mib(self, under: str) -> list[Figure]:
        """Return the most memory that each process ever had."""
        found = []
        for name, process in (("gateway", self.process), ("delivery", self.delivery)):
            text = Path(f"/proc/{process.pid}/status").read_text()
            peak = int(text.split("VmHWM:")[1].split()[0]) / 1024
            label = f"{name}: memory, {under}"
            found.append(Figure(label, "MiB", (peak,), reach=REACH_RSS_MIB))
        return found

    def close(self) -> None:
        for process in (self.delivery, self.process):
            process.terminate()
            process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


_COMMAND = [sys.executable, "-m", "holdfast.cli"]


def figures(size: Size, root: Path) -> list[Figure]:
    """Return the rate of uploads beside that of the disk, the memory, and tiny runs."""
    count = 8 if size.name == "quick" else 64
    source = root / "chunk"
    source.write_bytes((_header("transactions") + os.urandom(CHUNK_BYTES))[:CHUNK_BYTES])
    checksum = hashlib.sha256(source.read_bytes()).hexdigest()
    served = Served(root / "gateway")
    keys = iter(range(10**6))
    say(f"gateway: {count} chunks of {CHUNK_BYTES // MIB} MiB, {CONNECTIONS} connections")
    try:
        found = in_turn(
            {
                "gateway": lambda: upload(served, str(next(keys)), source, checksum, count),
                "disk": lambda: write_files(root / "plain", source, count),
            },
            size.rounds,
            say,
        )
        peaks = served.peaks_mib("uploads")
        say(f"gateway: {TINY_RUNS} tiny runs")
        rates = [tiny_runs(served, f"t{number}-") for number in range(size.rounds)]
        peaks += served.peaks_mib("tiny runs")
    finally:
        served.close()
    reach = min(REACH_MB_S, Figure("", "", tuple(found["disk"])).median)
    return [
        Figure("gateway: chunk bytes taken in", "MB/s", tuple(found["gateway"]), "higher", reach),
        Figure("gateway: the disk, fsynced", "MB/s", tuple(found["disk"]), "higher"),
        *peaks,
        Figure("gateway: tiny runs (create, 1 chunk, 7 ENDs)", "1/s", tuple(rates), "higher"),
    ]


def _header(table: str) -> bytes:
    """Return the header that a table's documents begin with."""
    columns = column_names(load_pipeline("coffee").spec().table(table).schema)
    return ",".join(columns).encode() + b"\n"


def upload(served: Served, key: str, source: Path, checksum: str, count: int) -> float:
    """Return MB a second of one run's chunks, sent by another process."""
    run = served.create(key)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        arguments = (served.port, served.token, run, str(source), checksum)
        pool.apply(_send, (*arguments, range(1, 2)))
        seconds = pool.apply(_send, (*arguments, range(2, count + 2)))
    return count * CHUNK_BYTES / 1e6 / seconds


def _send(port: int, token: str, run: str, source: str, checksum: str, ordinals: range) -> float:
    """Send chunks by several connections; returns the seconds until all are acknowledged."""

    def one(numbers: list[int]) -> None:
        with socket.create_connection(("127.0.0.1", port)) as line, open(source, "rb") as file:
            for ordinal in numbers:
                head = (
                    f"PUT /v1/runs/{run}/tables/transactions/chunks/{ordinal} HTTP/1.1\r\n"
                    f"Host: x\r\nAuthorization: Bearer {token}\r\nContent-Type: text/csv\r\n"
                    f"Holdfast-Checksum: {checksum}\r\nContent-Length: {CHUNK_BYTES}\r\n\r\n"
                )
                line.sendall(head.encode())
                file.seek(0)
                line.sendfile(file)
                answer = b""
                while not answer.endswith(b"}"):  # head and body may come apart
                    answer += line.recv(65536)
                assert answer.startswith(b"HTTP/1.1 201"), answer

    shares = [list(ordinals[start::CONNECTIONS]) for start in range(CONNECTIONS)]
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        return stopwatch(lambda: list(pool.map(one, shares)))


def write_files(root: Path, source: Path, count: int) -> float:
    """Return MB a second of plain files, fsynced."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    data = source.read_bytes()

    def one(number: int) -> None:
        with (root / str(number)).open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        seconds = stopwatch(lambda: list(pool.map(one, range(count))))
    shutil.rmtree(root)
    return count * CHUNK_BYTES / 1e6 / seconds


def tiny_runs(served: Served, prefix: str) -> float:
    """Return runs a second: created, one chunk, all ENDs, by four connections."""
    tables = "transactions transaction_items users stores menu_items payment_methods vouchers"
    body = _header("transactions")
    checksum = hashlib.sha256(body).hexdigest()

    def ask(line: http.client.HTTPConnection, verb: str, path: str, data: bytes) -> bytes:
        headers = {"Authorization": f"Bearer {served.token}", "Content-Type": "text/csv"}
        headers |= {"Holdfast-Checksum": checksum, "Idempotency-Key": path.rpartition("?")[2]}
        line.request(verb, path.partition("?")[0], body=data, headers=headers)
        answer = line.getresponse()
        assert answer.status == 201, answer.read()
        return answer.read()

    def one(numbers: range) -> None:
        line = http.client.HTTPConnection("127.0.0.1", served.port)
        for number in numbers:
            run = json.loads(ask(line, "POST", f"/v1/runs?{prefix}{number}", b"{}"))["run"]
            ask(line, "PUT", f"/v1/runs/{run}/tables/transactions/chunks/1", body)
            for table in tables.split():
                count = b'{"count": 1}' if table == "transactions" else b'{"count": 0}'
                ask(line, "PUT", f"/v1/runs/{run}/tables/{table}/end", count)
        line.close()

    shares = [range(start, TINY_RUNS, CONNECTIONS) for start in range(CONNECTIONS)]
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        return TINY_RUNS / stopwatch(lambda: list(pool.map(one, shares)))


if __name__ == "__main__":
    alone("gateway", figures)
