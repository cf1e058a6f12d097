"""`holdfast up` itself: its three parts, a run from client to results, and nothing left of it."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests import sample_producer
from tests.command import Command
from tests.service import shop
from tests.service.processes import (
    BUSY_S,
    DRAINED_S,
    Process,
    all_gone,
    children_of,
    drain_s,
    until,
)

from holdfast import Client
from holdfast.engine.parts import parts_in
from holdfast.engine.state import StateDirectory

REQUESTS = "requests"
pytestmark = pytest.mark.timeout(400)


class Whole:
    """A service of the shop pipeline, and the command line beside it."""

    def __init__(self, root: Path) -> None:
        self.root, self.state = root, root / "state"
        pipeline = shop.write_pipeline(root)
        arguments = ("--pipeline", str(pipeline), "--state", str(self.state))
        told = ("--listen", "127.0.0.1:0", "--producer", REQUESTS)
        self.up = Process("holdfast.cli", "up", *arguments, *told)
        self.command = Command(root)

    def url(self) -> str:
        """Return where the gateway listens now: port 0 is another one after each start."""
        self.up.until_said("listening on")
        found: list[str] = re.findall(r"listening on (http://[0-9.:]+)", self.up.text)
        return found[-1]

    def pids(self) -> dict[str, int]:
        directory = StateDirectory(self.state).parts
        return {part.name: part.pid for part in parts_in(directory)}

    def token(self, client: str) -> Path:
        told = self.command("client", "add", client, "--state", str(self.state), "--json")
        assert told.code == 0, told.err
        path = self.root / f"{client}.token"
        path.write_text(json.loads(told.out)["token"])
        path.chmod(0o600)
        return path

    def submit(self, client: str, sales: shop.Sales) -> list[list[str]]:
        """Hand in rows as a new client, wait, and return what came back."""
        inputs = self.root / f"{client}-in"
        inputs.mkdir()
        (inputs / "sales.csv").write_bytes(shop.document(sales, "csv"))
        out = self.root / f"{client}-out"
        places = ("--url", self.url(), "--token-file", str(self.token(client)), "--out", str(out))
        told = self.command("submit", str(inputs), *places)
        assert told.code == 0, (told.err, self.up.text)
        lines = (out / "report.csv").read_text().splitlines()
        assert lines[0] == "shop,amount,n"
        return [line.split(",") for line in lines[1:]]


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Whole]:
    found = Whole(tmp_path)
    yield found
    below = children_of(found.up.pid)
    found.up.end()
    until(f"{below} are gone", partial(all_gone, below), 20)


def test_a_client_gets_its_answer_whatever_was_killed_and_nothing_is_left(whole: Whole) -> None:
    sales = [(f"s{n % 3}", n) for n in range(30)]
    until("three parts live", lambda: set(whole.pids()) == {"gateway", "engine", "delivery"})
    assert whole.submit("north", sales) == shop.expected(sales)
    before = whole.pids()
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    until(
        "three others live",
        lambda: len(set(whole.pids().values()) - set(before.values())) == 3,
    )
    until("the gateway listens again", lambda: whole.up.text.count("listening on") == 2)
    other = [(f"t{n % 4}", 2 * n) for n in range(40)]
    assert whole.submit("south", other) == shop.expected(other)
    below = children_of(whole.up.pid)
    assert len(below) >= 5, "three parts, Spark's process and its JVM"
    whole.up.signal(signal.SIGTERM)
    assert whole.up.wait(DRAINED_S + BUSY_S) == 0, whole.up.text
    assert drain_s(whole.up) <= DRAINED_S
    until("nothing of it is left", partial(all_gone, below), 10)
    told = whole.command("status", "--state", str(whole.state))
    assert told.code == 0
    assert "no process works here" in told.out
    assert told.out.count("DONE") >= 2


def test_a_producer_outside_answers_a_run_and_its_client_fetches_it(whole: Whole) -> None:
    """Every hop is a process of its own: gateway, delivery, the producer, and here the client."""
    token, out = whole.token("north"), whole.root / "answers"
    with (
        sample_producer.producing(whole.state, REQUESTS),
        Client(whole.url(), token_file=token) as client,
    ):
        run = client.create_run("k", kind="external").run
        client.put_chunk(run, "sales", 1, shop.document([("a", 1)], "csv"))
        client.put_end(run, "sales", 1)
        assert client.wait(run).state == "DONE"
        files = client.download(run, out)
    _, wanted = sample_producer.load().results_of(run)
    letters = b"".join(wanted["letters"])
    assert (out / "letters.csv").read_bytes() == b"run,n\n" + letters
    assert (out / "nothing.csv").read_bytes() == b"x\n"
    assert sorted(files) == ["letters.csv", "nothing.csv"]
