"""Limits of the HTTP door: slow, silent, large and many; a full disk; memory."""

from __future__ import annotations

import os
import resource
import select
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.mounts import small_disk
from tests.service.door import (
    CSV,
    Gateway,
    add_client,
    answer_on,
    checksum,
    create,
    document,
    document_of,
    end,
    events_of,
    make_certificate,
    put,
    serving,
    store_of,
    wait_for,
    work_off,
)

from holdfast._base.ids import RunId
from holdfast.intake.ddl import column_names
from holdfast.spark.load import load_pipeline

TEXT = b"shop,amount\na,1\n"
PARQUET = {"Content-Type": "application/vnd.apache.parquet"}


@contextmanager
def one_client(
    root: Path, quotas: dict[str, int] | None = None, *options: str, **more: str
) -> Iterator[tuple[Gateway, httpx.Client]]:
    token = add_client(root, "north", **(quotas or {}))
    with serving(root, *options, **more) as gateway, gateway.client(token) as client:
        yield gateway, client


def refused(answer: httpx.Response, status: int, code: str) -> Any:
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body["code"] == code
    if status in (429, 507):
        assert int(answer.headers["retry-after"]) >= 1
    return body


def blobs_of(gateway: Gateway) -> list[Path]:
    return [path for path in (gateway.state / "blobs").rglob("*") if path.is_file()]


def rss_mib(gateway: Gateway) -> float:
    """Return the most memory that the process ever had."""
    text = Path(f"/proc/{gateway.process.pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) / 1024


def test_quotas_of_one_client_are_not_those_of_another(tmp_path: Path) -> None:
    """Open runs, chunks of a run, stored bytes, chunk size: each is refused by name."""
    quotas = {"open_runs": 2, "run_chunks": 2, "stored_bytes": 100, "chunk_bytes": 60}
    east = add_client(tmp_path, "east")
    with one_client(tmp_path, quotas) as (gateway, client):
        run, other = create(client, "a"), create(client, "b")
        third = client.post("/v1/runs", headers={"Idempotency-Key": "c"}, json={})
        body = refused(third, 429, "QUOTA_REACHED")
        assert (body["used"], body["limit"]) == (2, 2)
        assert create(client, "a") == run, "what is there is found, whatever the quota says"
        assert refused(put(client, run, b"x" * 61), 413, "BODY_TOO_LARGE")["limit"] == 60
        for ordinal in (1, 2):
            assert put(client, run, TEXT, ordinal=ordinal).status_code == 201
        refused(put(client, run, TEXT, ordinal=3), 429, "QUOTA_REACHED")
        assert put(client, run, TEXT, ordinal=2).status_code == 200
        assert put(client, other, document_of(60), ordinal=1).status_code == 201
        refused(put(client, other, TEXT, ordinal=2), 429, "QUOTA_REACHED")
        with gateway.client(east) as others:
            theirs = create(others)
            assert put(others, theirs, document_of(200)).status_code == 201
        client.post(f"/v1/runs/{other}/cancel")
        assert create(client, "c")


def test_requests_are_counted_and_come_back(tmp_path: Path) -> None:
    with one_client(tmp_path, {"request_rate": 2}) as (gateway, client):
        asked = [client.get("/v1/runs") for _ in range(20)]
        assert {answer.status_code for answer in asked} == {200, 429}
        late = next(answer for answer in asked if answer.status_code == 429)
        refused(late, 429, "QUOTA_REACHED")
        wait_for(lambda: client.get("/v1/runs").status_code == 200, "the next request")
        assert httpx.get(f"{gateway.url}/healthz").status_code == 200


def test_requests_sent_at_once_on_one_line_are_answered_in_turn(tmp_path: Path) -> None:
    """Pipelined: the body of the second is its own, whatever became of the first."""
    with one_client(tmp_path) as (gateway, client):
        run = create(client)
        data = document_of(300_000)
        refused_head = head_of(client, run, 10, ordinal=1).replace(b"text/csv", b"text/none")
        good = head_of(client, run, len(data), ordinal=2)
        good = good.replace(b"0" * 64, checksum(data).encode())
        with socket.create_connection(("127.0.0.1", gateway.port), 60) as line:
            line.sendall(refused_head + b"x" * 10 + good + data)
            answer = b""
            while b"HTTP/1.1 201" not in answer:
                more = line.recv(65536)
                assert more, answer
                answer += more
        assert answer.startswith(b"HTTP/1.1 415")


def test_a_body_without_a_length_is_cut_at_its_limit(tmp_path: Path) -> None:
    """Sent in pieces of unknown number: refused as soon as it is too long, and nothing stays."""
    with one_client(tmp_path, {"chunk_bytes": 1 << 20}) as (gateway, client):
        run = create(client)
        headers = {**CSV, "Holdfast-Checksum": "0" * 64}
        path = f"/v1/runs/{run}/tables/sales/chunks/1"
        endless = client.put(path, headers=headers, content=(b"x" * 65536 for _ in range(64)))
        refused(endless, 413, "BODY_TOO_LARGE")
        assert blobs_of(gateway) == []
        data = document_of(1 << 20)
        whole = {**CSV, "Holdfast-Checksum": checksum(data)}
        pieces = (data[at : at + 9999] for at in range(0, len(data), 9999))
        assert client.put(path, headers=whole, content=pieces).status_code == 201


def unmeasured(client: httpx.Client, run: str, data: bytes, ordinal: int) -> httpx.Response:
    """Put a chunk that does not say how long it is."""
    path = f"/v1/runs/{run}/tables/sales/chunks/{ordinal}"
    pieces = (data[at : at + 65536] for at in range(0, len(data), 65536))
    headers = {**CSV, "Holdfast-Checksum": checksum(data)}
    return client.put(path, headers=headers, content=pieces)


def test_a_body_without_a_length_takes_room_as_it_comes(tmp_path: Path) -> None:
    """It may not take more than the client may keep here, however many come at once."""
    with one_client(tmp_path, {"stored_bytes": 3 << 20}) as (gateway, client):
        run = create(client)
        data = document_of(1 << 20)
        token = client.headers["authorization"].removeprefix("Bearer ")

        def send(ordinal: int) -> int:
            with gateway.client(token) as own:
                return unmeasured(own, run, data, ordinal).status_code

        with ThreadPoolExecutor(6) as pool:
            codes = list(pool.map(send, range(1, 7)))
        assert set(codes) <= {201, 429}
        assert codes.count(201) <= 3
        assert len(blobs_of(gateway)) == codes.count(201), "what was refused leaves nothing"

        def is_full() -> bool:
            # A chunk may count twice for a second: bound, and not yet forgotten as under way.
            ordinal = codes.index(429) + 1
            codes[ordinal - 1] = send(ordinal)
            return codes.count(201) == 3

        wait_for(lambda: codes.count(201) == 3 or is_full(), "three chunks, which have room")
        refused(unmeasured(client, run, data, 9), 429, "QUOTA_REACHED")


def head_of(client: httpx.Client, run: str, length: int, ordinal: int = 1) -> bytes:
    lines = [
        f"PUT /v1/runs/{run}/tables/sales/chunks/{ordinal} HTTP/1.1",
        "Host: x",
        f"Authorization: {client.headers['authorization']}",
        "Content-Type: text/csv",
        f"Holdfast-Checksum: {'0' * 64}",
        f"Content-Length: {length}",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def test_an_upload_that_is_too_slow_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    """10 s are free; then so many bytes a second must have come. Nobody else waits for it."""
    with one_client(tmp_path, None, HOLDFAST_UPLOAD_RATE_BYTES="1MiB") as (gateway, client):
        run = create(client)
        with socket.create_connection(("127.0.0.1", gateway.port), 60) as line:
            line.sendall(head_of(client, run, 1 << 20) + b"x" * 1000)
            wait_for(lambda: blobs_of(gateway), "the first bytes on disk")
            assert put(client, run, TEXT, ordinal=2).status_code == 201
            status, body = answer_on(line)
        assert status == 408, body
        assert b"UPLOAD_SLOW" in body
        wait_for(lambda: len(blobs_of(gateway)) == 1, "the end of what was written")
        assert document(client, run)["tables"][0]["received"] == 1


def test_a_sender_that_goes_away_leaves_nothing(tmp_path: Path) -> None:
    with one_client(tmp_path) as (gateway, client):
        run = create(client)
        with socket.create_connection(("127.0.0.1", gateway.port), 60) as line:
            line.sendall(head_of(client, run, 1 << 20) + b"x" * 400_000)
            wait_for(lambda: blobs_of(gateway), "the first bytes on disk")
        wait_for(lambda: blobs_of(gateway) == [], "the end of what was written")
        assert put(client, run, TEXT).status_code == 201
        assert gateway.log() == ""


HALF_HEAD = b"GET /v1/runs HTTP/1.1\r\nHost: x\r\nX-Slow: "
HALF_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""Of a TLS handshake's first message: it announces half a KiB."""


def silent_lines(gateway: Gateway, count: int) -> list[socket.socket]:
    """Return lines that say nothing, or half of what comes first."""
    lines = [socket.create_connection(("127.0.0.1", gateway.port), 60) for _ in range(count)]
    half = HALF_HELLO if gateway.url.startswith("https:") else HALF_HEAD
    for n, line in enumerate(lines):
        with suppress(OSError):  # it may be cut already
            if n % 2:
                line.sendall(half)
        line.settimeout(0.01)
    return lines


def secured(gateway: Gateway) -> socket.socket:
    """Return a line over TLS that stops within its first head."""
    known = ssl.create_default_context(cafile=gateway.root / "cert.pem")
    bare = socket.create_connection(("127.0.0.1", gateway.port), 60)
    line = known.wrap_socket(bare, server_hostname="127.0.0.1")
    line.sendall(HALF_HEAD)
    line.settimeout(0.01)
    return line


def ended_of(lines: list[socket.socket], drip: bool = False) -> int:
    """Return how many of them the gateway has cut; the second one goes on, if wanted."""
    ended = 0
    for n, line in enumerate(lines):
        try:
            if drip and n == 1:
                line.sendall(b"x")
            ended += line.recv(1024) == b""
        except TimeoutError:
            pass
        except OSError:
            ended += 1
    return ended


@pytest.mark.parametrize("kind", ["plain", "tls"])
def test_silent_connections_keep_nobody_out_and_are_cut(tmp_path: Path, kind: str) -> None:
    """200 lines that open and say nothing, or half a head, or a byte now and then."""
    tls = make_certificate(tmp_path) if kind == "tls" else ()
    with one_client(tmp_path, None, *tls, HOLDFAST_HEADER_WAIT_S="3") as (gateway, client):
        lines = silent_lines(gateway, 200)
        if tls:
            lines += [secured(gateway) for _ in range(10)]
        try:
            begun = time.monotonic()
            run = create(client)
            assert put(client, run, TEXT).status_code == 201
            assert time.monotonic() - begun < 10
            wait_for(lambda: ended_of(lines[:2], drip=True) == 2, "the end of the first two")
            wait_for(lambda: ended_of(lines) == len(lines), "the end of the silent lines")
        finally:
            for line in lines:
                line.close()
        assert put(client, run, TEXT, ordinal=2).status_code == 201
        assert gateway.log() == ""


def test_blanks_between_two_requests_do_not_hold_a_line(tmp_path: Path) -> None:
    """A line that was served once, and then only drips line ends."""
    with one_client(tmp_path, None, HOLDFAST_HEADER_WAIT_S="1") as (gateway, _):
        line = socket.create_connection(("127.0.0.1", gateway.port), 60)
        with line:
            line.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert answer_on(line)[0] == 200
            line.settimeout(0.2)

            def is_cut() -> bool:
                try:
                    line.sendall(b"\r\n")
                    return line.recv(1024) == b""
                except TimeoutError:
                    return False
                except OSError:
                    return True

            wait_for(is_cut, "the end of the line")


@pytest.mark.parametrize("kind", ["plain", "tls"])
def test_of_too_many_connections_the_silent_go_first(tmp_path: Path, kind: str) -> None:
    """Over TLS most are in their handshake, of which the server would not tell."""
    tls = make_certificate(tmp_path) if kind == "tls" else ()
    limits = {"HOLDFAST_CONNECTIONS_MAX": "20", "HOLDFAST_HEADER_WAIT_S": "3600"}
    with one_client(tmp_path, None, *tls, **limits) as (gateway, client):
        run = create(client)
        lines = silent_lines(gateway, 60)
        try:
            # Not on the line kept from before: that one is idle, too, and may go at any moment.
            with gateway.client(client.headers["authorization"].removeprefix("Bearer ")) as other:
                assert put(other, run, TEXT).status_code == 201
                assert document(other, run)["tables"][0]["received"] == 1
            wait_for(lambda: ended_of(lines) >= 40, "the end of those beyond")
        finally:
            for line in lines:
                line.close()


def test_a_gateway_takes_all_the_files_that_the_system_grants(tmp_path: Path) -> None:
    """The usual limit is 1,024, and each of 512 connections may send or fetch one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1), hard))
    try:
        with serving(tmp_path) as gateway:
            assert resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_lines_that_were_served_and_kept_keep_nobody_out(tmp_path: Path) -> None:
    """Each asked once and may ask again: they are idle, however often they were served."""
    with one_client(tmp_path, None, HOLDFAST_CONNECTIONS_MAX="20") as (gateway, client):
        token = client.headers["authorization"].removeprefix("Bearer ")
        with ExitStack() as lines:
            for _ in range(40):
                line = socket.create_connection(("127.0.0.1", gateway.port), 60)
                lines.enter_context(line)
                line.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                assert answer_on(line)[0] == 200
            with gateway.client(token) as newcomer:
                run = create(newcomer)
                assert put(newcomer, run, TEXT).status_code == 201


def deaf_line(gateway: Gateway) -> socket.socket:
    """Return a line that will read nothing of what it asks for."""
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.connect(("127.0.0.1", gateway.port))
    line.setblocking(False)
    return line


def ask_for_much(lines: list[socket.socket], times: int) -> None:
    for line in lines:
        with suppress(OSError):
            line.send(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * times)


def fill(client: httpx.Client, lines: list[socket.socket]) -> None:
    """Ask on each line until its answers go no further, and some requests wait behind them."""
    asked = 0

    def answered() -> bool:
        told = client.get("/metrics").text
        return f'path="other",status="200"}} {asked}\n' in told

    with suppress(AssertionError):
        while True:
            ask_for_much(lines, 4)
            asked += 4 * len(lines)
            wait_for(answered, wait_s=2)
    ask_for_much(lines, 8)


def is_ended(line: socket.socket) -> bool:
    """Tell whether the other side cut a line off, without reading."""
    poll = select.poll()
    poll.register(line, 0)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))


def test_lines_that_read_no_answer_keep_nobody_out(tmp_path: Path) -> None:
    """Strangers hold all lines but one, with answers that they do not take. The one is of use."""
    more = {"HOLDFAST_CONNECTIONS_MAX": "9", "HOLDFAST_ANSWER_WAIT_S": "3600"}
    with one_client(tmp_path, None, **more) as (gateway, client), ExitStack() as open_lines:
        token = client.headers["authorization"].removeprefix("Bearer ")
        run = create(client)
        lines = [open_lines.enter_context(deaf_line(gateway)) for _ in range(8)]
        fill(client, lines)
        with client.stream("GET", f"/v1/runs/{run}/events") as watching:
            events = events_of(watching.iter_lines())
            assert next(events)["state"] == "OPEN"
            with gateway.client(token) as newcomer:
                assert put(newcomer, run, TEXT).status_code == 201
                assert end(newcomer, run, 1).status_code == 201
            assert next(events)["tables"][0]["received"] == 1
        assert sum(map(is_ended, lines)) == 1


def test_an_answer_that_nobody_reads_ends_its_line(tmp_path: Path) -> None:
    """Also one that was to be closed behind it."""
    with one_client(tmp_path, None, HOLDFAST_ANSWER_WAIT_S="3") as (gateway, client):
        with deaf_line(gateway) as line, deaf_line(gateway) as other:
            fill(client, [line, other])
            with suppress(OSError):
                other.send(b"no request at all\r\n\r\n")
            wait_for(lambda: is_ended(line) and is_ended(other), "the end of the lines")
        assert put(client, create(client), TEXT).status_code == 201
        assert "Traceback" not in gateway.log()


def test_requests_that_wait_for_their_turn_without_end_are_cut(tmp_path: Path) -> None:
    """Each is kept in memory: thousands fit into one packet."""
    with one_client(tmp_path) as (gateway, client):
        with socket.create_connection(("127.0.0.1", gateway.port), 60) as line:
            line.sendall(b"GET /openapi.json HTTP/1.1\r\n\r\n" * 2000)
            with suppress(ConnectionResetError):
                answer = b"x"
                taken = 0
                while answer:
                    answer = line.recv(1 << 20)
                    taken += answer.count(b"HTTP/1.1 200")
                assert taken < 2000
        assert put(client, create(client), TEXT).status_code == 201


def test_a_body_behind_its_answer_does_not_hold_a_line(tmp_path: Path) -> None:
    """What comes after the answer is thrown away, and the line is still waited for in vain."""
    with serving(tmp_path, HOLDFAST_HEADER_WAIT_S="1") as gateway:
        line = socket.create_connection(("127.0.0.1", gateway.port), 20)
        with line:
            line.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
            assert answer_on(line)[0] == 200
            line.sendall(b"12345")
            assert line.recv(1024) == b""


def test_one_client_cannot_take_all_connections(tmp_path: Path) -> None:
    """A quarter of them may be under way for one: event streams here, which end when it likes."""
    east = add_client(tmp_path, "east")
    with one_client(tmp_path, None, HOLDFAST_CONNECTIONS_MAX="20") as (gateway, client):
        run = create(client)
        with ExitStack() as streams:
            watched = []
            for _ in range(5):
                stream = client.stream("GET", f"/v1/runs/{run}/events")
                watched.append(events_of(streams.enter_context(stream).iter_lines()))
                assert next(watched[-1])["state"] == "OPEN"
            body = refused(client.get("/v1/runs"), 429, "QUOTA_REACHED")
            assert (body["what"], body["used"], body["limit"]) == ("requests at once", 5, 5)
            with gateway.client(east) as other:
                assert put(other, create(other), TEXT).status_code == 201
        wait_for(lambda: client.get("/v1/runs").status_code == 200, "the end of the streams")
        assert [client.get("/v1/runs").status_code for _ in range(10)] == [200] * 10


def test_trailers_without_end_are_cut_and_take_no_memory(tmp_path: Path) -> None:
    """Lines behind a body in pieces are read into memory by the parser: they have a limit."""
    with one_client(tmp_path) as (gateway, client):
        run = create(client)
        head = head_of(client, run, 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        before = rss_mib(gateway)
        with socket.create_connection(("127.0.0.1", gateway.port), 60) as line:
            line.sendall(head + b"5\r\nhello\r\n0\r\n")
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                line.sendall(b"X-A: b\r\n" * (1 << 25))
        assert rss_mib(gateway) - before < 20
        assert put(client, run, TEXT).status_code == 201
        assert "Traceback" not in gateway.log()


@pytest.mark.parametrize("kind", ["one", "many", "path", "endless"])
def test_a_head_that_is_too_long_is_refused(tmp_path: Path, kind: str) -> None:
    heads = {
        "one": b"GET /healthz HTTP/1.1\r\nX-Long: " + b"x" * 40_000 + b"\r\n\r\n",
        "many": b"GET /healthz HTTP/1.1\r\n" + b"X-A: b\r\n" * 200 + b"\r\n",
        "path": b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n\r\n",
        "endless": b"GET /healthz HTTP/1.1\r\nX-Long: " + b"x" * 500_000,
    }
    with serving(tmp_path) as gateway:
        with socket.create_connection(("127.0.0.1", gateway.port), 60) as line:
            line.sendall(heads[kind])
            answer = line.recv(65536)
        assert answer.startswith(b"HTTP/1.1 431 "), answer
        assert httpx.get(f"{gateway.url}/healthz").status_code == 200
        assert "Traceback" not in gateway.log()


def write_parquet(path: Path, rows: int) -> bytes:
    table = pa.table({"shop": ["a"] * rows, "amount": pa.array([1] * rows, pa.int32())})
    pq.write_table(table, path, compression="zstd")
    return path.read_bytes()


def test_a_parquet_document_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    more = {"HOLDFAST_UNPACKED_BYTES": "1KiB", "HOLDFAST_UNPACKED_ROWS_MAX": "5000"}
    with one_client(tmp_path, None, **more) as (gateway, client):
        run = create(client)
        fits = write_parquet(tmp_path / "a", 10)
        assert put(client, run, fits, headers=PARQUET).status_code == 201
        rows = write_parquet(tmp_path / "b", 6000)
        body = refused(put(client, run, rows, ordinal=2, headers=PARQUET), 422, "DOCUMENT_REFUSED")
        assert "6000 rows" in body["what"]
        table = pa.table({"t": [f"{number:050}" for number in range(2000)]})
        pq.write_table(table, tmp_path / "c", compression="zstd")
        wide = put(client, run, (tmp_path / "c").read_bytes(), ordinal=2, headers=PARQUET)
        assert "bytes" in refused(wide, 422, "DOCUMENT_REFUSED")["what"]
        cut = put(client, run, fits[:-1], ordinal=2, headers=PARQUET)
        refused(cut, 422, "DOCUMENT_REFUSED")
        assert len(blobs_of(gateway)) == 1
        assert document(client, run)["tables"][0]["received"] == 1


def test_a_backlog_is_worked_off_before_more_is_taken(tmp_path: Path) -> None:
    """Whole tables and ENDs are always taken: the engine may wait for exactly those."""
    with one_client(tmp_path, None, HOLDFAST_BACKLOG_BYTES="40") as (gateway, client):
        run = create(client)
        taken = [put(client, run, TEXT, ordinal=n).status_code for n in (1, 2, 3)]
        assert taken == [201] * 3

        def full() -> bool:
            answer = put(client, run, TEXT, ordinal=4)
            if answer.status_code == 429:
                refused(answer, 429, "BACKLOG_FULL")
            return answer.status_code == 429

        assert full()
        shops = b"shop,title\na,Anchor\n"
        assert put(client, run, shops, table="shops").status_code == 201
        assert end(client, run, 1, "shops").status_code == 201
        assert end(client, run, 4).status_code == 201
        work_off(gateway.root, run)
        wait_for(lambda: put(client, run, TEXT, ordinal=4).status_code == 201, "room for it")


def test_a_disk_is_never_filled_by_uploads(tmp_path: Path) -> None:
    """On a small disk with a floor: 429 in time; the store goes on; room again, uploads again."""
    with small_disk(tmp_path / "disk", 16 * 1024) as disk:
        more = {"HOLDFAST_DISK_FLOOR_BYTES": "6MiB"}
        with one_client(disk.path, None, **more) as (gateway, client):
            run = create(client)
            data = document_of(1 << 20, os.urandom(1 << 20))
            codes = []
            for ordinal in range(1, 30):
                answer = put(client, run, data, ordinal=ordinal)
                codes.append(answer.status_code)
                if answer.status_code != 201:
                    break
            assert codes[-1] == 429, codes
            refused(answer, 429, "DISK_NEARLY_FULL")
            assert len(codes) >= 3
            (disk.path / "filler").write_bytes(bytes(2 << 20))
            assert httpx.get(f"{gateway.url}/readyz").status_code == 503
            refused(unmeasured(client, run, data, 50), 429, "DISK_NEARLY_FULL")
            assert end(client, run, 99).status_code == 201, "what takes no room is still taken"
            assert put(client, run, data, ordinal=1).status_code == 200
            disk.resize(64 * 1024)
            assert put(client, run, data, ordinal=len(codes)).status_code == 201
            assert httpx.get(f"{gateway.url}/readyz").status_code == 200


def test_a_disk_that_is_full_in_the_middle_of_an_upload_loses_nothing(tmp_path: Path) -> None:
    """Without a floor: the write itself fails; nothing is bound, nothing stays, and it goes on."""
    with small_disk(tmp_path / "disk", 8 * 1024) as disk:
        more = {"HOLDFAST_DISK_FLOOR_BYTES": "0"}
        with one_client(disk.path, None, **more) as (gateway, client):
            run = create(client)
            data = document_of(1 << 20, os.urandom(1 << 20))
            bound = []
            for ordinal in range(1, 20):
                answer = unmeasured(client, run, data, ordinal)
                if answer.status_code != 201:
                    break
                bound.append(ordinal)
            refused(answer, 507, "DISK_FULL")
            assert len(blobs_of(gateway)) == len(bound) >= 2
            disk.resize(64 * 1024)
            assert put(client, run, data, ordinal=len(bound) + 1).status_code == 201
            with store_of(disk.path) as shared:
                chunks = shared.store.list_chunks(RunId(run))
            assert [chunk.ordinal for chunk in chunks] == [*bound, len(bound) + 1]


def test_memory_does_not_grow_with_what_is_sent(tmp_path: Path) -> None:
    """Chunks of 64 MiB by eight lines at once: the process stays below 100 MiB.

    With the bundled pipeline: the toy one loads half of the tests.
    """
    with one_client(tmp_path, None, pipeline="coffee") as (gateway, client):
        run = create(client)
        columns = column_names(load_pipeline("coffee").spec().table("transactions").schema)
        header = ",".join(columns).encode() + b"\n"
        data = document_of(64 << 20, os.urandom(64 << 20), header)
        token = client.headers["authorization"].removeprefix("Bearer ")

        def send(ordinal: int) -> int:
            with gateway.client(token) as own:
                return put(own, run, data, table="transactions", ordinal=ordinal).status_code

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(send, range(1, 9))) == [201] * 8
        assert rss_mib(gateway) <= 100
        sizes = {path.stat().st_size for path in blobs_of(gateway)}
        assert sizes == {64 << 20}


def test_two_gateways_on_one_state_bind_a_chunk_once(tmp_path: Path) -> None:
    """The same chunk, with other bytes, at both at once: one wins, the other names it."""
    token = add_client(tmp_path, "north")
    with serving(tmp_path) as first, serving(tmp_path) as second:
        one, two = first.client(token), second.client(token)
        with one, two:
            run = create(one)
            assert create(two) == run

            def both(ordinal: int) -> list[int]:
                with ThreadPoolExecutor(2) as pool:
                    found = [
                        pool.submit(put, client, run, document_of(5000, data), ordinal=ordinal)
                        for client, data in ((one, b"a"), (two, b"b"))
                    ]
                return sorted(answer.result().status_code for answer in found)

            assert [both(ordinal) for ordinal in range(1, 6)] == [[201, 409]] * 5
            assert document(one, run) == document(two, run)
            assert len(blobs_of(first)) == 5
