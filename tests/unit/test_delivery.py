"""The loop of delivery in one process: external results, notices, waiting, clean-up."""

from __future__ import annotations

import json
import socket
from itertools import pairwise
from pathlib import Path

import pytest
from tests.receiver import receiving
from tests.unit.delivery_scene import (
    CLIENT,
    REQUESTS,
    RUN,
    DeliveryScene,
    delivering,
    framed,
)

from holdfast._base.clock import pause
from holdfast._base.ids import START, RunId, digest
from holdfast.blobs.local import LocalBlobs
from holdfast.config import Config
from holdfast.delivery import sweep
from holdfast.delivery.figures import figures, waiting_runs
from holdfast.delivery.log_queues import LogQueues
from holdfast.delivery.messages import (
    KIND_HEADER,
    KIND_PAYLOAD,
    Header,
    Payload,
    Request,
    decode,
    payload_of,
)
from holdfast.delivery.ports import request_for
from holdfast.delivery.receive import Receiver, piece_blob
from holdfast.delivery.signing import is_signed, signing_secret
from holdfast.delivery.troubles import Troubles
from holdfast.delivery.webhook import FAILING_THREADS, THREADS
from holdfast.errors import Fenced
from holdfast.log.contract import Record
from holdfast.store.contract import ingress_topic, notice_topic
from holdfast.store.result_rows import NoticeState, SeriesDecl
from holdfast.store.rows import End, NewRun, Run, SenderDecl

HEADER = Header(RUN, (SeriesDecl("a", ("n",)), SeriesDecl("b", ("n",))))
PIECES = [payload_of(RUN, "a", n, 3, b"%d\n" % n) for n in (3, 1, 2)]
EMPTY = payload_of(RUN, "b", 0, 0, b"")
QUICK = Config(notice_wait_s=1, notice_wait_max_s=4, notice_attempts_max=3, sweep_after_s=10)


def rows_and_blobs(scene: DeliveryScene) -> tuple[list[str], list[str]]:
    rows = sorted(piece.blob for piece in scene.store.list_external_pieces(RUN))
    return rows, scene.blobs_below(f"external/{RUN}/")


def test_a_producer_is_asked_and_its_answers_become_results(tmp_path: Path) -> None:
    """Payload before header, in odd order, one twice: whole only when nothing is missing."""
    with delivering(tmp_path) as scene:
        scene.open_run(producer=REQUESTS, tables=0)
        scene.run()
        assert scene.state() == "RECEIVING"
        [asked] = scene.log.fetch_batch(REQUESTS, START, count=10)
        request = decode(asked.record.value)
        assert isinstance(request, Request)
        assert (request.run, request.client) == (RUN, CLIENT)
        assert asked.record.record_id == digest("request", RUN)
        scene.send(*PIECES[:2], PIECES[0])
        scene.run()
        assert scene.store.read_results(RUN) == []
        scene.send(HEADER, EMPTY, EMPTY)
        scene.run()
        assert scene.state() == "RECEIVING"
        assert waiting_runs(scene.store)[0].lacks == ("pieces 2 of series a",)
        assert all(one.provisional for one in scene.store.read_results(RUN))
        scene.send(PIECES[2])
        scene.run()
        assert scene.state() == "DONE"
        found, empty = scene.store.read_results(RUN)
        assert [b"".join(scene.blobs.read(one.location)) for one in found.pieces] == [
            b"1\n",
            b"2\n",
            b"3\n",
        ]
        assert (found.provisional, empty.pieces, empty.ordered) == (False, (), ())
        rows, blobs = rows_and_blobs(scene)
        assert rows == blobs
        assert len(rows) == 3


def test_a_run_with_inputs_is_forwarded_when_they_are_complete(tmp_path: Path) -> None:
    with delivering(tmp_path) as scene:
        scene.open_run(producer=REQUESTS)
        scene.upload(b"n\n1\n")
        scene.run()
        assert (scene.state(), REQUESTS in scene.store.list_topics()) == ("OPEN", False)
        assert waiting_runs(scene.store)[0].lacks == ("END of t",)
        scene.store.record_end(RUN, End("t", "", 1), lambda *_: True, lambda _: True)
        scene.run()
        assert scene.state() == "RECEIVING"


def test_a_repeated_piece_is_uploaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads: list[str] = []
    create = LocalBlobs.create

    def counted(self: LocalBlobs, name: str, pieces: list[bytes]) -> object:
        uploads.append(name)
        return create(self, name, pieces)

    monkeypatch.setattr(LocalBlobs, "create", counted)
    with delivering(tmp_path) as scene:
        scene.open_run(producer=REQUESTS, tables=0)
        scene.run()
        scene.send(*PIECES[:2], PIECES[0], PIECES[0], PIECES[1])
        scene.run()
        assert len(uploads) == 2


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (payload_of(RUN, "a", 3, 3, b"other"), "other bytes"),
        (payload_of(RUN, "a", 1, 4, b"1\n"), "another total"),
        (payload_of(RUN, "z", 1, 1, b"1\n"), "no series of the header"),
        (Header(RUN, HEADER.series[:1]), "other series"),
        (payload_of(RunId("else"), "a", 1, 3, b"1\n"), "is on queue"),
        (Payload(RUN, "a", 1, 3, "0" * 64, b"1\n"), "do not fit its checksum"),
        (Payload(RUN, "a", 1, 3, "0" * 64, reference="chunks/x"), "another run"),
        (Payload(RUN, "a", 1, 3, "0" * 64, reference=f"external/{RUN}/../x"), "no blob name"),
        (Payload(RUN, "a", 1, 3, "0" * 64, reference=f"external/{RUN}/gone"), "missing"),
        (Payload(RUN, "a", 1, 3, "0" * 64, reference=f"external/{RUN}/odd"), "no regular file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_contradiction_fails_the_run_and_leaves_no_blob(
    tmp_path: Path, wrong: Header | Payload, word: str
) -> None:
    with delivering(tmp_path) as scene:
        scene.open_run(producer=REQUESTS, tables=0)
        scene.open_run(RunId("other"), producer=REQUESTS, tables=0)
        scene.run()
        scene.send(HEADER, PIECES[0])
        scene.run()
        (tmp_path / "blobs" / "external" / RUN / "odd").mkdir()
        scene.send(wrong)
        scene.run()
        assert scene.state() == "FAILED"
        assert word in scene.error()
        assert str(tmp_path) not in scene.error()
        assert scene.state(RunId("other")) == "RECEIVING"
        rows, blobs = rows_and_blobs(scene)
        assert rows == blobs
        scene.send(PIECES[1])
        scene.run()
        assert rows_and_blobs(scene) == (rows, blobs)


def test_a_message_that_is_none_fails_its_run_and_is_not_taken_for_ever(tmp_path: Path) -> None:
    with delivering(tmp_path) as scene:
        scene.open_run(producer=REQUESTS, tables=0)
        scene.run()
        scene.store.append_records(f"results/{RUN}/payload", 0, [Record(b"garbage")])
        scene.run()
        assert (scene.state(), "DAMAGED" in scene.error()) == ("FAILED", True)
        assert scene.log.get_committed_offset(f"results/{RUN}/payload", "delivery") == 1


@pytest.mark.parametrize(
    ("name", "told"),
    [("daily.totals", "daily.totals"), ("a\ud800", "surrogates"), ("a" * 65, "at most 64")],
    ids=["a dot", "half a character", "too long"],
)
@pytest.mark.parametrize("kind", ["header", "payload"])
def test_a_series_that_nobody_could_fetch_fails_its_run(
    tmp_path: Path, kind: str, name: str, told: str
) -> None:
    """The door knows no such name: the run would be DONE, and its result out of reach."""
    checksum = payload_of(RUN, "a", 1, 1, b"1\n").checksum
    if kind == "header":
        declared = {"series": name, "columns": ["n"], "format": "csv"}
        data = framed(KIND_HEADER, {"run": RUN, "series": [declared]})
    else:
        head = {"run": RUN, "series": name, "ordinal": 1, "total": 1}
        data = framed(KIND_PAYLOAD, head | {"checksum": checksum, "reference": ""}, b"1\n")
    with delivering(tmp_path) as scene:
        scene.open_run(producer=REQUESTS, tables=0)
        scene.open_run(RunId("run-2"), producer=REQUESTS, tables=0)
        scene.run()
        scene.store.append_records(f"results/{RUN}/{kind}", 0, [Record(data)])
        scene.run()
        assert scene.state() == "FAILED"
        assert told in scene.error()
        assert scene.log.get_committed_offset(f"results/{RUN}/{kind}", "delivery") == 1
        assert scene.state(RunId("run-2")) == "RECEIVING"


def test_a_series_in_a_format_that_no_client_takes_fails_its_run(tmp_path: Path) -> None:
    """It would be DONE, and `Client.download` would refuse to make a file of it."""
    declared = {"series": "a", "columns": ["n"], "format": "text/csv"}
    data = framed(KIND_HEADER, {"run": RUN, "series": [declared]})
    with delivering(tmp_path) as scene:
        scene.open_run(producer=REQUESTS, tables=0)
        scene.run()
        scene.store.append_records(f"results/{RUN}/header", 0, [Record(data)])
        scene.run()
        assert (scene.state(), "text/csv" in scene.error()) == ("FAILED", True)


@pytest.mark.parametrize("by_reference", [False, True])
def test_rows_of_csv_are_counted_and_of_parquet_not_guessed(
    tmp_path: Path, by_reference: bool
) -> None:
    """A newline in quotes ends no row, the last row needs none, and in Parquet it is any byte."""
    pieces = {"a": b'1,"x\ny"\n2,"say ""no"\n"""\n3,z', "b": b"PAR1\n\n\nPAR1"}
    with delivering(tmp_path) as scene:
        scene.open_run(producer=REQUESTS, tables=0)
        scene.run()
        for series, data in pieces.items():
            said = payload_of(RUN, series, 1, 1, data)
            if by_reference:
                name = piece_blob(RUN, series, 1, said.checksum)
                scene.blobs.create(name, [data])
                said = Payload(RUN, series, 1, 1, said.checksum, reference=name)
            scene.send(said)
        header = Header(RUN, (SeriesDecl("a", ("n", "t")), SeriesDecl("b", (), "parquet")))
        scene.send(header)
        scene.run()
        assert scene.state() == "DONE"
        found = scene.store.read_results(RUN)
        assert [[piece.rows for piece in one.pieces] for one in found] == [[3], [None]]


def test_a_reason_is_bounded_and_can_be_stored(tmp_path: Path) -> None:
    with delivering(tmp_path) as scene:
        scene.open_run(producer=REQUESTS, tables=0)
        scene.run()
        data = framed(KIND_PAYLOAD, {"\ud800" + "x" * 9000: 1})
        scene.store.append_records(f"results/{RUN}/payload", 0, [Record(data)])
        scene.run()
        assert scene.state() == "FAILED"
        assert "ud800" in scene.error()
        assert len(scene.error()) < 2100


def test_a_piece_by_reference_is_bound_where_it_is(tmp_path: Path) -> None:
    """The producer put the bytes into the blobs itself; they are checked, not copied."""
    with delivering(tmp_path) as scene:
        scene.open_run(producer=REQUESTS, tables=0)
        scene.run()
        inline = payload_of(RUN, "a", 1, 1, b"x\ny\n")
        name = piece_blob(RUN, "a", 1, inline.checksum)
        scene.blobs.create(name, [inline.data])
        scene.send(Header(RUN, (SeriesDecl("a", ("n",)),)))
        scene.send(Payload(RUN, "a", 1, 1, inline.checksum, reference=name))
        scene.run()
        assert scene.state() == "DONE"
        [found] = scene.store.read_results(RUN)
        assert [(p.location, p.size, p.rows) for p in found.pieces] == [(name, 4, 2)]


def test_a_notice_is_signed_and_lists_the_pieces_in_order(tmp_path: Path) -> None:
    """The receiver, a process of its own, checks what came without our code."""
    with receiving(tmp_path / "receiver") as receiver, delivering(tmp_path) as scene:
        scene.store.set_webhook(CLIENT, receiver.url)
        scene.open_run(producer=REQUESTS, tables=0)
        scene.run()
        scene.send(HEADER, EMPTY, *PIECES)
        scene.run()
        [seen] = receiver.seen()
        body = json.loads(seen["body"])
        assert (body["type"], body["run"], body["id"]) == ("run.done", RUN, seen["id"])
        pieces = body["series"][0]["pieces"]
        assert [piece["ordinal"] for piece in pieces] == [1, 2, 3]
        assert [piece["checksum"] for piece in pieces] == [
            one.checksum for one in sorted(PIECES, key=lambda piece: piece.ordinal)
        ]
        secret = signing_secret(scene.means.secrets, CLIENT)
        assert is_signed(secret, seen["body"].encode(), seen["signature"])
        assert [one.state for one in scene.store.list_notices()] == [NoticeState.SENT]
        assert secret.decode() not in (tmp_path / "store.sqlite3").read_bytes().decode("latin-1")


def test_a_notice_is_sent_again_until_it_is_given_up(tmp_path: Path) -> None:
    """Same id each time; waits grow; a dead letter stays listed, and can be revived."""
    with (
        receiving(tmp_path / "receiver", "500", "503 3", "500") as receiver,
        delivering(tmp_path, QUICK) as scene,
    ):
        scene.store.set_webhook(CLIENT, receiver.url)
        scene.open_run()
        fail(scene)
        scene.run()
        [notice] = scene.store.list_notices()
        assert (notice.attempts, notice.failures, notice.state) == (1, 1, NoticeState.WAITING)
        scene.run()
        [notice] = scene.store.list_notices()
        assert notice.failures == 2
        assert notice.due_ms - scene.store.read_elapsed() > 1000
        scene.run(4)
        [dead] = scene.store.list_notices(state=NoticeState.DEAD)
        assert (dead.failures, dead.error) == (3, "the receiver answered 500")
        scene.run(20)
        assert len({one["id"] for one in receiver.seen()}) == 1
        assert len(receiver.seen()) == 3
        assert scene.store.revive_notice(dead.notice_id)
        scene.run()
        assert [one.state for one in scene.store.list_notices()] == [NoticeState.SENT]
        counts = {name: value for (_, name), value in figure_values(scene, "holdfast_notices")}
        assert counts == {"waiting": 0, "sent": 1, "dead": 0}


def fail(scene: DeliveryScene, run_id: RunId = RUN) -> None:
    fence = scene.store.take_lease("engine", "test")
    assert scene.store.move_run(fence, run_id, expected="OPEN", to="FAILED", error="why")


def complete(scene: DeliveryScene, run_id: RunId = RUN) -> None:
    fence = scene.store.take_lease("engine", "test")
    for at, to in pairwise(("OPEN", "FORWARDING", "RECEIVING", "COMPLETING")):
        assert scene.store.move_run(fence, run_id, expected=at, to=to)


def figure_values(scene: DeliveryScene, name: str) -> list[tuple[tuple[str, str], float]]:
    [figure] = [one for one in figures(scene.store) if one.name == name]
    return [(labels[0] if labels else ("", ""), value) for labels, value in figure.values]


BAD_URLS = (
    "http://127.0.0.1:1/",
    "no url at all",
    "http://north..example/done",
    f"http://{'a' * 64}.example/done",
    "http://[::1/",
)


def test_nobody_listens_and_a_bad_url_are_failures_like_others(tmp_path: Path) -> None:
    with delivering(tmp_path, QUICK) as scene:
        for number, url in enumerate(BAD_URLS):
            run_id = RunId(f"run-{number}")
            scene.store.set_webhook(f"client-{number}", url)
            open_for(scene, f"client-{number}", run_id)
            fail(scene, run_id)
        scene.run(30)
        notices = scene.store.list_notices()
        assert [one.state for one in notices] == [NoticeState.DEAD] * len(BAD_URLS)
        assert all(one.error for one in notices)


def test_a_secret_that_cannot_be_read_is_a_failure_of_its_notice(tmp_path: Path) -> None:
    with delivering(tmp_path, QUICK) as scene, receiving(tmp_path / "receiver") as receiver:
        (scene.means.secrets / f"webhook-{CLIENT}").mkdir(parents=True)
        for client, run_id in ((CLIENT, RUN), ("other", RunId("run-2"))):
            scene.store.set_webhook(client, receiver.url)
            open_for(scene, client, run_id)
            fail(scene, run_id)
        scene.run(30)
        states = {one.client: one.state for one in scene.store.list_notices()}
        assert states == {CLIENT: NoticeState.DEAD, "other": NoticeState.SENT}


def test_a_slow_receiver_holds_up_nobody_else(tmp_path: Path) -> None:
    """One receiver never answers; another client's notice and another run's DONE go on."""
    with (
        socket.socket() as silent,
        receiving(tmp_path / "receiver") as receiver,
        delivering(tmp_path, Config(notice_timeout_s=30)) as scene,
    ):
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        scene.store.set_webhook(CLIENT, f"http://127.0.0.1:{silent.getsockname()[1]}/")
        scene.open_run()
        fail(scene)
        scene.delivery.advance()
        connection, _ = silent.accept()
        scene.store.set_webhook(CLIENT, None)
        scene.store.set_webhook("quick", receiver.url)
        open_for(scene, "quick", RunId("run-2"))
        fail(scene, RunId("run-2"))
        for _ in range(3000):
            scene.delivery.advance()
            if receiver.seen():
                break
            pause(0.001)
        assert [json.loads(one["body"])["client"] for one in receiver.seen()] == ["quick"]
        connection.close()


def test_receivers_that_hang_leave_threads_to_those_that_answer(tmp_path: Path) -> None:
    """As many as there are threads failed once, and hang the next time."""
    config = Config(notice_timeout_s=30, notice_wait_s=3600)
    with (
        socket.socket() as silent,
        receiving(tmp_path / "receiver") as receiver,
        delivering(tmp_path, config) as scene,
    ):
        silent.bind(("127.0.0.1", 0))
        silent.listen(THREADS)
        for number in range(THREADS):
            tell(scene, f"slow-{number}", "http://127.0.0.1:1/")
        scene.run()
        for number in range(THREADS):
            tell(scene, f"slow-{number}", f"http://127.0.0.1:{silent.getsockname()[1]}/")
        scene.delivery.advance()
        tell(scene, "quick", receiver.url)
        for _ in range(3000):
            scene.delivery.advance()
            if receiver.seen():
                break
            pause(0.001)
        assert [json.loads(one["body"])["client"] for one in receiver.seen()] == ["quick"]
        begun = [one for one in scene.store.list_notices() if one.attempts > one.failures]
        assert len([one for one in begun if one.client != "quick"]) == FAILING_THREADS
        silent.close()


def tell(scene: DeliveryScene, client: str, url: str) -> None:
    """Let a run of a client fail, whose notice goes to `url`."""
    run_id = RunId(f"run-{len(scene.store.list_runs())}")
    scene.store.set_webhook(client, url)
    open_for(scene, client, run_id)
    fail(scene, run_id)


def open_for(scene: DeliveryScene, client: str, run_id: RunId) -> None:
    senders = (SenderDecl("t", "", 1),)
    scene.store.create_run(NewRun(run_id, client, "p", {}, 1, senders, 0))


def test_a_run_without_its_end_waits_for_ever(tmp_path: Path) -> None:
    """It never completes by time-out; it is shown with what is missing and for how long."""
    with delivering(tmp_path, QUICK) as scene:
        scene.open_run()
        scene.upload(b"n\n1\n")
        scene.run(1000)
        assert scene.state() == "OPEN"
        [waiting] = waiting_runs(scene.store)
        assert (waiting.lacks, waiting.client) == (("END of t",), CLIENT)
        assert waiting.idle_s >= 990
        assert figure_values(scene, "holdfast_runs_waiting") == [(("", ""), 1.0)]
        assert figure_values(scene, "holdfast_waiting_idle_seconds")[0][1] == waiting.idle_s


def test_an_idle_run_is_abandoned_only_if_that_was_asked_for(tmp_path: Path) -> None:
    """What comes in between begins the count anew; a wall clock that jumps counts nothing."""
    config = Config(abandon_after_s=100, sweep_after_s=50)
    with delivering(tmp_path, config) as scene:
        scene.open_run()
        scene.clock.jump_wall(10**12)
        scene.run(90)
        scene.upload(b"n\n1\n")
        scene.run(90)
        assert scene.state() == "OPEN"
        scene.run(20)
        assert scene.state() == "ABANDONED"
        assert "END of t" in scene.error()
        topic = notice_topic(CLIENT)
        [told] = scene.store.read_records(topic, 0, START, 10)
        assert json.loads(told.record.value)["type"] == "run.abandoned"
        scene.run(60)
        assert scene.state() == "SWEPT"


def test_only_of_runs_that_are_old_enough_it_is_asked_for_whom_they_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question goes through all senders, and every turn is a second."""
    asked: list[str] = []

    def awaited(store: object, run: Run) -> list[str]:
        asked.append(run.run_id)
        return []

    monkeypatch.setattr(sweep, "awaited", awaited)
    with delivering(tmp_path, Config(abandon_after_s=100)) as scene:
        scene.open_run()
        scene.run(90)
        assert asked == []
        scene.run(20)
        assert set(asked) == {RUN}


def test_time_in_which_the_process_stood_still_does_not_count(tmp_path: Path) -> None:
    with delivering(tmp_path, Config(abandon_after_s=100)) as scene:
        scene.open_run()
        scene.run()
        scene.clock.advance(100_000)
        scene.run()
        assert scene.state() == "OPEN"
        assert scene.store.read_elapsed() <= 10_000


def fill(scene: DeliveryScene) -> None:
    """Leave everything behind that a run can leave."""
    for home in ("runs", "inputs"):
        (scene.root / home / RUN / "x").mkdir(parents=True)
        (scene.root / home / RUN / "x" / "part-0").write_bytes(b"bytes")
        (scene.root / home / "another").mkdir(parents=True)
    scene.blobs.create(f"chunks/{RUN}/t/s/9-lost", [b"nobody binds this"])
    scene.blobs.create("chunks/another/t/s/1-x", [b"not ours"])


def left(scene: DeliveryScene) -> list[str]:
    found = [path for home in ("runs", "inputs") for path in (scene.root / home).glob(f"{RUN}*")]
    return [str(path) for path in found] + [
        name for name in scene.blobs.names() if RUN in name.split("/")
    ]


@pytest.mark.parametrize("end", ["FAILED", "CANCELLED"])
def test_a_run_that_ended_badly_is_swept_after_its_time(tmp_path: Path, end: str) -> None:
    """Bytes, rows and topics go, those of others stay; who comes late is told that it is gone."""
    with delivering(tmp_path, QUICK) as scene:
        scene.open_run()
        scene.upload(b"n\n1\n")
        fill(scene)
        fence = scene.store.take_lease("engine", "test")
        scene.store.move_run(fence, RUN, expected="OPEN", to=end, error="why")
        scene.run(6)
        assert scene.state() == end
        assert len(left(scene)) == 4
        scene.run(8)
        assert (scene.state(), scene.error()) == ("SWEPT", "why")
        assert left(scene) == []
        assert scene.blobs_below("chunks/") == ["chunks/another/t/s/1-x"]
        assert sorted(path.name for path in (tmp_path / "blobs" / "chunks").iterdir()) == [
            "another"
        ]
        assert (scene.root / "runs" / "another").is_dir()
        assert ingress_topic(RUN, 1) not in scene.store.list_topics()
        assert scene.store.list_chunks(RUN) == []
        assert scene.store.list_watched() == []


def test_queues_of_a_done_run_go_and_its_results_stay_until_they_expire(tmp_path: Path) -> None:
    with delivering(tmp_path, Config(expire_after_s=100)) as scene:
        scene.open_run(producer=REQUESTS, tables=0)
        scene.run()
        scene.send(HEADER, EMPTY, *PIECES)
        scene.run()
        scene.run()
        topics = scene.store.list_topics()
        assert [topic for topic in topics if RUN in topic] == []
        scene.run(80)
        assert len(scene.store.read_results(RUN)) == 2
        scene.run(40)
        assert (scene.state(), scene.store.read_results(RUN)) == ("SWEPT", [])
        assert left(scene) == []


def test_what_a_job_writes_after_the_sweep_goes_too(tmp_path: Path) -> None:
    with delivering(tmp_path, QUICK) as scene:
        scene.open_run()
        fail(scene)
        scene.run(14)
        assert scene.state() == "SWEPT"
        (scene.root / "runs" / RUN / "late").mkdir(parents=True)
        scene.run(70)
        assert left(scene) == []


def test_half_written_uploads_go_when_they_have_not_grown_for_long(tmp_path: Path) -> None:
    with delivering(tmp_path, Config(sweep_after_s=100)) as scene:
        dead, alive = (scene.root / "blobs" / f".tmp-{letter * 32}" for letter in "ab")
        for path in (dead, alive):
            path.write_bytes(b"half")
        for _ in range(5):
            scene.run(60)
            alive.write_bytes(alive.read_bytes() + b"more")
        assert (dead.exists(), alive.exists()) == (False, True)


def test_a_former_delivery_that_wakes_changes_nothing(tmp_path: Path) -> None:
    """Whatever it finds to do, its first effect is refused, and nothing is different."""
    with delivering(tmp_path, QUICK) as scene:
        scene.open_run(producer=REQUESTS, tables=0)
        scene.open_run(RunId("run-2"))
        scene.run()
        scene.send(HEADER, EMPTY, *PIECES)
        scene.store.take_lease("delivery", "successor")
        before = everything(scene)
        scene.clock.advance(60)
        for _ in range(3):
            with pytest.raises(Fenced):
                scene.delivery.advance()
        assert everything(scene) == before
        successor = scene.succeed()
        for _ in range(20):
            successor.advance()
        successor.close()
        assert scene.state() == "DONE"


@pytest.mark.parametrize("state", ["FORWARDING", "RECEIVING"])
def test_one_that_was_stopped_in_the_middle_of_a_step_makes_no_queue_and_no_blob(
    tmp_path: Path, state: str
) -> None:
    """It looked at the run before it was stopped; the rest of its step comes after its fence."""
    with delivering(tmp_path, QUICK) as scene:
        scene.open_run(producer=REQUESTS, tables=0)
        if state == "RECEIVING":
            scene.run()
            scene.send(*PIECES)
        means = scene.means
        former = Receiver(
            scene.store, scene.blobs, means.queues, scene.fence, Troubles(scene.clock)
        )
        scene.store.take_lease("delivery", "successor")
        before = everything(scene)
        with pytest.raises(Fenced):
            former.advance()
        with pytest.raises(Fenced):
            means.queues.open(request_for(RUN, CLIENT))
        assert everything(scene) == before
        assert scene.state() == state


@pytest.mark.parametrize("end", ["DONE", "SWEPT"])
def test_what_came_too_late_all_the_same_is_found(tmp_path: Path, end: str) -> None:
    """A blob and queues that a former delivery made after its successor's work on the run."""
    with delivering(tmp_path, QUICK) as scene:
        scene.open_run(producer=REQUESTS, tables=0)
        scene.run()
        if end == "DONE":
            scene.send(HEADER, EMPTY, *PIECES)
            scene.run()
        else:
            fence = scene.store.take_lease("engine", "test")
            scene.store.move_run(fence, RUN, expected="RECEIVING", to="FAILED", error="why")
            scene.run(14)
        scene.run()
        assert scene.state() == end
        known = scene.blobs_below("external/")
        LogQueues(scene.log, scene.store).open(request_for(RUN, CLIENT))
        if end == "SWEPT":
            scene.blobs.create(f"external/{RUN}/x/1-late", [b"late"])
        scene.run(70)
        assert [topic for topic in scene.store.list_topics() if RUN in topic] == []
        assert scene.blobs_below("external/") == known


def everything(scene: DeliveryScene) -> object:
    store = scene.store
    return (
        store.list_runs(),
        store.read_external(RUN),
        store.list_watched(),
        store.read_elapsed(),
        store.list_notices(),
        {topic: store.list_offsets(topic, 0) for topic in store.list_topics()},
        list(scene.blobs.names()),
    )


def test_a_sweep_drops_records_that_every_group_has_read(tmp_path: Path) -> None:
    """Those below the least committed offset go; what a reader has not seen stays."""
    with delivering(tmp_path, QUICK) as scene:
        topic = notice_topic(CLIENT)
        for number in (1, 2):
            scene.open_run(RunId(f"run-{number}"))
            fail(scene, RunId(f"run-{number}"))
        scene.log.commit_offset(topic, "reader", type(START)(1))
        scene.run(14)
        assert scene.state() == "SWEPT"
        assert scene.store.topic_bounds(topic, 0) == (1, 2)


def test_notices_that_no_group_reads_go_with_their_runs_in_order(tmp_path: Path) -> None:
    """Somebody may read them without a group: one stays as long as its run, and all behind it."""
    with delivering(tmp_path, Config(sweep_after_s=10, expire_after_s=100)) as scene:
        topic = notice_topic(CLIENT)
        first, kept, last = (RunId(f"run-{number}") for number in (1, 2, 3))
        for run_id in (first, kept, last):
            scene.open_run(run_id)
        fail(scene, first)
        complete(scene, kept)
        scene.run()
        fail(scene, last)
        scene.run(14)
        states = [scene.state(run_id) for run_id in (first, kept, last)]
        assert states == ["SWEPT", "DONE", "SWEPT"]
        assert scene.store.topic_bounds(topic, 0) == (1, 3)
        told = scene.store.read_records(topic, 0, START, 10)
        assert [json.loads(one.record.value)["run"] for one in told] == [kept, last]
        scene.run(100)
        assert scene.state(kept) == "SWEPT"
        assert scene.store.topic_bounds(topic, 0) == (3, 3)


def test_what_is_no_notice_is_kept_and_hinders_no_sweep(tmp_path: Path) -> None:
    with delivering(tmp_path, QUICK) as scene:
        topic = notice_topic(CLIENT)
        scene.log.create_topic(topic)
        scene.log.produce(topic, Record(b"[1]"))
        scene.open_run()
        fail(scene)
        scene.run(14)
        assert (scene.state(), scene.told) == ("SWEPT", [])
        assert scene.store.topic_bounds(topic, 0) == (0, 2)


def test_requests_that_their_producer_has_read_go_with_the_next_one(tmp_path: Path) -> None:
    """A producer that never commits keeps all; one that fell behind keeps what it has not read."""
    with delivering(tmp_path) as scene:
        numbers = iter(range(10))

        def ask() -> tuple[int, int]:
            scene.open_run(RunId(f"run-{next(numbers)}"), producer=REQUESTS, tables=0)
            scene.run()
            return scene.store.topic_bounds(REQUESTS, 0)

        assert [ask(), ask(), ask()] == [(0, 1), (0, 2), (0, 3)]
        scene.log.commit_offset(REQUESTS, "producer", type(START)(2))
        assert [ask(), ask()] == [(2, 4), (2, 5)]
        scene.log.commit_offset(REQUESTS, "producer", type(START)(5))
        assert ask() == (5, 6)
        [left] = scene.log.fetch_batch(REQUESTS, type(START)(5), count=10)
        request = decode(left.record.value)
        assert isinstance(request, Request)
        assert request.run == "run-5"


def test_two_notices_of_one_client_are_not_under_way_at_once(tmp_path: Path) -> None:
    """The second waits for the first, which its receiver never answers."""
    config = Config(notice_timeout_s=30)
    with socket.socket() as silent, delivering(tmp_path, config) as scene:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        scene.store.set_webhook(CLIENT, f"http://127.0.0.1:{silent.getsockname()[1]}/")
        for number in (1, 2):
            scene.open_run(RunId(f"run-{number}"))
            fail(scene, RunId(f"run-{number}"))
        scene.delivery.advance()
        connection, _ = silent.accept()
        for _ in range(20):
            scene.delivery.advance()
        assert [one.attempts for one in scene.store.list_notices()] == [1, 0]
        silent.close()
        connection.close()
