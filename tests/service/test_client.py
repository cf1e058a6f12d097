"""The client's commands as real processes against a real gateway, killed anywhere."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from tests.crash.workloads import write_inputs
from tests.service.door import Gateway, add_client, command, serving, work_off
from tests.service.processes import Process
from tests.tcp_proxy import Lose, Proxy

from holdfast import Client
from holdfast.client.submit import Plan, submit
from holdfast.errors import RunClosed, RunUnknown

CHUNKS = 7
"""What `CHUNK_BYTES` makes of the toy's three files."""
CHUNKS_WHOLE = 3
"""Of those of its whole table, which is sent first and has its END before the others."""
CHUNK_BYTES = "16"
ENDS = 4


class Desk:
    """A client of one gateway, at its command line."""

    def __init__(self, root: Path, gateway: Gateway) -> None:
        self.root, self.gateway = root, gateway
        self.secret = add_client(root, "north")
        self.token = root / "token"
        self.token.write_text(self.secret + "\n")
        self.data, self.out = root / "data", root / "answers"
        write_inputs(self.data)

    def start(self, verb: str, *arguments: str, **environment: str) -> Process:
        server = ("--url", self.gateway.url, "--token-file", str(self.token))
        return Process("holdfast.cli", verb, *arguments, *server, **environment)

    def submit(self, *more: str, **environment: str) -> Process:
        sizes = ("--chunk-bytes", CHUNK_BYTES, "--connections", "1")
        flags = ("--json", "--ignore-unknown")
        return self.start("submit", str(self.data), *sizes, *flags, *more, **environment)

    def done(self, process: Process, code: int = 0) -> str:
        """Wait for the end of a process; returns its last line. No output shows the token."""
        ended = process.wait()
        process.end()
        assert self.secret not in process.text
        assert ended == code, process.text
        return process.lines[-1] if process.lines else ""

    def handed(self, *more: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.done(self.submit(*more)))
        return found

    def check_answers(self) -> None:
        """The files are those that `holdfast run --out` exports, and nothing else is there."""
        right = {path.name: path.read_bytes() for path in (self.root / "out").iterdir()}
        assert {path.name: path.read_bytes() for path in self.out.iterdir()} == right
        assert len(right) == 3


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with serving(tmp_path) as gateway:
        yield Desk(tmp_path, gateway)


@pytest.mark.parametrize(
    ("point", "acked"),
    [
        ("client.create.after:1", 0),
        ("client.chunk.after:1", 1),
        ("client.chunk.after:4", 4),
        ("client.end.after:1", CHUNKS_WHOLE),
        ("client.end.after:2", CHUNKS),
        (f"client.end.after:{ENDS}", CHUNKS),
    ],
)
def test_a_killed_submit_goes_on_and_sends_only_the_rest(
    desk: Desk, point: str, acked: int
) -> None:
    """What the server acknowledged is not sent again; the run is the same, and complete."""
    desk.done(desk.submit(HOLDFAST_CRASH=point), -signal.SIGKILL)
    found = desk.handed()
    assert (found["chunks"], found["chunks_sent"]) == (CHUNKS, CHUNKS - acked)
    work_off(desk.root, str(found["run"]))
    assert desk.handed("--out", str(desk.out))["chunks_sent"] == 0
    desk.check_answers()


@pytest.mark.parametrize(
    "point", ["client.piece.after:1", "client.result.written:2", "client.result.renamed:1"]
)
def test_a_killed_fetch_goes_on_and_leaves_whole_files_only(desk: Desk, point: str) -> None:
    run = str(desk.handed()["run"])
    work_off(desk.root, run)
    arguments = ("results", run, "--out", str(desk.out))
    desk.done(desk.start(*arguments, HOLDFAST_CRASH=point), -signal.SIGKILL)
    right = {path.name: path.read_bytes() for path in (desk.root / "out").iterdir()}
    for path in desk.out.glob("*.csv"):
        assert path.read_bytes() == right[path.name]
    assert "3 results" in desk.done(desk.start(*arguments))
    desk.check_answers()


def test_over_a_bad_network_every_chunk_is_bound_once(desk: Desk) -> None:
    """Lines are cut before a request arrives, in the middle of a body, and after the commit,
    before its answer is heard.
    """
    losses: list[tuple[bytes, Lose]] = [
        (b"GET /v1/tables", "request"),
        (b"POST /v1/runs", "ack"),
        (b"/shops/chunks/1", "request"),
        (b"b,Ba", "rest"),
        (b"/shops/end", "request"),
        (b"a,7\nb", "rest"),
        (b"/sales/chunks/3", "ack"),
        (b"/notes/chunks/1", "ack"),
        (b"/sales/end?sender=b", "ack"),
        (b"/results HTTP", "ack"),
        (b"/results/report/files/1", "ack"),
    ]
    proxy = Proxy(desk.gateway.port)
    for text, what in losses:
        proxy.lose_next(text, what)
    url = f"http://127.0.0.1:{proxy.port}"
    try:
        with Client(url, token_file=desk.token) as client:
            plan = Plan(desk.data, ignore_unknown=True, chunk_bytes=int(CHUNK_BYTES), connections=2)
            run = submit(client, plan, lambda sent: None).info.run
            work_off(desk.root, run)
            client.download(run, desk.out)
    finally:
        proxy.close()
    assert proxy.lost == len(losses)
    desk.check_answers()
    metrics = httpx.get(f"{desk.gateway.url}/metrics").text
    counted = re.findall(r'gateway_chunks_total\{outcome="(\w+)"\} (\d+)', metrics)
    assert dict(counted) == {"bound": str(CHUNKS), "repeated": "2", "refused": "0"}
    blobs = [path for path in (desk.gateway.state / "blobs").rglob("*") if path.is_file()]
    assert len(blobs) == CHUNKS, "what was cut leaves nothing"


def test_submit_outlives_a_gateway_that_dies_under_it(tmp_path: Path) -> None:
    """Killed after a commit and before the ack; another one takes its address."""
    with serving(tmp_path, HOLDFAST_CRASH="intake.chunk.after:2") as first:
        desk = Desk(tmp_path, first)
        sending = desk.submit()
        assert first.ended() == -signal.SIGKILL
    with serving(tmp_path, "--listen", f"127.0.0.1:{first.port}"):
        found = json.loads(desk.done(sending))
        assert found["chunks"] == CHUNKS
        work_off(tmp_path, found["run"])
        desk.done(desk.start("results", found["run"], "--out", str(desk.out)))
        desk.check_answers()


def test_watch_goes_on_over_another_gateway_until_the_run_is_done(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        desk = Desk(tmp_path, first)
        run = str(desk.handed()["run"])
        watching = desk.start("watch", run)
        watching.until_said(f"{CHUNKS} chunks received")
        first.process.kill()
    with serving(tmp_path, "--listen", f"127.0.0.1:{first.port}"):
        work_off(tmp_path, run)
        watching.until_said(f"run {run} is DONE")
        assert desk.done(watching).startswith(f"next: holdfast results {run} --url")


def test_a_file_that_changed_under_its_key_is_refused_by_name(desk: Desk) -> None:
    """Even one all of whose chunks are there, and before the run is over."""
    desk.handed("--key", "k")
    path = desk.data / "shops.csv"
    path.write_bytes(path.read_bytes().replace(b"Anchor", b"Angler"))
    line = desk.done(desk.submit("--key", "k"), 1)
    assert line.startswith(f"holdfast: [SUBMISSION_CHANGED] {path} ")


def test_nobody_fetches_what_is_not_his_or_not_there(desk: Desk) -> None:
    run = str(desk.handed()["run"])
    line = desk.done(desk.start("results", run, "--out", str(desk.out)), 1)
    assert line.startswith("holdfast: [RUN_UNFINISHED]")
    desk.token.write_text(add_client(desk.root, "south"))
    line = desk.done(desk.start("results", run, "--out", str(desk.out)), 1)
    assert line.startswith("holdfast: [RUN_UNKNOWN]")
    desk.token.write_text("hf_" + "0" * 40)
    line = desk.done(desk.start("results", run, "--out", str(desk.out)), 1)
    assert line.startswith("holdfast: [TOKEN_REFUSED]")
    assert not desk.out.exists()


def test_a_run_is_cancelled_and_says_so_to_who_goes_on(desk: Desk) -> None:
    desk.done(desk.submit("--key", "k", HOLDFAST_CRASH="client.chunk.after:1"), -signal.SIGKILL)
    with Client(desk.gateway.url, token_file=desk.token) as client:
        (run,) = [one.run for one in client.runs()]
        assert "CANCELLED" in desk.done(desk.start("cancel", run))
        assert client.cancel(run).state == "CANCELLED"
    assert desk.done(desk.submit("--key", "k"), 1).startswith("holdfast: [RUN_OVER]")
    assert desk.done(desk.start("watch", run), 1).startswith("holdfast: [RUN_OVER]")


def test_the_python_client_does_what_its_page_shows(desk: Desk) -> None:
    """Also twice: nothing counts twice, and answers are the same."""
    with Client(desk.gateway.url, token_file=desk.token) as client:
        for again in (False, True):
            run = client.create_run("k").run
            for table, text in (("notes", "text\none\ntwo\n"), ("shops", "shop,title\na,A\n")):
                assert client.put_chunk(run, table, 1, text.encode()) is not again
                assert client.put_end(run, table, 1) is not again
            sales = b"shop,amount\na,7\n"
            assert client.has_chunk(run, "sales", 1, sha256(sales).hexdigest()) is again
            assert client.put_chunk(run, "sales", 1, sales) is not again
            assert client.put_end(run, "sales", 1) is not again
            assert client.put_end(run, "sales", 0, sender="b") is not again
        found = {(one.table, one.sender): one.announced for one in client.state(run).tables}
        assert found == {("sales", ""): 1, ("sales", "b"): 0, ("shops", ""): 1, ("notes", ""): 1}
        work_off(desk.root, run)
        assert client.wait(run).state == "DONE"
        files = client.download(run, desk.out)
        assert files["texts.csv"].read_text() == "text\none\ntwo\n"
        with pytest.raises(RunClosed):
            client.cancel(run)
        with pytest.raises(RunUnknown):
            client.state("0" * 32)


def test_a_token_goes_to_a_file_of_its_own_and_nowhere_else(desk: Desk) -> None:
    """What is there already is not replaced, and then there is no client either."""
    path = desk.root / "west"
    arguments = ("client", "add", "west", "--state", "state", "--token-file", str(path))
    done = command(desk.root, *arguments)
    token = path.read_text().strip()
    assert done.returncode == 0, done.stderr
    assert path.stat().st_mode & 0o777 == 0o600
    assert token not in done.stdout + done.stderr
    with Client(desk.gateway.url, token_file=path) as client:
        assert client.runs() == []
    again = command(desk.root, "client", "add", "east", *arguments[3:])
    assert again.returncode == 2
    assert "is there already" in again.stderr
    assert path.read_text().strip() == token
    assert "east" not in command(desk.root, "client", "list", "--state", "state").stdout


def test_no_file_of_the_server_holds_the_token(desk: Desk) -> None:
    run = str(desk.handed()["run"])
    work_off(desk.root, run)
    desk.done(desk.start("results", run, "--out", str(desk.out)))
    secret = desk.secret.encode()
    files = [path for path in desk.root.rglob("*") if path.is_file() and path != desk.token]
    assert len(files) > 10
    assert [path for path in files if secret in path.read_bytes()] == []
