"""The disk of a service fills up under its engine and its delivery, and has room again later."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from tests.mounts import small_disk
from tests.service.floor import SMALL, check, hand_in, make_pipeline, open_state, states
from tests.service.processes import BUSY_S, DRAINED_S, Process, all_gone, children_of, until

from holdfast._base.clock import SystemClock
from holdfast.cli.delivery import deliver
from holdfast.cli.turns import take_turns
from holdfast.cli.upkeep import LOOP_ENDS
from holdfast.engine.executor import BatchWork, SeriesWork
from holdfast.engine.serve import Halt, ServedEngine, Telling
from holdfast.engine.state import Shared, share
from holdfast.errors import HoldfastError
from holdfast.store.leases import DELIVERY_RESOURCE, ENGINE_RESOURCE, Sight, look_again
from holdfast.testing.plain import PlainExecutor


def fill(disk: Path) -> None:
    """Leave not a byte."""
    with (disk / "ballast").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


class Place:
    """A state on a small disk, and a part that works there in a thread."""

    def __init__(self, root: Path, shared: Shared) -> None:
        self.root, self.shared, self.store = root, shared, shared.store
        self.said: list[str] = []
        self.errors: list[BaseException] = []
        self.halt = Halt()
        self._thread: threading.Thread | None = None

    def start(self, serve: Callable[[], None]) -> None:
        def work() -> None:
            try:
                serve()
            except BaseException as error:  # it is looked at by the test, in another thread
                self.errors.append(error)

        self._thread = threading.Thread(target=work)
        self._thread.start()

    def end(self) -> None:
        self.halt.ask()
        if self._thread is not None:
            self._thread.join(30)
            assert not self._thread.is_alive()

    def fill(self) -> None:
        fill(self.root)

    def make_room(self) -> None:
        (self.root / "ballast").unlink()

    def until_silent(self, resource: str) -> None:
        """Wait until one that stands by would have lost its patience."""
        sight: Sight | None = None

        def is_silent() -> bool:
            nonlocal sight
            now_s = SystemClock().monotonic_s()
            sight = look_again(sight, self.store.read_lease(resource), now_s)
            return bool(self.errors) or now_s - sight.since_s > SMALL.lease_patience_s

        until("no beat came for longer than patience", is_silent)
        assert self.errors == []

    def until_it_beats(self, resource: str) -> None:
        before = self.store.read_lease(resource)
        beats = lambda: bool(self.errors) or self.store.read_lease(resource) != before  # noqa: E731 - a condition
        until("it beats again", beats)
        assert self.errors == []


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with (
        small_disk(tmp_path / "disk", 16 << 10) as disk,
        share(disk.path / "state", SMALL, part="test", spec=make_pipeline().spec()) as shared,
    ):
        place = Place(disk.path, shared)
        try:
            yield place
        finally:
            place.end()


def test_an_engine_waits_for_room_and_goes_on(place: Place) -> None:
    """Its runs are left alone meanwhile; the same grant of the lease serves them afterwards."""
    troubles: list[HoldfastError] = []

    def before(work: BatchWork | SeriesWork) -> None:
        del work
        if not troubles:
            place.fill()

    engine = ServedEngine(
        place.shared,
        make_pipeline().spec(),
        lambda: PlainExecutor(make_pipeline(), before),
        config=SMALL,
        telling=Telling(
            place.said.append, lambda *_: None, lambda _, error: troubles.append(error)
        ),
        halt=place.halt,
    )
    hand_in(place.shared, "a")
    place.start(engine.serve)
    until("a run met the full disk", lambda: bool(troubles))
    place.until_silent(ENGINE_RESOURCE)
    assert {error.code for error in troubles} == {"DISK_FULL"}
    place.make_room()
    until("it is complete", lambda: states(place.store) == {"a": "COMPLETING"})
    check(place.root / "state", place.store, "a")
    assert place.said == ["active, epoch 1"]


def test_a_delivery_waits_for_room_and_goes_on(place: Place) -> None:
    def serve() -> None:
        take_turns(
            place.shared,
            DELIVERY_RESOURCE,
            SMALL,
            place.halt,
            lambda fence, over: deliver(place.shared, SMALL, fence, over, say),
            say,
        )

    def say(event: str, message: str) -> None:
        del message
        place.said.append(event)

    place.start(serve)
    until("it is active", lambda: "active" in place.said)
    place.fill()
    place.until_silent(DELIVERY_RESOURCE)
    place.make_room()
    place.until_it_beats(DELIVERY_RESOURCE)
    assert place.said.count("active") == 1


@contextmanager
def rebooted(root: Path, *command: str) -> Iterator[Process]:
    """Start a service whose state is on a disk that was full before; `root` is the disk's."""
    open_state(root / "state", ("a",))
    fill(root)
    process = Process(*command)
    try:
        yield process
    finally:
        below = children_of(process.pid)
        process.end()
        until(f"{below} end with their supervisor", partial(all_gone, below), 20)


def test_a_part_that_starts_on_a_full_disk_is_started_until_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16 << 10) as disk:
        state = str(disk.path / "state")
        delivery = f"delivery=holdfast.cli delivery --state {state}"
        with rebooted(disk.path, "tests.service.up_plain", state, delivery) as up:
            words = "delivery ended with exit code 75: holdfast: [DISK_FULL]"
            until("it ended often", lambda: up.text.count(words) >= LOOP_ENDS)
            assert not up.said("crash loop")
            (disk.path / "ballast").unlink()
            up.until_said("delivery: active, epoch 1")
            up.signal(signal.SIGTERM)
            assert up.wait(DRAINED_S + BUSY_S) == 0


def test_a_service_that_starts_on_a_full_disk_waits_for_room(tmp_path: Path) -> None:
    pipeline = tmp_path / "floor_on_disk.py"
    pipeline.write_text("from tests.service.floor import make_pipeline\n\npipe = make_pipeline()\n")
    with small_disk(tmp_path / "disk", 16 << 10) as disk:
        place = ("--pipeline", str(pipeline), "--state", str(disk.path / "state"))
        arguments = ("holdfast.cli", "up", *place, "--listen", "127.0.0.1:0")
        with rebooted(disk.path, *arguments) as up:
            up.until_said("nothing is started yet: [DISK_FULL]")
            (disk.path / "ballast").unlink()
            up.until_said("started delivery")
            assert up.said("started gateway")
            assert up.text.count("DISK_FULL") == 1
