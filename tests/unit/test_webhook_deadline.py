"""One attempt at a webhook has one deadline, however its receiver answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, islice, repeat
from pathlib import Path

import pytest
from tests.receiver import receiving
from tests.unit.delivery_scene import CLIENT, RUN, DeliveryScene, delivering

from holdfast._base.clock import pause
from holdfast._base.ids import RunId
from holdfast.config import Config
from holdfast.delivery.webhook import THREADS
from holdfast.store.result_rows import NoticeState
from holdfast.store.rows import NewRun, SenderDecl

TIMEOUT_S = 0.5
PATIENT = Config(notice_timeout_s=TIMEOUT_S, notice_wait_s=3600)
LINES: dict[str, Callable[[], Iterator[int]]] = {
    "a head": lambda: chain(b"HTTP/1.1 200 OK\r\nX: ", repeat(ord("x"))),
    "interim answers": lambda: chain.from_iterable(repeat(b"HTTP/1.1 100 Continue\r\n\r\n")),
    "a handshake": lambda: chain(b"\x16\x03\x03\x3f\xff", repeat(2)),
}


@contextmanager
def dribbling(said: Callable[[], Iterator[int]]) -> Iterator[str]:
    """Listen, and answer each request by a byte now and then, for longer than anybody waits."""
    over = threading.Event()

    def answer(line: socket.socket) -> None:
        with line:
            for byte in islice(said(), 100):
                try:
                    line.send(bytes([byte]))
                except OSError:
                    return
                if over.wait(TIMEOUT_S / 5):
                    return

    def serve(bound: socket.socket) -> None:
        for _ in range(THREADS):
            line, _ = bound.accept()
            threading.Thread(target=answer, args=(line,), daemon=True).start()

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen(THREADS)
        threading.Thread(target=serve, args=(bound,), daemon=True).start()
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/"
        over.set()


def end_run(scene: DeliveryScene, client: str, url: str, run: RunId = RUN) -> None:
    """Let a run of a client end, whose notice goes to `url`."""
    scene.store.set_webhook(client, url)
    scene.store.create_run(NewRun(run, client, "p", {}, 1, (SenderDecl("t", "", 1),), 0))
    fence = scene.store.take_lease("engine", "test")
    assert scene.store.move_run(fence, run, expected="OPEN", to="FAILED", error="why")


@pytest.mark.parametrize("said", LINES)
def test_a_receiver_that_dribbles_is_a_failure_in_time(tmp_path: Path, said: str) -> None:
    with dribbling(LINES[said]) as url, delivering(tmp_path, PATIENT) as scene:
        scheme = "https" if said == "a handshake" else "http"
        end_run(scene, CLIENT, url.replace("http", scheme))
        scene.run()
        [notice] = scene.store.list_notices()
        assert (notice.failures, notice.state) == (1, NoticeState.WAITING)
        # TLS has a deadline of its own for its handshake, as long as ours.
        assert scheme == "https" or notice.error == f"no answer within {TIMEOUT_S} s"


def test_as_many_dribble_as_there_are_threads_and_another_is_told(tmp_path: Path) -> None:
    """They hold all threads for one time-out at most, and the end of the process likewise."""
    with (
        dribbling(LINES["a head"]) as url,
        receiving(tmp_path / "receiver") as receiver,
        delivering(tmp_path, PATIENT) as scene,
    ):
        for number in range(THREADS):
            end_run(scene, f"slow-{number}", url, RunId(f"slow-{number}"))
        scene.delivery.advance()
        end_run(scene, "quick", receiver.url, RunId("quick"))
        for _ in range(round(6 * TIMEOUT_S / 0.01)):
            scene.delivery.advance()
            if receiver.seen():
                break
            pause(0.01)
        assert len(receiver.seen()) == 1
