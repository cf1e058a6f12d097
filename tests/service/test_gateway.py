"""What the HTTP door answers, by a real process: docs/http-api.md is the agreement."""

from __future__ import annotations

import csv
import io
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.crash.workloads import CHUNKS, expected
from tests.service.door import (
    CSV,
    ENDS,
    Gateway,
    add_client,
    checksum,
    create,
    document,
    end,
    events_of,
    put,
    send_all,
    serving,
    store_of,
    work_off,
)

from holdfast._base.ids import RunId
from holdfast.queries import verify
from holdfast.store.result_rows import PlaceKind

TEXT = b"shop,amount\na,1\n"
OTHER = b"shop,amount\na,2\n"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with serving(tmp_path_factory.mktemp("gateway")) as found:
        yield found


_numbers = iter(range(10**6))


@pytest.fixture
def client(gateway: Gateway) -> Iterator[httpx.Client]:
    """A client of its own for each test."""
    with gateway.client(add_client(gateway.root, f"c{next(_numbers)}")) as found:
        yield found


def code_of(answer: httpx.Response, status: int) -> Any:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body["message"]
    return body["code"]


def answers(client: httpx.Client, run: str) -> dict[str, Counter[tuple[str, ...]]]:
    found = {}
    for series in expected():
        text = client.get(f"/v1/runs/{run}/results/{series}").text
        rows = list(csv.reader(io.StringIO(text)))
        found[series] = Counter(tuple(row) for row in rows[1:])
    return found


def test_a_run_is_created_once_and_found_again_by_its_key(client: httpx.Client) -> None:
    first = client.post("/v1/runs", headers={"Idempotency-Key": "march"}, json={})
    again = client.post("/v1/runs", headers={"Idempotency-Key": "march"}, content=b"")
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    body = first.json()
    assert (body["state"], body["key"], body["kind"]) == ("OPEN", "march", "spark")
    senders = [(one["table"], one["sender"]) for one in body["tables"]]
    assert senders == [("sales", ""), ("sales", "b"), ("notes", ""), ("shops", "")]
    other = client.post(
        "/v1/runs", headers={"Idempotency-Key": "march"}, json={"senders": {"notes": ["x"]}}
    )
    assert code_of(other, 409) == "RUN_CONFLICT"
    assert other.json()["run"] == body["run"]


@pytest.mark.parametrize(
    "body",
    [
        {"senders": {"nothing": ["a"]}},
        {"senders": {"doubled": ["a"]}},
        {"senders": {"sales": []}},
        {"senders": {"sales": ["a", "a"]}},
        {"senders": {"sales": ["../a"]}},
        {"senders": {"sales": ["a\x00"]}},
        {"senders": {"sales": ["\u202eabc"]}},
        {"senders": {"sales": [f"s{number}" for number in range(1001)]}},
        {"senders": "sales"},
        {"kind": "other"},
        {"kind": "external"},
        {"more": 1},
        [],
        7,
    ],
    ids=lambda body: str(body)[:40],
)
def test_a_wrong_declaration_creates_nothing(client: httpx.Client, body: Any) -> None:
    answer = client.post("/v1/runs", headers={"Idempotency-Key": "k"}, json=body)
    assert code_of(answer, 400) == "USAGE_INVALID"
    assert client.get("/v1/runs").json() == {"runs": [], "next": None}


@pytest.mark.parametrize("key", ["", "a b", "a/b", "..", "x" * 65, "a%00"])
def test_a_wrong_key_creates_nothing(client: httpx.Client, key: str) -> None:
    answer = client.post("/v1/runs", headers={"Idempotency-Key": key}, json={})
    assert code_of(answer, 400) == "USAGE_INVALID"


def test_a_body_that_is_no_json_is_refused(client: httpx.Client) -> None:
    for body in (b"{", b"\xff\xfe", b"[" * 20000, b"NaN,"):
        answer = client.post("/v1/runs", headers={"Idempotency-Key": "k"}, content=body)
        assert code_of(answer, 400) == "USAGE_INVALID"
    large = client.post("/v1/runs", headers={"Idempotency-Key": "k"}, content=b" " * 70000)
    assert code_of(large, 413) == "BODY_TOO_LARGE"


def test_runs_are_listed_in_pages(client: httpx.Client) -> None:
    runs = [create(client, f"k{number}") for number in range(5)]
    first = client.get("/v1/runs", params={"limit": 3}).json()
    assert [run["run"] for run in first["runs"]] == runs[:3]
    rest = client.get("/v1/runs", params={"limit": 3, "after": first["next"]}).json()
    assert [run["run"] for run in rest["runs"]] == runs[3:]
    assert rest["next"] is None


def test_a_page_ends_early_after_many_senders(client: httpx.Client) -> None:
    """Each sender of each run is looked up: a page must not take long, whatever its limit."""
    names = [f"s{number}" for number in range(900)]
    runs = [create(client, f"k{number}", senders={"sales": names}) for number in range(4)]
    first = client.get("/v1/runs").json()
    assert [run["run"] for run in first["runs"]] == runs[:3]
    rest = client.get("/v1/runs", params={"after": first["next"]}).json()
    assert ([run["run"] for run in rest["runs"]], rest["next"]) == (runs[3:], None)


def test_the_tables_that_a_run_takes_are_listed(gateway: Gateway, client: httpx.Client) -> None:
    body = client.get("/v1/tables").json()
    assert body["pipeline"] == document(client, create(client))["pipeline"]
    tables = {one.pop("table"): one for one in body["tables"]}
    assert set(tables) == {"sales", "notes", "shops"}, "not what a stage produces"
    said = {"format": "csv", "columns": ["shop", "amount"], "optional": False, "whole": False}
    assert tables["sales"] == said
    assert tables["shops"]["whole"] is True
    assert httpx.get(f"{gateway.url}/v1/tables").status_code == 401


def test_a_chunk_is_bound_once_and_acknowledged_again(
    gateway: Gateway, client: httpx.Client
) -> None:
    run = create(client)
    first, again = put(client, run, TEXT), put(client, run, TEXT)
    assert (first.status_code, again.status_code) == (201, 200)
    facts = {"table": "sales", "sender": "", "ordinal": 1}
    facts |= {"size": len(TEXT), "checksum": checksum(TEXT)}
    assert first.json() == again.json() == facts
    (sales, *_) = document(client, run)["tables"]
    assert (sales["received"], sales["received_ordinals"], sales["announced"]) == (1, "1", None)
    with store_of(gateway.root) as shared:
        (bound,) = shared.store.list_chunks(RunId(run))
        assert list(shared.store.list_topics())
    assert Path(gateway.state / "blobs" / bound.location).read_bytes() == TEXT


def test_a_conflict_names_both_and_changes_nothing(gateway: Gateway, client: httpx.Client) -> None:
    run = create(client)
    put(client, run, TEXT)
    before = document(client, run)
    answer = put(client, run, OTHER)
    assert code_of(answer, 409) == "CHUNK_CONFLICT"
    assert (answer.json()["stored"], answer.json()["sent"]) == (checksum(TEXT), checksum(OTHER))
    assert document(client, run) == before
    blobs = list((gateway.state / "blobs" / "chunks" / run).rglob("*-*"))
    assert len(blobs) == 1


def test_missing_ordinals_are_shown_as_ranges(client: httpx.Client) -> None:
    run = create(client)
    for ordinal in (1, 2, 5, 9):
        assert put(client, run, TEXT, ordinal=ordinal).status_code == 201
    assert end(client, run, 12).status_code == 201
    (sales, *_) = document(client, run)["tables"]
    assert sales["received_ordinals"] == "1-2,5,9"
    assert sales["missing"] == "3-4,6-8,10-12"
    assert (sales["announced"], sales["received"], sales["applied"]) == (12, 4, 0)


def test_an_end_is_recorded_once_and_another_count_refused(client: httpx.Client) -> None:
    run = create(client)
    put(client, run, TEXT, ordinal=3)
    below = end(client, run, 2)
    assert code_of(below, 409) == "END_CONFLICT"
    assert [end(client, run, 3).status_code for _ in range(2)] == [201, 200]
    other = end(client, run, 4)
    assert code_of(other, 409) == "END_CONFLICT"
    assert (other.json()["known"], other.json()["sent"]) == (3, 4)
    beyond = put(client, run, TEXT, ordinal=4)
    assert code_of(beyond, 409) == "CHUNK_CONFLICT"


@pytest.mark.parametrize("count", [-1, 2**63, 1.5, "3", None, True, 10**30])
def test_a_count_that_is_none_is_refused(client: httpx.Client, count: Any) -> None:
    run = create(client)
    answer = client.put(f"/v1/runs/{run}/tables/sales/end", json={"count": count})
    assert code_of(answer, 400) == "USAGE_INVALID"
    assert document(client, run)["tables"][0]["announced"] is None


@pytest.mark.parametrize("ordinal", ["0", "-1", str(2**63), str(10**40), "x", "1.5", "%00", "1e3"])
def test_an_ordinal_that_is_none_is_refused(client: httpx.Client, ordinal: str) -> None:
    run = create(client)
    path = f"/v1/runs/{run}/tables/sales/chunks/{ordinal}"
    headers = {**CSV, "Holdfast-Checksum": checksum(TEXT)}
    assert code_of(client.put(path, content=TEXT, headers=headers), 400) == "USAGE_INVALID"
    assert document(client, run)["tables"][0]["received"] == 0


def test_the_largest_numbers_are_taken(client: httpx.Client) -> None:
    run = create(client)
    assert put(client, run, TEXT, ordinal=2**63 - 1).status_code == 201
    assert end(client, run, 2**63 - 1).status_code == 201
    assert document(client, run)["tables"][0]["missing"] == f"1-{2**63 - 2}"


def test_bytes_that_are_not_those_that_were_hashed_are_refused(
    gateway: Gateway, client: httpx.Client
) -> None:
    run = create(client)
    answer = put(client, run, TEXT, headers={"Holdfast-Checksum": checksum(OTHER)})
    assert code_of(answer, 400) == "CHECKSUM_WRONG"
    assert answer.json()["arrived"] == checksum(TEXT)
    assert list((gateway.state / "blobs" / "chunks" / run).rglob("*-*")) == []
    assert put(client, run, TEXT).status_code == 201


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Holdfast-Checksum": "short"}, 400, "USAGE_INVALID"),
        ({"Content-Type": "application/json"}, 415, "FORMAT_REFUSED"),
        ({"Content-Type": ""}, 415, "FORMAT_REFUSED"),
        ({"Content-Encoding": "gzip"}, 415, "FORMAT_REFUSED"),
        ({"Content-Encoding": "br"}, 415, "FORMAT_REFUSED"),
        ({"Content-Type": "application/vnd.apache.parquet"}, 422, "DOCUMENT_REFUSED"),
    ],
)
def test_a_chunk_with_a_wrong_head_is_refused(
    client: httpx.Client, headers: dict[str, str], status: int, code: str
) -> None:
    run = create(client)
    assert code_of(put(client, run, TEXT, headers=headers), status) == code
    assert document(client, run)["tables"][0]["received"] == 0


@pytest.mark.parametrize("text", [b"a,1\n", b"amount,shop\n1,a\n", b"shop\na\n"])
def test_a_chunk_without_its_header_is_refused_at_once(
    gateway: Gateway, client: httpx.Client, text: bytes
) -> None:
    run = create(client)
    answer = put(client, run, text)
    assert code_of(answer, 422) == "DOCUMENT_REFUSED"
    assert "shop,amount" in answer.json()["message"]
    assert document(client, run)["tables"][0]["received"] == 0
    assert list((gateway.state / "blobs" / "chunks" / run).rglob("*-*")) == []
    assert put(client, run, TEXT).status_code == 201


def test_a_sender_or_table_that_was_not_declared_is_refused(client: httpx.Client) -> None:
    run = create(client)
    assert code_of(put(client, run, TEXT, table="nothing"), 400) == "USAGE_INVALID"
    assert code_of(put(client, run, TEXT, table="doubled"), 400) == "USAGE_INVALID"
    assert code_of(put(client, run, TEXT, sender="nobody"), 400) == "USAGE_INVALID"
    assert code_of(end(client, run, 1, sender="nobody"), 400) == "USAGE_INVALID"


def test_a_whole_run_from_chunks_to_results(gateway: Gateway, client: httpx.Client) -> None:
    """Every chunk, one of them twice, in an order that is none; then what the API shows."""
    run = create(client)
    codes = send_all(client, run)
    assert sorted(set(codes)) == [200, 201]
    assert codes.count(200) == 1
    assert client.get(f"/v1/runs/{run}/results/report").status_code == 404
    work_off(gateway.root, run)
    assert document(client, run)["state"] == "DONE"
    results = client.get(f"/v1/runs/{run}/results").json()
    assert results["final"]
    assert [one["series"] for one in results["series"]] == sorted(expected())
    assert answers(client, run) == expected()
    assert verify(gateway.state).findings == ()
    for series in expected():
        exported = (gateway.root / "out" / f"{series}.csv").read_bytes()
        assert client.get(f"/v1/runs/{run}/results/{series}").content == exported


def test_pieces_have_checksums_and_ranges(gateway: Gateway, client: httpx.Client) -> None:
    run = create(client)
    send_all(client, run)
    work_off(gateway.root, run)
    results = client.get(f"/v1/runs/{run}/results").json()["series"]
    pieces = [piece for series in results for piece in series["pieces"] if piece["size"] > 2]
    assert pieces
    for piece in pieces:
        whole = client.get(piece["url"])
        assert checksum(whole.content) == piece["checksum"]
        assert whole.headers["etag"] == f'"{piece["checksum"]}"'
        assert whole.headers["holdfast-checksum"] == piece["checksum"]
        part = client.get(piece["url"], headers={"Range": "bytes=1-2"})
        assert (part.status_code, part.content) == (206, whole.content[1:3])
        beyond = client.get(piece["url"], headers={"Range": "bytes=999999-"})
        assert beyond.status_code == 416
    assert code_of(client.get(f"/v1/runs/{run}/results/large/999"), 404) == "PIECE_UNKNOWN"
    assert code_of(client.get(f"/v1/runs/{run}/results/nothing"), 404) == "PIECE_UNKNOWN"


def test_a_result_in_parquet_is_fetched_by_its_files(
    gateway: Gateway, client: httpx.Client
) -> None:
    """The files, in order, are the parts of the export; as one document there is none."""
    run = create(client)
    send_all(client, run)
    work_off(gateway.root, run, "parquet")
    results = {one["series"]: one for one in client.get(f"/v1/runs/{run}/results").json()["series"]}
    for series in ("large", "report"):
        files = results[series]["files"]
        parts = sorted((gateway.root / "out" / f"{series}.parquet").iterdir())
        assert len(files) == len(parts) > 1
        for file, part in zip(files, parts, strict=True):
            whole = client.get(file["url"])
            assert whole.content == part.read_bytes()
            assert whole.headers["content-type"] == "application/vnd.apache.parquet"
            assert (file["format"], file["checksum"]) == ("parquet", checksum(whole.content))
            part_of_it = client.get(file["url"], headers={"Range": "bytes=4-9"})
            assert (part_of_it.status_code, part_of_it.content) == (206, whole.content[4:10])
        assert code_of(client.get(f"/v1/runs/{run}/results/{series}"), 404) == "PIECE_UNKNOWN"
    assert results["report"]["pieces"][0]["format"] == "parquet"
    assert results["report"]["columns"] == ["title", "total", "n"]
    assert client.get(f"/v1/runs/{run}/results/texts").status_code == 200


def test_a_piece_that_was_altered_never_arrives_as_a_whole(
    gateway: Gateway, client: httpx.Client
) -> None:
    """At equal length, pieces and files of a series alike; the operator is told where."""
    run = create(client)
    send_all(client, run)
    work_off(gateway.root, run)
    with store_of(gateway.root) as shared:
        kept = [
            (f"/v1/runs/{run}/results/{one.series}/{place}{piece.ordinal}", piece)
            for one in shared.store.read_results(RunId(run))
            for place, pieces in (("", one.pieces), ("files/", one.ordered or ()))
            for piece in pieces
            if piece.size and piece.place is not PlaceKind.BLOB
        ]
        places = {shared.directory.root / piece.location for _, piece in kept}
    assert any("files/" in url for url, _ in kept)
    whole = {path: path.read_bytes() for path in places}
    try:
        for path, data in whole.items():
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        for url, _ in kept:
            with pytest.raises(httpx.RemoteProtocolError):
                client.get(url)
    finally:
        for path, data in whole.items():
            path.write_bytes(data)
    assert all(checksum(client.get(url).content) == piece.checksum for url, piece in kept)
    assert all(str(path) in gateway.log() for path in places)


def test_a_finished_run_acknowledges_what_it_has_and_takes_nothing_more(
    gateway: Gateway, client: httpx.Client
) -> None:
    run = create(client)
    send_all(client, run)
    work_off(gateway.root, run)
    assert set(send_all(client, run)) == {200}
    assert code_of(put(client, run, TEXT, ordinal=99), 410) == "RUN_GONE"
    table, sender, ordinal, _ = CHUNKS[0]
    conflict = put(client, run, OTHER, table=table, sender=sender, ordinal=ordinal)
    assert code_of(conflict, 409) == "CHUNK_CONFLICT"
    assert code_of(end(client, run, 9), 409) == "END_CONFLICT"
    assert code_of(client.post(f"/v1/runs/{run}/cancel"), 409) == "RUN_CLOSED"


def test_a_cancelled_run_takes_nothing_and_has_no_results(
    gateway: Gateway, client: httpx.Client
) -> None:
    run = create(client)
    put(client, run, TEXT)
    first, again = (client.post(f"/v1/runs/{run}/cancel") for _ in range(2))
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json()["state"] == "CANCELLED"
    assert put(client, run, TEXT).status_code == 200
    assert code_of(put(client, run, TEXT, ordinal=2), 410) == "RUN_GONE"
    assert code_of(end(client, run, 1), 410) == "RUN_GONE"
    assert client.get(f"/v1/runs/{run}/results").json()["series"] == []


def test_everything_about_a_swept_run_is_gone(gateway: Gateway, client: httpx.Client) -> None:
    run = create(client)
    put(client, run, TEXT)
    client.post(f"/v1/runs/{run}/cancel")
    with store_of(gateway.root) as shared:
        fence = shared.store.take_lease("delivery", "test")
        assert shared.store.move_run(fence, RunId(run), expected="CANCELLED", to="SWEPT")
    asked = [
        client.get(f"/v1/runs/{run}"),
        client.get(f"/v1/runs/{run}/events"),
        client.get(f"/v1/runs/{run}/results"),
        client.get(f"/v1/runs/{run}/results/large"),
        client.get(f"/v1/runs/{run}/results/large/1"),
        client.post(f"/v1/runs/{run}/cancel"),
        put(client, run, TEXT),
        end(client, run, 1),
    ]
    assert [code_of(answer, 410) for answer in asked] == ["RUN_GONE"] * 8


def test_events_tell_every_change_and_end_with_the_run(
    gateway: Gateway, client: httpx.Client
) -> None:
    run = create(client)
    with client.stream("GET", f"/v1/runs/{run}/events", headers={"Last-Event-ID": "41"}) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "id: 42"
        documents = events_of(lines)
        assert next(documents)["tables"][0]["received"] == 0
        put(client, run, TEXT)
        assert next(documents)["tables"][0]["received"] == 1
        client.post(f"/v1/runs/{run}/cancel")
        assert [found["state"] for found in documents] == ["CANCELLED"]


def test_a_run_says_for_how_long_nothing_came(gateway: Gateway, client: httpx.Client) -> None:
    """In delivery's time; who follows it is told each minute of that, and at once what comes."""
    run = create(client)
    with (
        store_of(gateway.root) as shared,
        client.stream("GET", f"/v1/runs/{run}/events") as stream,
    ):
        fence = shared.store.take_lease("delivery", "test")
        documents = events_of(stream.iter_lines())
        assert next(documents)["idle_s"] == 0
        shared.store.watch_runs(fence)
        for seconds in (59, 2):
            shared.store.add_elapsed(fence, seconds * 1000)
        assert next(documents)["idle_s"] == 61
        assert document(client, run)["idle_s"] == 61
        assert client.get("/v1/runs").json()["runs"][0]["idle_s"] == 61
        put(client, run, TEXT)
        found = next(documents)
        assert (found["tables"][0]["received"], found["idle_s"]) == (1, 0)


def test_a_duplicate_with_expect_is_answered_before_its_body(
    gateway: Gateway, client: httpx.Client
) -> None:
    """The sender asks first, and never has to send."""
    run = create(client)
    put(client, run, TEXT)
    for data, status in ((TEXT, 200), (OTHER, 409)):
        with socket.create_connection(("127.0.0.1", gateway.port), 30) as line:
            head = [
                f"PUT /v1/runs/{run}/tables/sales/chunks/1 HTTP/1.1",
                "Host: x",
                f"Authorization: {client.headers['authorization']}",
                "Content-Type: text/csv",
                f"Holdfast-Checksum: {checksum(data)}",
                f"Content-Length: {len(data)}",
                "Expect: 100-continue",
            ]
            line.sendall("\r\n".join([*head, "", ""]).encode())
            answer = b"".join(iter(lambda: line.recv(65536), b""))
            assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer
            assert b"100 Continue" not in answer


def test_paths_and_verbs_that_are_none_are_refused_by_name(client: httpx.Client) -> None:
    assert code_of(client.get("/nothing"), 404) == "PATH_UNKNOWN"
    assert code_of(client.delete("/v1/runs"), 405) == "PATH_UNKNOWN"
    assert code_of(client.get("/v1/runs/"), 404) == "PATH_UNKNOWN"


def test_health_needs_no_token(gateway: Gateway) -> None:
    with httpx.Client(base_url=gateway.url) as nobody:
        assert nobody.get("/healthz").text == "ok\n"
        assert nobody.get("/readyz").text == "ready\n"
        metrics = nobody.get("/metrics").text
        assert "holdfast_gateway_requests_total" in metrics
        assert 'holdfast_runs{state="OPEN"}' in metrics
        assert nobody.get("/openapi.json").json()["info"]["title"] == "Holdfast"


@pytest.mark.parametrize(
    "header", ["Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Proto", "X-Real-IP"]
)
def test_metrics_are_not_for_whom_a_proxy_asks(gateway: Gateway, header: str) -> None:
    """A proxy on this machine: whichever of the usual headers it sends, it is not this machine."""
    answer = httpx.get(f"{gateway.url}/metrics", headers={header: "x"})
    assert code_of(answer, 401) == "TOKEN_REFUSED"


def test_a_run_that_waits_for_an_end_is_counted_until_it_is_said(tmp_path: Path) -> None:
    """By the gateway's own metrics, which an operator's alert reads."""
    token = add_client(tmp_path, "north")
    with serving(tmp_path) as gateway, gateway.client(token) as client:

        def waiting() -> dict[str, float]:
            lines = [line.split() for line in client.get("/metrics").text.splitlines()]
            return {one[0]: float(one[1]) for one in lines if "holdfast_runs_waiting" in one[0]}

        def counted(runs: int) -> dict[str, float]:
            return {"holdfast_runs_waiting": runs, "holdfast_runs_waiting_for_end": runs}

        assert waiting() == counted(0)
        run = create(client)
        for table, sender, ordinal, text in CHUNKS:
            put(client, run, text.encode(), table=table, sender=sender, ordinal=ordinal)
        for table, sender, count in ENDS:
            assert waiting() == counted(1)
            assert end(client, run, count, table, sender).status_code == 201
        assert waiting() == counted(0)


def test_a_sender_of_a_declared_name_fills_its_table(client: httpx.Client) -> None:
    run = create(client, "k", senders={"sales": ["north", "south"], "notes": ["x"]})
    tables = [(one["table"], one["sender"]) for one in document(client, run)["tables"]]
    assert tables == [("sales", "north"), ("sales", "south"), ("notes", "x"), ("shops", "")]
    assert put(client, run, TEXT, sender="south").status_code == 201
    assert code_of(put(client, run, TEXT), 400) == "USAGE_INVALID"


def test_an_external_run_is_created_where_there_is_a_producer(tmp_path: Path) -> None:
    """Its chunks are applied when they are bound: nobody here works on them."""
    token = add_client(tmp_path, "north")
    with serving(tmp_path, "--producer", "requests") as gateway, gateway.client(token) as client:
        run = create(client, kind="external")
        made = document(client, run)
        assert (made["kind"], made["state"]) == ("external", "OPEN")
        assert put(client, run, TEXT).status_code == 201
        (sales, *_) = document(client, run)["tables"]
        assert (sales["received"], sales["applied"]) == (1, 1)
        spark = client.post("/v1/runs", headers={"Idempotency-Key": "k"}, json={})
        assert code_of(spark, 409) == "RUN_CONFLICT"
        for table, sender, count in [("sales", "", 1), *[(t, s, 0) for t, s, _ in ENDS[1:]]]:
            assert end(client, run, count, table, sender).status_code == 201
        assert document(client, run)["state"] == "FORWARDING"


def test_files_are_for_their_owner_only(gateway: Gateway, client: httpx.Client) -> None:
    run = create(client)
    put(client, run, TEXT)
    written = ("holdfast.lock", "store.sqlite3*", "parts", "parts/*", "blobs", "blobs/**/*")
    found = [path for pattern in written for path in gateway.state.glob(pattern)]
    assert len(found) > 5
    wrong = [path for path in found if path.stat().st_mode & 0o077]
    assert wrong == []


def test_ends_are_all_that_the_toy_needs() -> None:
    """The list of ENDs fits the documents, or no run here would ever be complete."""
    counts = Counter((table, sender) for table, sender, _, _ in {c[:3]: c for c in CHUNKS}.values())
    assert {(table, sender): n for table, sender, n in ENDS} == dict(counts)
