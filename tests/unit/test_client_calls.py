"""The client against the API in memory, over a network that loses requests and answers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from tests.unit.fake_server import (
    QUICK,
    TOKEN,
    FakeServer,
    fine,
    lost_answer,
    lost_request,
    refusal,
    status,
)

from holdfast.cli import submit as cli_submit
from holdfast.client.answers import PieceInfo, RunInfo, SeriesInfo
from holdfast.client.client import Client
from holdfast.client.download import Wanted, header_line, wanted_of
from holdfast.client.patience import Patience
from holdfast.client.submit import Plan, Sent, Submitted, submit
from holdfast.errors import (
    ChecksumWrong,
    ChunkConflict,
    Damaged,
    HeaderWrong,
    HoldfastError,
    RunOver,
    RunStopped,
    RunUnfinished,
    ServerRefused,
    ServerUnreachable,
    SubmissionChanged,
    UsageInvalid,
)
from holdfast.intake.tables import TableSpec

NOBODY = Patience(silent_s=0.01, busy_s=0.01, first_s=0.001, most_s=0.002)


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


def ignore(sent: Sent) -> None:
    del sent


def written(folder: Path, rows: int = 20) -> Path:
    folder.mkdir()
    (folder / "sales.csv").write_text("shop,n\n" + "".join(f"a,{n}\n" for n in range(rows)))
    (folder / "shops.csv").write_text("shop\na\n")
    return folder


def handed(server: FakeServer, folder: Path, **more: Any) -> Submitted:
    plan = Plan(folder, chunk_bytes=20, connections=more.pop("connections", 2), **more)
    with server.client() as client:
        return submit(client, plan, ignore)


def test_a_chunk_that_a_server_names_is_told_by_its_file(
    server: FakeServer, tmp_path: Path
) -> None:
    folder = written(tmp_path / "data")
    (folder / "sales_b.csv").write_text("")
    done = handed(server, folder)
    assert done.empty_files == [folder / "sales_b.csv"]
    second = next(one for one in done.documents if (one.table, one.ordinal) == ("sales", 2))
    origin = done.origin_of("[BAD_ROWS] chunk 2 of table sales: 1 bad row(s), the first at line 2")
    assert origin == f"chunk 2 of table sales is {folder / 'sales.csv'} from byte {second.start} on"
    assert done.origin_of("chunk 99 of table sales") == done.origin_of("it was cancelled") == ""


def test_who_waits_for_a_run_that_fails_is_told_the_file(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = handed(server, written(tmp_path / "data"))
    reason = "[BAD_ROWS] chunk 1 of table shops: line 2"

    def failed(client: Client, run: str) -> RunInfo:
        raise RunOver(run=run, state="FAILED", reason=reason)

    monkeypatch.setattr(cli_submit, "followed", failed)
    with server.client() as client, pytest.raises(RunOver) as over:
        cli_submit._fetch(client, done, None)
    path = tmp_path / "data" / "shops.csv"
    assert over.value.reason == f"{reason}. chunk 1 of table shops is {path} from byte 0 on"
    assert over.value.state == "FAILED"


def sales_of(server: FakeServer) -> list[str]:
    (run,) = server.runs.values()
    names = sorted((ordinal for table, _, ordinal in run.chunks if table == "sales"))
    texts = [run.chunks["sales", "", ordinal].decode() for ordinal in names]
    assert all(text.startswith("shop,n\n") for text in texts)
    return [line for text in texts for line in text.splitlines()[1:]]


def test_what_is_lost_on_the_way_is_sent_again_and_counts_once(server: FakeServer) -> None:
    with server.client() as client:
        run = client.create_run("k").run
        server.faults.extend([lost_request, lost_answer, status(503), status(429)])
        assert client.put_chunk(run, "sales", 1, b"a\n1\n") is False
        assert client.put_end(run, "sales", 1) is True
        assert client.put_end(run, "sales", 1) is False
        assert client.state(run).tables[0].received == 1
    assert server.runs[run].chunks == {("sales", "", 1): b"a\n1\n"}


def test_a_server_that_stays_away_is_named(server: FakeServer) -> None:
    server.faults.extend([lost_request] * 1000)
    with server.client(NOBODY) as client, pytest.raises(ServerUnreachable) as refused:
        client.create_run("k")
    assert "127.0.0.1" in refused.value.url
    assert TOKEN not in str(refused.value)


def test_a_server_that_stays_busy_is_told_with_its_own_words(server: FakeServer) -> None:
    server.faults.extend([status(429)] * 1000)
    with server.client(NOBODY) as client, pytest.raises(ServerRefused, match="later"):
        client.create_run("k")


def test_a_conflict_is_the_servers_own_error_and_is_not_tried_again(server: FakeServer) -> None:
    with server.client() as client:
        run = client.create_run("k").run
        client.put_chunk(run, "sales", 1, b"a\n1\n")
        before = len(server.requests)
        with pytest.raises(ChunkConflict) as refused:
            client.put_chunk(run, "sales", 1, b"a\n2\n")
    assert refused.value.ordinal == 1
    assert len(server.requests) == before + 1


def test_a_redirect_is_not_followed_with_the_token(server: FakeServer) -> None:
    server.faults.append(status(302, location="http://elsewhere.example/"))
    with server.client() as client, pytest.raises(ServerRefused, match="elsewhere"):
        client.state("a")
    assert len(server.requests) == 1


def test_stop_ends_a_call_that_waits(server: FakeServer) -> None:
    with server.client(Patience(first_s=60.0, most_s=60.0)) as client:
        server.faults.append(lost_request)
        client.stop()
        with pytest.raises(RunStopped):
            client.state("a")


def test_a_token_file_that_holds_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("\n")
    with pytest.raises(UsageInvalid, match=str(path)):
        Client("http://127.0.0.1:1", token_file=path)


def test_one_token_is_needed(tmp_path: Path) -> None:
    for more in ({}, {"token": "a", "token_file": "b"}, {"token_file": tmp_path / "none"}):
        with pytest.raises(UsageInvalid):
            Client("http://127.0.0.1:1", **more)


def test_a_directory_is_handed_in_whole_with_its_ends(server: FakeServer, tmp_path: Path) -> None:
    done = handed(server, written(tmp_path / "in"))
    (run,) = server.runs.values()
    assert sales_of(server) == [f"a,{n}" for n in range(20)]
    assert run.ends == {("sales", ""): done.chunks - 1, ("shops", ""): 1}
    assert (done.chunks_sent, done.size_sent) == (done.chunks, done.size)
    assert done.size == sum(len(data) for data in run.chunks.values())


def test_whole_tables_and_their_ends_come_before_all_else(
    server: FakeServer, tmp_path: Path
) -> None:
    """All of their senders' ENDs: a server may work off nothing of the others before."""
    server.tables, server.whole = {"sales": [""], "shops": ["a", "b"]}, {"shops"}
    run = handed(server, written(tmp_path / "in")).info.run
    put = [path.split("/")[5:7] for method, path in server.requests if method == "PUT"]
    whole = [["shops", "chunks"], ["shops", "end"], ["shops", "end"]]
    sales = [["sales", "chunks"]] * (len(put) - 4)
    assert put == [*whole, *sales, ["sales", "end"]]
    assert server.runs[run].ends["shops", "b"] == 0


def test_a_server_that_does_not_say_which_tables_are_whole_is_sent_all_the_same(
    server: FakeServer, tmp_path: Path
) -> None:
    server.whole = None
    done = handed(server, written(tmp_path / "in"))
    assert server.runs[done.info.run].ends == {("sales", ""): done.chunks - 1, ("shops", ""): 1}
    assert [path.endswith("/end") for _, path in server.requests[-2:]] == [True, True]


def test_over_a_bad_network_every_chunk_arrives_once(server: FakeServer, tmp_path: Path) -> None:
    server.faults.extend([lost_answer, lost_request, fine, status(500)] * 30)
    done = handed(server, written(tmp_path / "in"))
    assert sales_of(server) == [f"a,{n}" for n in range(20)]
    assert server.runs[done.info.run].ends["sales", ""] == done.chunks - 1


def test_a_later_process_sends_only_what_is_missing(server: FakeServer, tmp_path: Path) -> None:
    """As after a SIGKILL: some chunks are there, no END is; nothing was kept here."""
    folder = written(tmp_path / "in")
    first = handed(server, folder)
    (run,) = server.runs.values()
    lost = sorted(run.chunks)[::2]
    for one in lost:
        del run.chunks[one]
    run.ends.clear()
    server.stored.clear()
    done = handed(server, folder)
    assert done.info.run == first.info.run
    assert sorted(server.stored) == sorted((table, ordinal) for table, _, ordinal in lost)
    assert done.chunks_sent == len(lost)
    assert sales_of(server) == [f"a,{n}" for n in range(20)]
    assert run.ends == {("sales", ""): done.chunks - 1, ("shops", ""): 1}


def test_a_file_changed_under_the_same_key_is_refused_by_name(
    server: FakeServer, tmp_path: Path
) -> None:
    """Also where no chunk of it is left to send, which the server could refuse."""
    folder = written(tmp_path / "in")
    handed(server, folder, key="k")
    before = dict(next(iter(server.runs.values())).chunks)
    path = folder / "shops.csv"
    for content in ("shop\nb\n", "shop\n"):
        path.write_text(content)
        with pytest.raises(SubmissionChanged) as refused:
            handed(server, folder, key="k")
        assert "shops" in refused.value.path
    assert next(iter(server.runs.values())).chunks == before


def test_a_chunk_is_asked_for_without_being_sent(server: FakeServer) -> None:
    with server.client() as client:
        run = client.create_run("k").run
        known = hashlib.sha256(b"a\n1\n").hexdigest()
        assert client.has_chunk(run, "sales", 1, known) is False
        assert server.runs[run].chunks == {}
        client.put_chunk(run, "sales", 1, b"a\n1\n")
        assert client.has_chunk(run, "sales", 1, known) is True
        with pytest.raises(ChunkConflict):
            client.has_chunk(run, "sales", 1, "00" * 32)


def garbled(server: FakeServer, request: httpx.Request) -> httpx.Response | None:
    """What the network did to a body shows by its checksum alone."""
    if request.method != "PUT" or "/chunks/" not in request.url.path:
        return None
    body = request.read()
    return server.answer(
        httpx.Request("PUT", request.url, headers=request.headers, content=body[:-1] + b"?")
    )


def test_a_chunk_that_arrives_garbled_is_sent_again(server: FakeServer, tmp_path: Path) -> None:
    server.faults.extend([fine, fine, garbled, fine, garbled])
    handed(server, written(tmp_path / "in"), connections=1)
    assert sales_of(server) == [f"a,{n}" for n in range(20)]
    server.runs.clear()
    server.faults.extend([fine, fine, garbled, garbled, garbled])
    with pytest.raises(ChecksumWrong):
        handed(server, tmp_path / "in", connections=1)


def test_a_chunk_that_is_too_large_is_told_with_its_file(
    server: FakeServer, tmp_path: Path
) -> None:
    def large(server: FakeServer, request: httpx.Request) -> httpx.Response:
        return refusal(413, "BODY_TOO_LARGE", limit=10)

    server.faults.extend([fine, fine, large])
    with pytest.raises(
        UsageInvalid, match=r"sales\.csv .* 10 may be. Give a smaller --chunk-bytes"
    ):
        handed(server, written(tmp_path / "in"), connections=1)


def test_what_is_refused_before_it_is_sent_leaves_no_run(
    server: FakeServer, tmp_path: Path
) -> None:
    folder = written(tmp_path / "in")
    server.columns = {"sales": ["shop", "amount"]}
    with pytest.raises(HeaderWrong, match=r"sales\.csv"):
        handed(server, folder)
    server.columns = {"sales": ["shop", "n"]}
    (folder / "strange.csv").write_text("a\n1\n")
    with pytest.raises(UsageInvalid, match=r"strange\.csv"):
        handed(server, folder)
    (folder / "strange.csv").unlink()
    (folder / "shops.csv").unlink()
    with pytest.raises(UsageInvalid, match="no file for table shops"):
        handed(server, folder)
    (folder / "shops.parquet").write_bytes(b"PAR1 no footer PAR1")
    with pytest.raises(UsageInvalid, match=r"shops\.parquet: it is no Parquet document"):
        handed(server, folder)
    pq.write_table(pa.table({"shop": ["a"]}), folder / "shops.parquet")
    server.columns["shops"] = ["shop", "city"]
    with pytest.raises(UsageInvalid, match=r"shops\.parquet: it has no column city"):
        handed(server, folder)
    (folder / "shops.parquet").unlink()
    server.formats["shops"] = "binaryFile"
    with pytest.raises(UsageInvalid, match="table shops is made of binary files"):
        handed(server, folder)
    server.formats["shops"], server.columns["shops"] = "parquet", []
    (folder / "shops.csv").write_text("shop\na\n")
    with pytest.raises(UsageInvalid, match=r"shops\.csv is csv, and table shops takes Parquet"):
        handed(server, folder)
    (folder / "shops.csv").unlink()
    assert server.runs == {}
    assert handed(server, folder, empty=["shops"]).chunks > 0


def test_what_can_be_known_here_is_told_before_the_server_is_asked(
    server: FakeServer, tmp_path: Path
) -> None:
    """It may be away, and is asked again for two minutes."""
    with pytest.raises(UsageInvalid, match=r"input directory .*nowhere does not exist"):
        handed(server, tmp_path / "nowhere")
    here = [TableSpec("sales", "csv", "shop string, n int", segment=1)]
    with pytest.raises(UsageInvalid, match=r"shops\.csv belongs to none of the tables sales"):
        handed(server, written(tmp_path / "in"), tables=here, pipeline="shop")
    here.append(TableSpec("cities", "csv", "city string", segment=1))
    with pytest.raises(UsageInvalid, match="no file for table cities"):
        handed(server, tmp_path / "in", tables=here, ignore_unknown=True)
    assert server.requests == []


def test_headers_are_checked_by_what_the_server_takes_not_by_an_older_pipeline_here(
    server: FakeServer, tmp_path: Path
) -> None:
    folder = written(tmp_path / "in")
    server.columns = {"sales": ["shop", "amount"]}
    schemas = {"sales": "shop string, n int", "shops": "shop string"}
    here = [TableSpec(name, "csv", schema, segment=1) for name, schema in schemas.items()]
    with pytest.raises(HeaderWrong, match="amount"):
        handed(server, folder, tables=here, pipeline="shop")
    assert server.runs == {}


def test_a_table_that_the_run_was_created_without_is_told_with_its_file(
    server: FakeServer, tmp_path: Path
) -> None:
    """The pipeline got a table since."""
    folder = written(tmp_path / "in")
    handed(server, folder, key="k")
    server.tables = {**server.tables, "cities": [""]}
    (folder / "cities.csv").write_text("city\nOslo\n")
    with pytest.raises(SubmissionChanged, match=r"cities\.csv belongs to table cities"):
        handed(server, folder, key="k")


def test_a_refused_document_is_told_with_its_file_and_its_run(
    server: FakeServer, tmp_path: Path
) -> None:
    def refuse(server: FakeServer, request: httpx.Request) -> httpx.Response:
        facts = {"table": "sales", "ordinal": 1, "what": "it is no CSV", "remedy": "Mend it."}
        return refusal(422, "DOCUMENT_REFUSED", **facts)

    server.faults.extend([fine, fine, refuse])
    with pytest.raises(UsageInvalid, match=r"sales\.csv: it is no CSV") as caught:
        handed(server, written(tmp_path / "in"), connections=1)
    (run,) = server.runs
    assert f"holdfast cancel {run}" in str(caught.value)
    server.faults.extend([fine, fine, refuse])
    with pytest.raises(UsageInvalid, match="Keep the file's name, then run the same") as caught:
        handed(server, tmp_path / "in", connections=1, key="k")
    *_, run = server.runs
    assert "another number of chunks" in str(caught.value)
    assert f"holdfast cancel {run}, asked as this was, and give another --key" in str(caught.value)


def test_a_file_that_is_split_after_it_was_refused_needs_another_key(
    server: FakeServer, tmp_path: Path
) -> None:
    """What the refusal says: under the old key the other files' chunks have moved."""
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("sales_a", "sales_b"):
        (folder / f"{name}.csv").write_text(f"shop,n\n{name},1\n")
    (folder / "shops.csv").write_text("shop\na\n")
    handed(server, folder, key="k")
    (run,) = server.runs.values()
    del run.chunks["sales", "", 1]
    run.ends.clear()
    (folder / "sales_a.csv").rename(folder / "sales_a1.csv")
    (folder / "sales_a2.csv").write_text("shop,n\nc,1\n")
    with pytest.raises(SubmissionChanged):
        handed(server, folder, key="k")
    assert handed(server, folder, key="l").chunks == 4


def test_a_server_that_does_not_answer_is_told_of_once(server: FakeServer, tmp_path: Path) -> None:
    told: list[str] = []
    server.faults.extend([lost_request] * 3)
    with Client(
        "http://127.0.0.1:1", token=TOKEN, transport=server, patience=QUICK, on_wait=told.append
    ) as client:
        submit(client, Plan(written(tmp_path / "in")), ignore)
    (line,) = told
    assert line.startswith("http://127.0.0.1:1 does not answer")


def test_without_a_key_changed_files_are_another_run(server: FakeServer, tmp_path: Path) -> None:
    folder = written(tmp_path / "in")
    first = handed(server, folder)
    (folder / "shops.csv").write_text("shop\nb\n")
    assert handed(server, folder).info.run != first.info.run


def test_the_first_sender_has_the_files_and_the_others_end_at_once(
    server: FakeServer, tmp_path: Path
) -> None:
    server.tables = {"sales": ["north", "south"], "shops": [""]}
    done = handed(server, written(tmp_path / "in"))
    ends = server.runs[done.info.run].ends
    assert ends["sales", "south"] == 0
    assert ends["sales", "north"] == done.chunks - 1


def test_another_pipeline_is_refused(server: FakeServer, tmp_path: Path) -> None:
    with pytest.raises(UsageInvalid, match="pipeline shop, not coffee"):
        handed(server, written(tmp_path / "in"), pipeline="coffee")


def test_a_finished_run_is_not_sent_again_and_a_failed_one_is_told(
    server: FakeServer, tmp_path: Path
) -> None:
    folder = written(tmp_path / "in")
    handed(server, folder)
    (run,) = server.runs.values()
    run.state = "DONE"
    assert handed(server, folder).chunks_sent == 0
    run.state, run.error = "FAILED", "a stage failed."
    with pytest.raises(RunOver, match="a stage failed"):
        handed(server, folder)


def test_progress_ends_at_all_of_it_and_counts_nothing_twice(
    server: FakeServer, tmp_path: Path
) -> None:
    seen: list[Sent] = []
    server.faults.extend([fine, lost_answer, status(500)])
    with server.client() as client:
        submit(client, Plan(written(tmp_path / "in"), chunk_bytes=20), seen.append)
    assert all(one.size <= one.size_all for one in seen)
    assert (seen[-1].size, seen[-1].chunks) == (seen[-1].size_all, seen[-1].chunks_all)


def finished(server: FakeServer, pieces: list[bytes]) -> str:
    with server.client() as client:
        run = client.create_run("k").run
    server.runs[run].state = "DONE"
    server.runs[run].series = {"q1": (["a", 'b"c'], pieces), "q2": (["n"], [])}
    return run


WHOLE = [b"1,2\n", b"3,4\n5,6\n", b"7,8\n"]


def fetched(server: FakeServer, run: str, out: Path) -> bytes:
    with server.client() as client:
        files = client.download(run, out)
    assert sorted(path.name for path in out.iterdir()) == ["q1.csv", "q2.csv"]
    assert files["q2.csv"].read_bytes() == b"n\n"
    return files["q1.csv"].read_bytes()


def asked_pieces(server: FakeServer) -> list[str]:
    paths = [path for _, path in server.requests if "/results/" in path]
    server.requests.clear()
    return ["/".join(path.split("/")[-3::2]) for path in paths]


def test_a_result_is_its_header_and_its_pieces(server: FakeServer, tmp_path: Path) -> None:
    run = finished(server, WHOLE)
    right = b'a,"b""c"\n' + b"".join(WHOLE)
    assert fetched(server, run, tmp_path / "out") == right
    assert asked_pieces(server) == ["q1/1", "q1/2", "q1/3"]
    assert fetched(server, run, tmp_path / "out") == right
    assert asked_pieces(server) == [], "what stands is not fetched again"
    for altered in (right[:-1] + b"x", right + b"x", right[:-1], b"x" + right[1:]):
        (tmp_path / "out" / "q1.csv").write_bytes(altered)
        assert fetched(server, run, tmp_path / "out") == right


PARTS = [b"PAR1 one PAR1", b"PAR1 two PAR1"]
NAMED = {"part-00001.parquet": PARTS[0], "part-00002.parquet": PARTS[1]}


def fetched_parts(server: FakeServer, run: str, out: Path) -> dict[str, bytes]:
    with server.client() as client:
        files = client.download(run, out)
    assert sorted(path.name for path in out.iterdir()) == ["q1.parquet", "q2.csv"]
    assert files["q1.parquet"] == out / "q1.parquet"
    return {path.name: path.read_bytes() for path in files["q1.parquet"].iterdir()}


def test_a_result_in_parquet_is_a_directory_of_its_pieces(
    server: FakeServer, tmp_path: Path
) -> None:
    server.result_formats["q1"] = "parquet"
    run, out = finished(server, PARTS), tmp_path / "out"
    assert fetched_parts(server, run, out) == NAMED
    assert asked_pieces(server) == ["q1/1", "q1/2"]
    assert fetched_parts(server, run, out) == NAMED
    assert asked_pieces(server) == [], "what stands is not fetched again"
    (out / "q1.parquet" / "part-00002.parquet").write_bytes(b"PAR1 too PAR1")
    assert fetched_parts(server, run, out) == NAMED
    (out / "q1.parquet" / "part-00003.parquet").write_bytes(b"one more")
    assert fetched_parts(server, run, out) == NAMED


def test_a_directory_is_there_when_it_is_whole_and_goes_on_where_it_was_cut(
    server: FakeServer, tmp_path: Path
) -> None:
    server.result_formats["q1"] = "parquet"
    run, out = finished(server, PARTS), tmp_path / "out"
    server.faults.extend([fine, fine, status(403)])
    with server.client() as client, pytest.raises(HoldfastError):
        client.download(run, out)
    (temporary,) = out.iterdir()
    assert temporary.name.startswith(".tmp-")
    server.requests.clear()
    assert fetched_parts(server, run, out) == NAMED
    assert asked_pieces(server) == ["q1/2"]


def test_a_producers_parquet_is_laid_out_the_same(tmp_path: Path) -> None:
    """It has no files beside its pieces; of a series without any there is nothing to write."""
    piece = PieceInfo(1, 4, "sum", None, "parquet")
    (wanted,) = wanted_of(SeriesInfo("q1", (), False, (piece,), None), "/results")
    assert wanted == Wanted("q1.parquet", (), (piece,), "/results/q1", in_parts=True)
    assert wanted_of(SeriesInfo("q1", (), False, (), None), "/results") == []


@pytest.mark.parametrize("ordinals", [(1, 1), (2, 1), (1, 3), ("x",)])
def test_pieces_that_do_not_follow_one_another_are_refused(ordinals: tuple[Any, ...]) -> None:
    """Two of one name would be one file, and nobody would miss the other."""
    pieces = tuple(PieceInfo(one, 4, "sum", None, "parquet") for one in ordinals)
    with pytest.raises(Damaged):
        wanted_of(SeriesInfo("q1", (), False, pieces, None), "/results")


def test_a_directory_of_other_files_is_not_replaced(server: FakeServer, tmp_path: Path) -> None:
    server.result_formats["q1"] = "parquet"
    run, theirs = finished(server, PARTS), tmp_path / "out" / "q1.parquet" / "notes.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("theirs")
    with server.client() as client, pytest.raises(UsageInvalid, match=r"notes\.txt"):
        client.download(run, tmp_path / "out")
    assert theirs.read_text() == "theirs"


@pytest.mark.parametrize("cut", range(30))
def test_a_fetch_goes_on_wherever_it_was_cut(server: FakeServer, tmp_path: Path, cut: int) -> None:
    """A temporary file of any length, right or not: the same file comes of it in the end."""
    run = finished(server, WHOLE)
    right = b'a,"b""c"\n' + b"".join(WHOLE)
    out = tmp_path / "out"
    server.faults.extend([fine, status(403)])
    with server.client() as client, pytest.raises(HoldfastError):
        client.download(run, out)
    (part,) = out.glob(".tmp-*")
    for content in (right[:cut], right[: cut // 2] + b"!" + right[cut // 2 + 1 : cut]):
        part.write_bytes(content)
        (out / "q1.csv").unlink(missing_ok=True)
        server.requests.clear()
        assert fetched(server, run, out) == right
    part.write_bytes(right[:cut])
    (out / "q1.csv").unlink()
    server.requests.clear()
    assert fetched(server, run, out) == right
    whole = [cut >= 9 + 4, cut >= 9 + 4 + 8, cut >= len(right)]
    wanted = [f"q1/{n}" for n, there in enumerate(whole, 1) if not there]
    assert asked_pieces(server) == wanted


def broken(server: FakeServer, request: httpx.Request) -> httpx.Response:
    def body() -> Any:
        yield server.answer(request).content[:2]
        raise httpx.ReadError("reset", request=request)

    status_code = 206 if "range" in request.headers else 200
    return httpx.Response(status_code, content=body())


def test_a_piece_that_breaks_off_is_fetched_from_there_on(
    server: FakeServer, tmp_path: Path
) -> None:
    run = finished(server, WHOLE)
    server.faults.extend([fine, fine, broken, broken, broken])
    assert fetched(server, run, tmp_path / "out").endswith(b"".join(WHOLE))


def test_only_the_rest_of_a_piece_is_asked_for(server: FakeServer, tmp_path: Path) -> None:
    """And a server that sends all of it again all the same does no harm."""
    run = finished(server, [b"1,2\n3,4\n"])
    ranges: list[str | None] = []

    def noted(server: FakeServer, request: httpx.Request) -> None:
        ranges.append(request.headers.get("range"))

    def whole(server: FakeServer, request: httpx.Request) -> httpx.Response:
        ranges.append(request.headers.get("range"))
        return httpx.Response(200, content=b"1,2\n3,4\n")

    for again in (noted, whole):
        server.faults.extend([fine, broken, again])
        out = tmp_path / again.__name__
        assert fetched(server, run, out).endswith(b"\n1,2\n3,4\n")
    assert ranges == ["bytes=2-", "bytes=2-"]
    assert len(asked_pieces(server)) == 4, "no piece came with wrong bytes"


def wrong(server: FakeServer, request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, content=b"0,0\n")


def test_wrong_bytes_are_fetched_again_and_then_refused(server: FakeServer, tmp_path: Path) -> None:
    run = finished(server, WHOLE)
    server.faults.extend([fine, wrong, wrong])
    assert fetched(server, run, tmp_path / "out").endswith(b"".join(WHOLE))
    server.faults.extend([fine, wrong, wrong, wrong])
    with server.client() as client, pytest.raises(Damaged):
        client.download(run, tmp_path / "other")
    assert not (tmp_path / "other" / "q1.csv").exists()


def test_a_series_cannot_name_another_place(server: FakeServer, tmp_path: Path) -> None:
    run = finished(server, WHOLE)
    for name in ("../q", "a/b", ".hidden", ""):
        server.runs[run].series = {name: ([], [])}
        with server.client() as client, pytest.raises(UsageInvalid):
            client.download(run, tmp_path / "out")


def test_results_that_are_not_final_are_not_fetched(server: FakeServer, tmp_path: Path) -> None:
    run = finished(server, WHOLE)
    for state, error in (("OPEN", RunUnfinished), ("FAILED", RunOver), ("CANCELLED", RunOver)):
        server.runs[run].state = state
        with server.client() as client, pytest.raises(error):
            client.download(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def event(server: FakeServer, run: str, state: str, number: int) -> list[str]:
    document = {**server.runs[run].document(), "state": state}
    return [f"id: {number}", f"data: {json.dumps(document)}", ""]


def test_events_go_on_over_another_connection(server: FakeServer) -> None:
    run = finished(server, [])
    opened, done = event(server, run, "OPEN", 1), event(server, run, "DONE", 2)
    server.events.extend([[*opened, ": beat", ""], [*opened, "data: cut"], [*opened, *done]])
    server.faults.extend([fine, lost_request, status(503)])
    with server.client() as client:
        seen = [info.state for info in client.events(run)]
    assert seen == ["OPEN", "OPEN", "OPEN", "DONE"]


def test_waiting_ends_with_the_run(server: FakeServer) -> None:
    run = finished(server, [])
    with server.client() as client:
        server.events.append(event(server, run, "DONE", 1))
        assert client.wait(run).state == "DONE"
        server.events.append(event(server, run, "ABANDONED", 2))
        with pytest.raises(RunOver):
            client.wait(run)


def test_the_header_is_quoted_as_exports_quote_it() -> None:
    from holdfast.delivery.export import header_line as exported

    for columns in (["a"], ["a b", 'c"d', "e,f"], ["x\ny"]):
        assert header_line(columns) == exported(columns)
    assert header_line([]) == b""
