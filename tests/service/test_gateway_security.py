"""Whoever is not meant to see, does not: tokens, other clients, paths, secrets, hostile words."""

from __future__ import annotations

import http.client
import re
import socket
import sqlite3
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.service.door import (
    CSV,
    Gateway,
    add_client,
    checksum,
    command,
    create,
    document,
    document_of,
    events_of,
    make_certificate,
    put,
    send_all,
    serving,
    store_of,
    wait_for,
    work_off,
)

from holdfast._base.ids import RunId
from holdfast.intake.tokens import make_token

TEXT = b"shop,amount\na,1\n"
OPEN_PATHS = {"/healthz", "/readyz", "/metrics", "/openapi.json"}
VERBS = ("get", "put", "post", "delete", "patch", "head", "options")


@dataclass(frozen=True)
class Scene:
    """A gateway with a client that has a finished run, and another client that has none."""

    gateway: Gateway
    north: str
    east: str
    run: str


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    root = tmp_path_factory.mktemp("security")
    north, east = add_client(root, "north"), add_client(root, "east", request_rate=100_000)
    with serving(root, "--producer", "requests") as gateway, gateway.client(north) as client:
        run = create(client)
        send_all(client, run)
        work_off(root, run)
        assert document(client, run)["state"] == "DONE"
        yield Scene(gateway, north, east, run)


def operations(scene: Scene) -> list[tuple[str, str]]:
    """Every verb on every path of the OpenAPI page, those that it does not list too."""
    paths = httpx.get(f"{scene.gateway.url}/openapi.json").json()["paths"]
    assert len(paths) >= 11
    return [(verb, path) for path in paths for verb in VERBS]


def ask(client: httpx.Client, verb: str, path: str, run: str) -> httpx.Response:
    """Send a request that is right in all but its run."""
    filled = path.format(run=run, table="sales", ordinal=1, series="large")
    headers = {"Idempotency-Key": "k", **CSV, "Holdfast-Checksum": checksum(TEXT)}
    content = TEXT if "chunks" in path else b'{"count": 1}' if path.endswith("/end") else b""
    return client.request(verb, filled, headers=headers, content=content)


def run_of_north(scene: Scene, state: str) -> str:
    """Return a run to which the requests of `ask` would do something, as far as its state lets."""
    with scene.gateway.client(scene.north) as north:
        kind = "external" if state == "external" else "spark"
        run = create(north, f"matrix-{state}", kind=kind)
        if state == "DONE":
            send_all(north, run)
            work_off(scene.gateway.root, run)
        else:
            assert put(north, run, b"shop,title\na,x\n", table="shops").status_code == 201
        if state == "SWEPT":
            north.post(f"/v1/runs/{run}/cancel")
            with store_of(scene.gateway.root) as shared:
                fence = shared.store.take_lease("delivery", "test")
                assert shared.store.move_run(fence, RunId(run), expected="CANCELLED", to="SWEPT")
    return run


def traces_of(scene: Scene, run: str) -> dict[str, list[Any]]:
    """Return everything that the store and the disk have of a run."""
    tables = (
        "SELECT name FROM sqlite_master AS t WHERE type = 'table'"
        " AND EXISTS (SELECT 1 FROM pragma_table_info(t.name) AS c WHERE c.name = 'run_id')"
    )
    with closing(sqlite3.connect(scene.gateway.state / "store.sqlite3")) as store:
        found = {
            table: store.execute(f"SELECT * FROM {table} WHERE run_id = ?", (run,)).fetchall()
            for (table,) in store.execute(tables).fetchall()
        }
    paths = sorted(path for path in scene.gateway.state.rglob("*") if run in path.parts)
    return {**found, "files": [(path, path.stat().st_size) for path in paths]}


RUN = "/v1/runs/{run}"
CHUNK, END = f"{RUN}/tables/{{table}}/chunks/{{ordinal}}", f"{RUN}/tables/{{table}}/end"
CANCEL, RESULTS = f"{RUN}/cancel", f"{RUN}/results"
SERIES = f"{RESULTS}/{{series}}"
READS = {RUN, RESULTS, SERIES, f"{SERIES}/{{ordinal}}", f"{SERIES}/files/{{ordinal}}"}


@pytest.mark.parametrize(
    ("state", "paths"),
    [
        ("OPEN", {RUN, RESULTS, CHUNK, END, CANCEL}),
        ("external", {RUN, RESULTS, CHUNK, END, CANCEL}),
        ("DONE", READS),
        ("SWEPT", set()),
    ],
)
def test_no_request_tells_another_clients_run_from_one_that_never_was(
    scene: Scene, state: str, paths: set[str]
) -> None:
    """The matrix of every path and verb: same status, same words, same headers, and no trace.

    Behind it the owner asks the same, and hears something else: `paths` succeed.
    """
    run, never = run_of_north(scene, state), "0" * 32
    before, refused = traces_of(scene, run), []
    assert before["run"]
    assert before["chunk"]
    with scene.gateway.client(scene.east) as east:
        for verb, path in operations(scene):
            if "{run}" not in path:
                continue
            theirs, nobodys = ask(east, verb, path, run), ask(east, verb, path, never)
            assert theirs.status_code in (404, 405), (verb, path)
            assert theirs.status_code == nobodys.status_code, (verb, path)
            assert theirs.text.replace(run, never) == nobodys.text, (verb, path)
            assert set(theirs.headers) == set(nobodys.headers), (verb, path)
            if theirs.status_code == 404:
                refused.append((verb, path))
        assert east.get("/v1/runs").json() == {"runs": [], "next": None}
        assert east.get("/v1/runs", params={"after": run}).json() == {"runs": [], "next": None}
    assert traces_of(scene, run) == before, "somebody else changed it"
    with scene.gateway.client(scene.north) as north:
        refused.sort(key=lambda one: one[1] == CANCEL)  # ends an open run, so it is the last
        # An event stream of a run that goes on has no end.
        asked = [one for one in refused if not one[1].endswith("/events")]
        own = {path: ask(north, verb, path, run).status_code for verb, path in asked}
    assert len(own) == len(asked) == len(refused) - 1 >= 8
    assert {path for path, status in own.items() if status < 300} == paths, own
    if state == "SWEPT":
        assert set(own.values()) == {410}


def test_the_same_key_of_another_client_is_another_run(scene: Scene) -> None:
    with scene.gateway.client(scene.east) as east:
        mine = create(east, "k")
        assert mine != scene.run
        assert east.post(f"/v1/runs/{mine}/cancel").status_code == 200


@pytest.mark.parametrize("kind", ["none", "garbage", "altered", "unknown", "basic", "id-only"])
def test_without_a_token_that_stands_nothing_is_answered(scene: Scene, kind: str) -> None:
    north = scene.north
    headers = {
        "none": {},
        "garbage": {"Authorization": "Bearer x"},
        "altered": {"Authorization": f"Bearer {north[:-1]}{'0' if north[-1] != '0' else '1'}"},
        "unknown": {"Authorization": f"Bearer {make_token()[0]}"},
        "basic": {"Authorization": f"Basic {north}"},
        "id-only": {"Authorization": f"Bearer {north.rpartition('_')[0]}_"},
    }[kind]
    with httpx.Client(base_url=scene.gateway.url, headers=headers) as client:
        for verb, path in operations(scene):
            if path in OPEN_PATHS:
                continue
            answer = ask(client, verb, path, scene.run)
            assert answer.status_code in (401, 405), (verb, path)
            if answer.status_code == 401 and verb != "head":
                assert answer.json()["code"] == "TOKEN_REFUSED"
                assert answer.headers["www-authenticate"] == "Bearer"


def test_a_replaced_token_ends_after_its_grace_and_a_revoked_one_at_once(tmp_path: Path) -> None:
    """By the command line, while a gateway serves: nothing is started again."""
    added = command(tmp_path, "client", "add", "north", "--state", "state", "--json")
    assert added.returncode == 0, added.stderr
    first = re.search(r"hf_\w+", added.stdout)
    assert first
    with serving(tmp_path) as gateway:

        def status(token: str) -> int:
            with gateway.client(token) as client:
                return client.get("/v1/runs").status_code

        def rotate(*more: str) -> str:
            done = command(tmp_path, "client", "rotate", "north", "--state", "state", *more)
            assert done.returncode == 0, done.stderr
            found = re.search(r"hf_\w+", done.stdout)
            assert found
            return found[0]

        assert status(first[0]) == 200
        second = rotate("--grace-s", "3")
        assert (status(first[0]), status(second)) == (200, 200)
        wait_for(lambda: status(first[0]) == 401, "the end of the grace")
        assert status(second) == 200
        third = rotate()
        assert (status(second), status(third)) == (401, 200)
        revoked = command(tmp_path, "client", "revoke", "north", "--state", "state")
        assert revoked.returncode == 0
        assert [status(token) for token in (first[0], second, third)] == [401] * 3
        listed = command(tmp_path, "client", "list", "--state", "state")
        assert "revoked" in listed.stdout


@pytest.mark.parametrize("end", ["revoked", "replaced"])
def test_a_stream_that_is_open_ends_with_its_token(tmp_path: Path, end: str) -> None:
    """At the next look, which any change or beat would have followed."""
    token = add_client(tmp_path, "north")
    with serving(tmp_path) as gateway, gateway.client(token) as client:
        run = create(client)
        with client.stream("GET", f"/v1/runs/{run}/events") as watching:
            events = events_of(watching.iter_lines())
            assert next(events)["state"] == "OPEN"
            with store_of(tmp_path) as shared:
                if end == "revoked":
                    assert shared.store.revoke_client("north")
                else:
                    assert shared.store.rotate_token("north", make_token()[1], grace_ms=1)
            assert list(events) == []


@pytest.mark.parametrize(
    "place",
    [
        "../../../etc/passwd",
        "..%2f..%2f..%2fetc%2fpasswd",
        "%2e%2e%2f%2e%2e",
        "a%00b",
        "%e2%80%aeabc",
        "x" * 5000,
        "CON",
        ".",
        "~",
        "a%5cb",
    ],
)
def test_no_id_is_a_path(scene: Scene, place: str) -> None:
    """As run, table, series, ordinal and sender, raw on the wire."""
    before = sorted(scene.gateway.root.rglob("*"))
    paths = [
        f"/v1/runs/{place}",
        f"/v1/runs/{scene.run}/tables/{place}/chunks/1",
        f"/v1/runs/{scene.run}/tables/sales/chunks/{place}",
        f"/v1/runs/{scene.run}/tables/sales/chunks/1?sender={place}",
        f"/v1/runs/{scene.run}/results/{place}",
        f"/v1/runs/{scene.run}/results/{place}/1",
        f"/v1/runs/{scene.run}/results/large/{place}",
    ]
    for path in paths:
        verb = "PUT" if "chunks" in path else "GET"
        line = http.client.HTTPConnection("127.0.0.1", scene.gateway.port, timeout=30)
        headers = {"Authorization": f"Bearer {scene.north}", **CSV}
        line.request(verb, path, body=TEXT, headers=headers | {"Holdfast-Checksum": checksum(TEXT)})
        answer = line.getresponse()
        body = answer.read()
        line.close()
        assert answer.status in (400, 404, 405), (path[:100], answer.status)
        assert b"root:" not in body
    assert sorted(scene.gateway.root.rglob("*")) == before


def test_two_lengths_or_a_length_and_pieces_are_no_request(scene: Scene) -> None:
    """Requests that two servers would read differently are refused, not guessed at."""
    heads = [
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Content-Length: -1",
        "Content-Length: 5, 6",
        "Transfer-Encoding: chunked, gzip",
    ]
    for head in heads:
        with socket.create_connection(("127.0.0.1", scene.gateway.port), 30) as line:
            text = f"POST /v1/runs HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n0\r\n\r\nGET /healthz"
            line.sendall(text.encode())
            answer = line.recv(65536)
            assert answer.startswith(b"HTTP/1.1 4"), (head, answer)


def test_a_secret_stands_in_no_log_error_or_store(tmp_path: Path) -> None:
    """A token with which everything was tried, right and wrong, is nowhere in the state."""
    added = command(tmp_path, "client", "add", "north", "--state", "state")
    found = re.search(r"hf_\w+", added.stdout)
    assert found
    token = found[0]
    secret = token.rpartition("_")[2]
    answers = []
    with serving(tmp_path) as gateway, gateway.client(token) as client:
        run = create(client)
        send_all(client, run)
        answers.append(put(client, run, b"other", ordinal=1))
        answers.append(client.get(f"/v1/runs/{token}"))
        answers.append(client.get("/v1/runs", params={"after": token}))
        answers.append(client.post("/v1/runs", headers={"Idempotency-Key": "a b"}))
        answers.append(client.get("/nothing", headers={"X-Token": token}))
        with gateway.client(f"{token}x") as wrong:
            answers.append(wrong.get("/v1/runs"))
        line = socket.create_connection(("127.0.0.1", gateway.port), 30)
        with line:
            line.sendall(f"BROKEN {token}\r\n\r\n".encode())
            answers.append(httpx.Response(400, content=line.recv(65536)))
        gateway.stop()
    told = [answer.text for answer in answers]
    assert all(answer.status_code >= 400 for answer in answers)
    # What a client wrote into a path is its own; the secret is in no header of ours and no file.
    assert all(secret not in text for text in told[:1] + told[3:])
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "gateway.log" for path in files)
    assert any(path.name.startswith("store.sqlite3") for path in files)
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
    listed = command(tmp_path, "client", "list", "--state", "state", "--json")
    assert secret not in listed.stdout


def test_an_error_of_the_machine_tells_no_path(scene: Scene) -> None:
    """A piece whose file is gone: the operator reads where, the client only that."""
    with scene.gateway.client(scene.north) as north:
        results = north.get(f"/v1/runs/{scene.run}/results").json()["series"]
        url = next(piece["url"] for one in results for piece in one["pieces"])
        with store_of(scene.gateway.root) as shared:
            found = shared.store.read_results(RunId(scene.run))
            piece = next(piece for one in found for piece in one.pieces)
            path = shared.directory.root / piece.location
        hidden = path.rename(path.with_suffix(".hidden"))
        try:
            answer = north.get(url)
        finally:
            hidden.rename(path)
        assert answer.status_code == 500
        assert answer.json()["code"] == "DAMAGED"
        assert str(scene.gateway.root) not in answer.text
        assert str(path) in scene.gateway.log()


@pytest.mark.parametrize(
    ("listen", "more", "wanted"),
    [
        ("0.0.0.0:0", (), "unprotected"),
        ("[::]:0", (), "unprotected"),
        ("example.org:80", (), "unprotected"),
        ("127.0.0.1", (), "127.0.0.1:8080"),
        ("127.0.0.1:99999", (), "127.0.0.1:8080"),
        ("127.0.0.1:0", ("--tls-cert", "x"), "Give both"),
        ("127.0.0.1:0", ("--tls-cert", "x", "--tls-key", "y"), "no file x"),
    ],
)
def test_a_dangerous_or_wrong_address_is_refused_before_anything_is_made(
    tmp_path: Path, listen: str, more: tuple[str, ...], wanted: str
) -> None:
    place = ("--pipeline", "tests.service.toy:pipe", "--state", "state", "--listen", listen)
    done = command(tmp_path, "gateway", *place, *more)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert wanted in done.stderr
    assert not (tmp_path / "state").exists()


def test_tls_serves_the_same(tmp_path: Path) -> None:
    token = add_client(tmp_path, "north")
    tls = make_certificate(tmp_path)
    with serving(tmp_path, *tls, "--listen", "0.0.0.0:0") as gateway:
        assert gateway.url.startswith("https://")
        known = ssl.create_default_context(cafile=tmp_path / "cert.pem")
        url, headers = f"https://127.0.0.1:{gateway.port}", {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=url, headers=headers, verify=known) as client:
            run = create(client)
            data = document_of(3_000_000)
            assert put(client, run, data).status_code == 201
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{gateway.port}/healthz")
        assert "Traceback" not in gateway.log()


def test_others_may_listen_in_only_if_the_operator_says_so(tmp_path: Path) -> None:
    with serving(tmp_path, "--listen", "0.0.0.0:0", "--insecure-listen") as gateway:
        answer = httpx.get(f"http://127.0.0.1:{gateway.port}/healthz")
        assert answer.status_code == 200
        wait_for(lambda: "warning" in gateway.log(), "the warning")


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@dataclass(frozen=True)
class Owner:
    """A client that may ask as often as it likes, and a run of its own that is DONE."""

    gateway: Gateway
    token: str
    done: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def open_run(self) -> str:
        """Return a fresh run: what is tried on it may end it."""
        with self.gateway.client(self.token) as client:
            return create(client, make_token()[1].token_id)


@pytest.fixture(scope="module")
def owner(scene: Scene) -> Owner:
    root = scene.gateway.root
    token = add_client(root, "west", request_rate=100_000, open_runs=100_000)
    with scene.gateway.client(token) as client:
        run = create(client)
        send_all(client, run)
        work_off(root, run)
        assert document(client, run)["state"] == "DONE"
    return Owner(scene.gateway, token, run)


def page_of(owner: Owner) -> dict[tuple[str, str], Any]:
    """Return the operations of the OpenAPI page, by verb and path."""
    schema = schemathesis.openapi.from_url(f"{owner.gateway.url}/openapi.json")
    found = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    return {(one.method.upper(), one.path): one for one in found}


PART = {"Range": "bytes=1-2"}
SENT = {"media_type": "text/csv", "body": TEXT.decode()}
SUM = {"Holdfast-Checksum": checksum(TEXT)}
COUNT = {"media_type": "application/json", "body": {"count": 1}}
NEW = {"media_type": "application/json", "body": {}}
KEY = {"Idempotency-Key": "right"}
RIGHT: list[tuple[str, str, str, int, dict[str, str], dict[str, Any]]] = [
    ("GET", "/healthz", "", 200, {}, {}),
    ("GET", "/readyz", "", 200, {}, {}),
    ("GET", "/metrics", "", 200, {}, {}),
    ("GET", "/v1/tables", "", 200, {}, {}),
    ("POST", "/v1/runs", "", 201, KEY, NEW),
    ("POST", "/v1/runs", "", 200, KEY, NEW),
    ("GET", "/v1/runs", "", 200, {}, {}),
    ("GET", RUN, "open", 200, {}, {}),
    ("GET", RUN, "done", 200, {}, {}),
    ("GET", f"{RUN}/events", "done", 200, {}, {}),
    ("PUT", CHUNK, "open", 201, SUM, SENT),
    ("PUT", CHUNK, "open", 200, SUM, SENT),
    ("PUT", END, "open", 201, {}, COUNT),
    ("PUT", END, "open", 200, {}, COUNT),
    ("GET", RUN, "open", 200, {}, {}),
    ("GET", f"{RUN}/results", "open", 200, {}, {}),
    ("GET", f"{RUN}/results", "done", 200, {}, {}),
    ("GET", f"{RUN}/results/{{series}}", "done", 200, {}, {}),
    ("GET", f"{RUN}/results/{{series}}/{{ordinal}}", "done", 200, {}, {}),
    ("GET", f"{RUN}/results/{{series}}/{{ordinal}}", "done", 206, PART, {}),
    ("GET", f"{RUN}/results/{{series}}/files/{{ordinal}}", "done", 200, {}, {}),
    ("GET", f"{RUN}/results/{{series}}/files/{{ordinal}}", "done", 206, PART, {}),
    ("POST", f"{RUN}/cancel", "open", 200, {}, {}),
]


def test_what_is_right_is_answered_as_the_openapi_page_says(owner: Owner) -> None:
    """Every status of success that the page lists is met, and has the shape that it lists."""
    page, met = page_of(owner), set()
    runs = {"open": owner.open_run(), "done": owner.done, "": ""}
    for verb, path, run, status, headers, body in RIGHT:
        places = {"run": runs[run], "table": "sales", "series": "large", "ordinal": 1}
        named = {name: value for name, value in places.items() if f"{{{name}}}" in path}
        case = page[verb, path].Case(path_parameters=named, headers=headers, **body)
        answer = case.call(headers=owner.headers | headers, timeout=30)
        assert answer.status_code == status, (verb, path, answer.text)
        # A stream is text to the page, and one event after another to its reader.
        case.validate_response(answer, checks=CHECKS[:-1] if "events" in path else CHECKS)
        met.add((verb, path, status))
    listed = {
        (verb, path, int(status))
        for (verb, path), operation in page.items()
        for status in operation.definition.raw["responses"]
        if status.startswith("2")
    }
    assert met == listed


def make_right(owner: Owner, case: Any, turn: int) -> None:
    """Replace what chance never meets, so that all that is left to chance decides.

    The run is an open one or a DONE one in turn. A chunk fits its table and its checksum, and a
    piece is there, every other time that it could be.
    """
    is_done = bool(turn % 2)
    real: dict[str, Any] = {"run": owner.done if is_done else owner.open_run()}
    real |= {"table": "sales", "series": "large"}
    if is_done and turn % 4 == 1 and case.path.startswith(RESULTS):
        real["ordinal"] = 1
    known = [name for name in real if name in case.path_parameters]
    case.path_parameters.update({name: real[name] for name in known})
    if case.path == CHUNK and turn % 4 == 0:
        case.body, case.media_type = SENT["body"], SENT["media_type"]
        case.headers.update(SUM)


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_requests_made_of_the_openapi_page_meet_only_what_it_says(
    owner: Owner, mode: schemathesis.GenerationMode
) -> None:
    """Schemathesis, bounded and seeded: no 5xx, no status, type or shape that the page lacks.

    Of right requests, each operation meets some that succeed; else it would be refused at its
    door, whatever stands behind.
    """
    failures: list[str] = []
    tried = 0
    succeeded: Counter[tuple[str, str]] = Counter()
    for (verb, path), operation in page_of(owner).items():
        if path.endswith("/events"):
            continue

        @given(case=operation.as_strategy(mode))
        @settings(
            max_examples=25,
            derandomize=True,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def check(case: Any) -> None:
            nonlocal tried
            tried += 1
            if mode is schemathesis.GenerationMode.POSITIVE and "{run}" in case.path:
                make_right(owner, case, tried)
            answer = case.call(headers=owner.headers, timeout=30)
            case.validate_response(answer, checks=CHECKS)
            succeeded[case.method, case.path] += answer.status_code < 300

        try:
            check()
        except Unsatisfiable:
            assert path in OPEN_PATHS  # nothing in it can be wrong
        except Exception as error:  # all of them are told at once
            failures.append(f"{verb} {path}: {error}")
    assert failures == []
    assert tried >= 150
    if mode is schemathesis.GenerationMode.POSITIVE:
        asked = [one for one in page_of(owner) if not one[1].endswith("/events")]
        assert [one for one in asked if not succeeded[one]] == []


def test_hostile_numbers_of_clients_make_no_one_wait(scene: Scene) -> None:
    """A thousand tokens that open nothing, from many lines at once: a real client is served."""
    stop = threading.Event()

    def hammer() -> None:
        with httpx.Client(base_url=scene.gateway.url) as nobody:
            while not stop.is_set():
                nobody.get("/v1/runs", headers={"Authorization": f"Bearer {make_token()[0]}"})

    threads = [threading.Thread(target=hammer, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        with scene.gateway.client(scene.north) as north:
            for _ in range(5):
                assert document(north, scene.run)["state"] == "DONE"
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
