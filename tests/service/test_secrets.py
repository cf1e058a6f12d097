"""A whole service with secrets that everything was tried with: they stay where they belong.

Goal: whoever reads logs, the store or a message learns no token, webhook secret or password, and
nobody else on the machine can read anything of a state. Method: gateway, engine and delivery as
processes, without Spark and with it, a run from its first chunk to its notice; then every file and
every line is looked at.
"""

from __future__ import annotations

import re
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from tests.receiver import receiving
from tests.service import shop
from tests.service.door import Gateway, command, create, document, end, put, serving
from tests.service.processes import Process, all_gone, children_of, until

from holdfast import Client
from holdfast._base.ids import fresh_secret
from holdfast.errors import RunOver

PIPELINE = "from tests.service.floor import make_pipeline\n\npipe = make_pipeline()\n"
DOCUMENTS = {"sales": b"shop,amount\ns0,60\ns0,7\n", "shops": b"shop,title\ns0,title s0\n"}


@contextmanager
def started(*arguments: str, **environment: str) -> Iterator[Process]:
    process = Process(*arguments, **environment)
    try:
        yield process
    finally:
        process.end()


def hand_in(gateway: Gateway, token: str) -> str:
    """Hand in a run, and what is wrong in many ways; returns the run's id."""
    with gateway.client(token) as client:
        run = create(client)
        for table, text in DOCUMENTS.items():
            assert put(client, run, text, table=table).status_code == 201
            assert put(client, run, b"other", table=table).status_code == 409
            assert end(client, run, 1, table).status_code == 201
        assert end(client, run, 0, sender="b").status_code == 201
        assert client.get("/nothing", headers={"X-Token": token}).status_code == 404
    with gateway.client(f"{token}x") as wrong:
        assert wrong.get("/v1/runs").status_code == 401
    return run


def files_with(root: Path, secret: str) -> list[str]:
    """Return the files below a directory in which a secret stands."""
    found = []
    for path in root.rglob("*"):
        with suppress(FileNotFoundError):  # of a process that runs: it goes as it came
            if path.is_file() and secret.encode() in path.read_bytes():
                found.append(str(path.relative_to(root)))
    return found


def open_to_others(root: Path) -> list[str]:
    """Return what below a directory others than its owner may read, write or enter."""
    found = []
    for path in (root, *root.rglob("*")):
        with suppress(FileNotFoundError):
            mode = stat.S_IMODE(path.lstat().st_mode)
            if mode != (0o700 if path.is_dir() else 0o600):
                found.append(f"{path.relative_to(root)} {mode:o}")
    return found


def test_no_secret_leaves_its_place_in_a_whole_service(tmp_path: Path) -> None:
    password, state = fresh_secret(), tmp_path / "state"
    place = tmp_path / "floor_of_secrets.py"
    place.write_text(PIPELINE)
    broker = ("--amqp", "amqp://holdfast@127.0.0.1:1/")
    with receiving(tmp_path / "receiver") as receiver:
        add = ("client", "add", "north", "--state", "state", "--webhook", receiver.url)
        added = command(tmp_path, *add)
        token = re.search(r"hf_\w+", added.stdout)
        assert token, added.stderr
        signing = (state / "secrets" / "webhook-north").read_text().strip()
        assert signing not in added.stdout + added.stderr
        secrets = (token[0].rpartition("_")[2], signing, password)
        with (
            serving(tmp_path, pipeline=str(place)) as gateway,
            started("tests.service.plain_engine", str(state)) as engine,
            started(
                *("holdfast.cli", "delivery", "--state", str(state), *broker),
                HOLDFAST_AMQP_PASSWORD=password,
            ) as delivery,
        ):
            run = hand_in(gateway, token[0])
            until("its notice came", lambda: len(receiver.seen()) == 1)
            delivery.until_said("BROKER_UNREACHABLE")
            with gateway.client(token[0]) as client:
                assert document(client, run)["state"] == "DONE"
            for process in (engine, delivery):
                files = [str(path.relative_to(state)) for path in state.rglob("store.sqlite3*")]
                assert sorted(files) == [f"store.sqlite3{tail}" for tail in ("", "-shm", "-wal")]
                looked_at = [files_with(state, secret) for secret in secrets]
                assert looked_at == [[], ["secrets/webhook-north"], []]
                assert open_to_others(state) == []
                process.signal(signal.SIGTERM)
                assert process.wait() == 0
            assert gateway.stop() == 0
        told = gateway.log() + engine.text + delivery.text
        assert "BROKER_UNREACHABLE" in told
        assert [secret for secret in secrets if secret in told] == []
        assert [files_with(state, one) for one in secrets] == [[], ["secrets/webhook-north"], []]
        assert [files_with(tmp_path / "receiver", one) for one in secrets] == [[], [], []]
        assert open_to_others(state) == []


def fails_and_answers(client: Client) -> None:
    """Have a run that fails in Spark, and one that is done."""
    for key, amount in (("fails", 666), ("answers", 1)):
        run = client.create_run(key).run
        client.put_chunk(run, "sales", 1, shop.document([("a", amount)], "csv"))
        client.put_end(run, "sales", 1)
        if key == "answers":
            assert client.wait(run).state == "DONE"
            continue
        with pytest.raises(RunOver):
            client.wait(run)


@pytest.mark.timeout(400)
def test_no_secret_leaves_its_place_in_a_whole_service_with_spark(tmp_path: Path) -> None:
    """Not in Spark's own log either, which has the trace of a stage that failed."""
    password, state = fresh_secret(), tmp_path / "state"
    places = ("--pipeline", str(shop.write_pipeline(tmp_path)), "--state", str(state))
    to = ("--listen", "127.0.0.1:0", "--amqp", "amqp://holdfast@127.0.0.1:1/")
    told = {"HOLDFAST_AMQP_PASSWORD": password, "HOLDFAST_ATTEMPTS_MAX": "1"}
    with receiving(tmp_path / "receiver") as receiver:
        add = ("client", "add", "north", "--state", "state", "--webhook", receiver.url)
        token = re.search(r"hf_\w+", command(tmp_path, *add).stdout)
        assert token
        (tmp_path / "token").touch(0o600)
        (tmp_path / "token").write_text(token[0])
        signing = (state / "secrets" / "webhook-north").read_text().strip()
        with started("holdfast.cli", "up", *places, *to, **told) as up:
            up.until_said("listening on")
            url = re.search(r"listening on (http://[0-9.:]+)", up.text)
            assert url
            with Client(url[1], token_file=tmp_path / "token") as client:
                fails_and_answers(client)
            until("their notices came", lambda: len(receiver.seen()) == 2)
            assert open_to_others(state) == []
            below = children_of(up.pid)
            up.signal(signal.SIGTERM)
            up.wait()
            until("nothing of it is left", partial(all_gone, below), 20)
        assert "the number of the beast" in (state / "logs" / "spark.log").read_text()
        for secret in (token[0].rpartition("_")[2], password):
            assert secret not in up.text
            assert files_with(state, secret) == []
        assert signing not in up.text
        assert files_with(state, signing) == ["secrets/webhook-north"]
        assert open_to_others(state) == []
