"""A real gateway, killed with SIGKILL between any two steps; the client sends again; counts equal.

Every point that the workload passes is tried at each of its hits up to a few, then the client
repeats everything against a gateway that was started again, as a client does that heard nothing.
"""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import httpx
import pytest
from tests.crash.workloads import CHUNKS, expected
from tests.service.door import (
    Gateway,
    add_client,
    create,
    document,
    send_all,
    serving,
    store_of,
    work_off,
)
from tests.service.test_gateway import answers
from tests.unit.delivery_scene import delivering

from holdfast._base.ids import RunId
from holdfast.config import Config
from holdfast.queries import verify

POINTS = {
    "gateway.create.after": 1,
    "intake.blob.after": 3,
    "intake.chunk.after": 3,
    "intake.end.after": 2,
    "blobs.create.written": 2,
    "blobs.create.linked": 2,
    "store.transaction.before": 4,
    "store.transaction.after": 4,
}
"""Point -> how many of its hits are tried, spread over the workload."""
BEFORE = {"store.transaction.before": 1, "store.transaction.after": 1}
"""Hits of a start, before anybody can ask: the pipeline is kept."""
CASES = [
    (name, BEFORE.get(name, 0) + 1 + 2 * step)
    for name, count in POINTS.items()
    for step in range(count)
]


def once(client: httpx.Client) -> str | None:
    """Do all that a client does; None: the line broke."""
    try:
        run = create(client, "march")
        codes = send_all(client, run)
    except httpx.TransportError:
        return None
    assert set(codes) <= {200, 201}, codes
    return run


@pytest.mark.parametrize(("point", "hit"), CASES, ids=[f"{name}:{hit}" for name, hit in CASES])
def test_a_gateway_killed_anywhere_loses_nothing_and_doubles_nothing(
    tmp_path: Path, point: str, hit: int
) -> None:
    token = add_client(tmp_path, "north")
    with serving(tmp_path, HOLDFAST_CRASH=f"{point}:{hit}") as gateway:
        with gateway.client(token) as client:
            assert once(client) is None, "the workload did not reach the point"
        assert gateway.ended() == -signal.SIGKILL
    with serving(tmp_path) as again, again.client(token) as client:
        run = once(client)
        assert run is not None
        check_whole(again, client, run)


def check_whole(gateway: Gateway, client: httpx.Client, run: str) -> None:
    """Every chunk is bound once, its blob is the only one once delivery has looked for long, beside
    the gateway, and the answers are those expected.
    """
    sent = {(table, sender, ordinal): text for table, sender, ordinal, text in CHUNKS}
    with store_of(gateway.root) as shared:
        assert [found.run_id for found in shared.store.list_runs()] == [run]
        bound = shared.store.list_chunks(RunId(run))
    assert Counter((one.table, one.sender, one.ordinal) for one in bound) == Counter(list(sent))
    for one in bound:
        data = (gateway.state / "blobs" / one.location).read_bytes()
        assert data.decode() == sent[one.table, one.sender, one.ordinal]
    assert list((gateway.state / "blobs").glob(".tmp-*")) == [], "a dead gateway's file stayed"
    with delivering(gateway.state, Config(sweep_after_s=100)) as scene:
        scene.run(300)
        uploads = scene.blobs_below(f"chunks/{run}/")
    assert uploads == sorted(one.location for one in bound), "a dead gateway's upload stayed"
    work_off(gateway.root, run)
    assert document(client, run)["state"] == "DONE"
    assert answers(client, run) == expected()
    assert verify(gateway.state).findings == ()


def test_a_gateway_killed_behind_a_cancel_has_cancelled(tmp_path: Path) -> None:
    token = add_client(tmp_path, "north")
    with serving(tmp_path, HOLDFAST_CRASH="gateway.cancel.after:1") as gateway:
        with gateway.client(token) as client:
            run = create(client)
            with pytest.raises(httpx.TransportError):
                client.post(f"/v1/runs/{run}/cancel")
        assert gateway.ended() == -signal.SIGKILL
    with serving(tmp_path) as again, again.client(token) as client:
        assert document(client, run)["state"] == "CANCELLED"
        assert client.post(f"/v1/runs/{run}/cancel").status_code == 200


def test_a_gateway_that_is_asked_to_end_ends_and_says_nothing(tmp_path: Path) -> None:
    token = add_client(tmp_path, "north")
    with serving(tmp_path) as gateway:
        with gateway.client(token) as client:
            run = create(client)
            stream = client.stream("GET", f"/v1/runs/{run}/events")
            with stream as found:
                lines = found.iter_lines()
                next(lines)
                assert gateway.stop() == 0
                list(lines)
        assert gateway.log() == ""


def test_every_point_of_the_gateway_is_tried() -> None:
    from holdfast._base.crashpoint import POINTS as KNOWN

    mine = {name for name in KNOWN if name.startswith("gateway.")}
    assert mine <= {*POINTS, "gateway.cancel.after"}
