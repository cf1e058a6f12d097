"""A client that sends faster than the engine works, where batches wait for a whole table.

Goal: back-pressure ends by itself. Method: a gateway that lets a tiny part of a submission wait, a
real engine, and `holdfast submit` as a process; a batch of `sales` is planned only when `shops`
had its END.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.service.door import Gateway, add_client, serving, store_of
from tests.service.floor import check, sales_of, states
from tests.service.processes import Process, until

PIPELINE = "from tests.service.floor import make_pipeline\n\npipe = make_pipeline()\n"
CLIENT, ROWS = "north", 100
BACKLOG = 160
SHOPS_CHUNKS = 3
Submit = Callable[..., Process]


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    """A gateway with an engine behind it."""
    place = tmp_path / "floor_behind.py"
    place.write_text(PIPELINE)
    more = {"HOLDFAST_BACKLOG_BYTES": str(BACKLOG)}
    with serving(tmp_path, pipeline=str(place), **more) as gateway:
        engine = Process("tests.service.plain_engine", str(gateway.state))
        try:
            yield gateway
        finally:
            engine.end()


@pytest.fixture
def submit(gateway: Gateway, tmp_path: Path) -> Iterator[Submit]:
    """Begins `holdfast submit` with all of the data."""
    data, token = tmp_path / "data", tmp_path / "token"
    data.mkdir()
    rows = "".join(f"{shop},{amount}\n" for shop, amount in sales_of(CLIENT, ROWS))
    (data / "sales.csv").write_text("shop,amount\n" + rows)
    titles = "".join(f"s{n},title s{n}\n" for n in range(4))
    (data / "shops.csv").write_text("shop,title\n" + titles)
    token.write_text(add_client(tmp_path, CLIENT))
    began: list[Process] = []

    def begin(*more: str, **environment: str) -> Process:
        server = ("--url", gateway.url, "--token-file", str(token))
        flags = ("--json", "--key", "key", "--chunk-bytes", "24", *more)
        began.append(Process("holdfast.cli", "submit", str(data), *server, *flags, **environment))
        return began[-1]

    yield begin
    for process in began:
        process.end()


def handed(process: Process) -> Any:
    assert process.wait(200) == 0, process.text
    return json.loads(process.lines[-1])


def check_answers(root: Path) -> None:
    """The engine comes to the right answers, with each chunk once."""
    with store_of(root) as shared:
        wanted = {CLIENT: "COMPLETING"}
        until("the run is computed", lambda: states(shared.store) == wanted)
        check(root / "state", shared.store, CLIENT, rows=ROWS)


def test_more_than_may_wait_is_sent_where_batches_wait_for_a_whole_table(
    gateway: Gateway, submit: Submit
) -> None:
    done = handed(submit())
    assert done["bytes"] > 5 * BACKLOG
    check_answers(gateway.root)


@pytest.mark.parametrize(
    ("point", "acked"),
    [
        (f"client.chunk.after:{SHOPS_CHUNKS}", SHOPS_CHUNKS),
        ("client.end.after:1", SHOPS_CHUNKS),
        (f"client.chunk.after:{SHOPS_CHUNKS + 4}", SHOPS_CHUNKS + 4),
    ],
)
def test_a_submit_killed_under_back_pressure_goes_on_and_sends_nothing_twice(
    gateway: Gateway, submit: Submit, point: str, acked: int
) -> None:
    """Killed before END of the whole table, behind it, and among the others' chunks."""
    one = ("--connections", "1")
    assert submit(*one, HOLDFAST_CRASH=point).wait() == -signal.SIGKILL
    done = handed(submit(*one))
    assert done["chunks_sent"] == done["chunks"] - acked
    check_answers(gateway.root)
