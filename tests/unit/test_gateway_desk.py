"""One gateway's desk and application, without a socket: what a request leaves and waits for."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from tests.crash.workloads import SMALL, make_pipeline
from tests.service.door import CSV, checksum

from holdfast._base.clock import SystemClock
from holdfast._base.ids import RunId
from holdfast.engine.state import Shared, share
from holdfast.errors import BacklogFull, DiskFull, HoldfastError, QuotaReached, StorageFailed
from holdfast.gateway import events, runs, serve
from holdfast.gateway.app import make_app
from holdfast.gateway.desk import Desk
from holdfast.intake.tokens import make_token
from holdfast.store.client_rows import ChunkLook, Client, Quotas
from holdfast.store.contract import Store
from holdfast.store.rows import ChunkFacts, RunState
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.clock import VirtualClock

TEXT = b"shop,amount\na,1\n"


class Scene:
    """A desk, and one client that knows its application."""

    def __init__(self, shared: Shared, token: str) -> None:
        self._shared, self.headers = shared, {"Authorization": f"Bearer {token}"}
        self.desk = self._open()

    def _open(self) -> Desk:
        config = replace(SMALL, backlog_bytes=1 << 20, disk_floor_bytes=0)
        return Desk(self._shared, make_pipeline().spec(), config, SystemClock())

    def start_again(self) -> None:
        self.desk.close()
        self.desk = self._open()

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(make_app(self.desk), raise_app_exceptions=False)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://x", headers=self.headers
        ) as client:
            yield client

    @asynccontextmanager
    async def asking_elsewhere(self) -> AsyncIterator[httpx.AsyncClient]:
        """Ask another gateway of the same state."""
        first, self.desk = self.desk, self._open()
        try:
            async with self.asking() as client:
                self.desk, other = first, self.desk
                yield client
        finally:
            other.close()

    def limit(self, **quotas: int) -> None:
        """Give the client other quotas."""
        database = cast(SqliteStore, self._shared.store)._database
        with database.transaction() as connection:
            connection.execute("UPDATE client SET quotas = ?", (json.dumps(quotas),))

    def blobs(self) -> list[str]:
        return list(self.desk.blobs.names())


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    text, token = make_token()
    with share(tmp_path / "state", SMALL, part="gateway", spec=make_pipeline().spec()) as shared:
        shared.store.add_client(Client("north", quotas=Quotas(stored_bytes=100)), token)
        scene = Scene(shared, text)
        try:
            yield scene
        finally:
            scene.desk.close()


async def create(client: httpx.AsyncClient, key: str = "k") -> str:
    answer = await client.post("/v1/runs", headers={"Idempotency-Key": key}, json={})
    assert answer.status_code in (200, 201), answer.text
    run: str = answer.json()["run"]
    return run


async def put(
    client: httpx.AsyncClient, run: str, data: bytes = TEXT, *, ordinal: int | str = 1
) -> httpx.Response:
    headers = {**CSV, "Holdfast-Checksum": checksum(data)}
    path = f"/v1/runs/{run}/tables/sales/chunks/{ordinal}"
    return await client.put(path, headers=headers, content=data)


class _Unjudged:
    """Documents that cannot be looked at."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def formats(self, table: str) -> tuple[str, ...]:
        return ("csv", table)

    def check(self, *_: object) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "status"), [(StorageFailed(path="p", error="e"), 503), (TypeError("ours"), 500)]
)
def test_an_upload_that_cannot_be_judged_leaves_no_blob(
    scene: Scene, error: Exception, status: int
) -> None:
    async def ask() -> None:
        async with scene.asking() as client:
            run = await create(client)
            able = scene.desk.documents
            scene.desk.documents = cast(Any, _Unjudged(error))
            assert (await put(client, run)).status_code == status
            assert scene.blobs() == []
            scene.desk.documents = able
            assert (await put(client, run)).status_code == 201

    asyncio.run(ask())


class _Failing:
    """A store of which one question fails for the first times."""

    def __init__(
        self, store: Store, name: str, times: int, error: HoldfastError | None = None
    ) -> None:
        self._store, self._name, self._left = store, name, times
        self._error = error or StorageFailed(path="p", error="e")

    def __getattr__(self, name: str) -> Any:
        if name != self._name or not self._left:
            return getattr(self._store, name)
        self._left -= 1

        def fail(*_: object, **__: object) -> None:
            raise self._error

        return fail


def test_uploads_right_after_a_start_wait_for_what_is_kept_already(scene: Scene) -> None:
    """100 bytes are allowed, 80 are there: of six uploads at once of 16 bytes, one has room."""

    async def ask() -> None:
        async with scene.asking() as client:
            run = await create(client)
            for ordinal in range(1, 6):
                assert (await put(client, run, ordinal=ordinal)).status_code == 201
        scene.start_again()
        async with scene.asking() as client:
            several = [put(client, run, ordinal=ordinal) for ordinal in range(6, 12)]
            codes = [answer.status_code for answer in await asyncio.gather(*several)]
        assert sorted(codes) == [201] + [429] * 5

    asyncio.run(ask())


@pytest.mark.parametrize("desks", [1, 2])
def test_uploads_at_once_leave_a_run_as_many_chunks_as_it_may_have(
    scene: Scene, desks: int
) -> None:
    """Each looks before any is bound. The transaction that binds decides; nothing stays behind."""
    scene.limit(run_chunks=3)

    async def ask() -> None:
        async with scene.asking() as client, scene.asking_elsewhere() as other:
            run = await create(client)
            doors = (client, other if desks == 2 else client)
            several = [put(doors[n % 2], run, ordinal=n) for n in range(1, 13)]
            answers = await asyncio.gather(*several)
        refused = [answer for answer in answers if answer.status_code != 201]
        assert [answer.status_code for answer in refused] == [429] * 9
        assert {answer.json()["code"] for answer in refused} == {"QUOTA_REACHED"}
        assert len(scene.blobs()) == 3

    asyncio.run(ask())


def test_two_gateways_keep_no_more_bytes_than_one(scene: Scene) -> None:
    """100 bytes are allowed, and neither knows what the other just took."""

    async def ask() -> None:
        async with scene.asking() as client, scene.asking_elsewhere() as other:
            run = await create(client)
            several = [put((client, other)[n % 2], run, ordinal=n) for n in range(1, 13)]
            answers = await asyncio.gather(*several)
        assert sorted(answer.status_code for answer in answers) == [201] * 6 + [429] * 6
        assert scene.desk.store.read_use("north").stored_bytes == 6 * len(TEXT)
        assert len(scene.blobs()) == 6

    asyncio.run(ask())


def test_a_look_at_what_is_kept_that_failed_is_made_again(scene: Scene) -> None:
    async def ask() -> None:
        async with scene.asking() as client:
            run = await create(client)
            for ordinal in range(1, 7):
                assert (await put(client, run, ordinal=ordinal)).status_code == 201
        scene.start_again()
        scene.desk.store = cast(Any, _Failing(scene.desk.store, "read_use", 1))
        async with scene.asking() as client:
            assert (await put(client, run, ordinal=7)).status_code == 503
            assert (await put(client, run, ordinal=7)).status_code == 429

    asyncio.run(ask())


def test_bytes_that_come_without_a_length_count_as_what_waits(scene: Scene) -> None:
    """Those of others: a chunk that is larger than what may wait is still taken."""
    client = Client("north", quotas=Quotas(stored_bytes=1 << 30))
    look = ChunkLook(
        ChunkFacts(RunId("r"), RunState.OPEN, True, None, None, False), whole=False, run_chunks=0
    )
    desk = scene.desk
    with desk.upload(client, look, 2) as one, desk.upload(client, look, 2) as other:
        one.take(0)
        other.take(0)
        one.take(desk.config.backlog_bytes)
        one.take(1)
        with pytest.raises(BacklogFull):
            other.take(1)
        with pytest.raises(QuotaReached), desk.upload(client, look, 2):
            pass


def test_a_request_is_counted_until_it_ends(scene: Scene) -> None:
    async def ask() -> None:
        use = scene.desk.use_of(Client("north"))
        use.requests = scene.desk.config.connections_max // 4
        async with scene.asking() as client:
            answer = await client.get("/v1/runs")
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
            use.requests -= 1
            assert (await client.get("/v1/runs")).status_code == 200
            assert (await client.get("/v1/runs/nothing")).status_code == 404
        assert use.requests == scene.desk.config.connections_max // 4 - 1

    asyncio.run(ask())


def test_the_key_of_a_swept_run_is_gone_like_the_run(scene: Scene) -> None:
    async def ask() -> None:
        async with scene.asking() as client:
            run = await create(client)
            assert (await client.post(f"/v1/runs/{run}/cancel")).status_code == 200
            fence = scene.desk.store.take_lease("delivery", "test")
            moved = scene.desk.store.move_run(
                fence, RunId(run), expected=RunState.CANCELLED, to=RunState.SWEPT
            )
            assert moved
            again = await client.post("/v1/runs", headers={"Idempotency-Key": "k"}, json={})
            assert (again.status_code, again.json()["code"]) == (410, "RUN_GONE")
            assert again.json() == (await client.get(f"/v1/runs/{run}")).json()
            scene.desk.store.clear_run(fence, RunId(run), uploads="chunks/")
            for senders in ({}, {"shops": ["other"]}):
                body = {"senders": senders}
                again = await client.post("/v1/runs", headers={"Idempotency-Key": "k"}, json=body)
                assert (again.status_code, again.json()["code"]) == (410, "RUN_GONE")

    asyncio.run(ask())


def test_long_questions_of_one_client_leave_a_thread_to_others(scene: Scene) -> None:
    """However many it asks at once, and whoever asks for its token meanwhile."""
    gate, began = threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        gate.wait(20)

    async def ask() -> None:
        long = [asyncio.create_task(scene.desk.read_long("south", wait)) for _ in range(8)]
        await asyncio.to_thread(began.wait, 20)
        async with scene.asking() as client, asyncio.timeout(10):
            assert (await client.get("/v1/runs")).status_code == 200
        gate.set()
        await asyncio.gather(*long)

    asyncio.run(ask())


def test_a_question_that_nobody_waits_for_any_more_still_counts(scene: Scene) -> None:
    """A client that opens and leaves, again and again, has one thread under way, not all."""
    gate, began = threading.Event(), threading.Event()
    asking: list[int] = []

    def wait() -> None:
        asking.append(1)
        began.set()
        gate.wait(20)

    async def ask() -> None:
        for _ in range(5):
            left = asyncio.create_task(scene.desk.read_long("south", wait))
            await asyncio.to_thread(began.wait, 20)
            left.cancel()
            await asyncio.wait([left])
        async with asyncio.timeout(10):
            assert await scene.desk.read(len, asking) == 1
        gate.set()
        assert await scene.desk.read_long("south", len, asking) == 1

    asyncio.run(ask())


def test_streams_that_are_opened_together_are_counted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each from its first step on, and until it has ended."""
    monkeypatch.setattr(events, "STREAMS_AT_ONCE", 2)
    gate, look = threading.Event(), events._look

    def slow(*args: Any) -> object:
        gate.wait(20)
        return look(*args)

    monkeypatch.setattr(events, "_look", slow)

    async def ask() -> None:
        async with scene.asking() as client:
            run = await create(client)
            assert (await client.post(f"/v1/runs/{run}/cancel")).status_code == 200
            use = scene.desk.use_of(Client("north"))
            use.streams = 1
            asked = [asyncio.create_task(client.get(f"/v1/runs/{run}/events")) for _ in range(5)]
            for refused in islice(asyncio.as_completed(asked), 4):
                await refused
            gate.set()
            found = sorted(answer.status_code for answer in await asyncio.gather(*asked))
            assert found == [200, 429, 429, 429, 429]
            assert use.streams == 1

    asyncio.run(ask())


@pytest.mark.parametrize("ordinal", ["1_0", "+1", "1.0", "%201", "\u0661"])
def test_an_ordinal_is_digits(scene: Scene, ordinal: str) -> None:
    async def ask() -> None:
        async with scene.asking() as client:
            run = await create(client)
            answer = await put(client, run, ordinal=ordinal)
            assert (answer.status_code, answer.json()["code"]) == (400, "USAGE_INVALID")
            assert (await client.get("/v1/runs?limit=1_0")).status_code == 400

    asyncio.run(ask())


def test_no_run_is_created_where_the_disk_has_no_room(scene: Scene) -> None:
    """Rows are bytes, too."""
    scene.desk.config = replace(scene.desk.config, disk_floor_bytes=1 << 49)

    async def ask() -> None:
        async with scene.asking() as client:
            answer = await client.post("/v1/runs", headers={"Idempotency-Key": "k"}, json={})
            assert (answer.status_code, answer.json()["code"]) == (429, "DISK_NEARLY_FULL")

    asyncio.run(ask())


def test_a_run_that_is_there_is_found_again_where_the_disk_has_no_room(scene: Scene) -> None:
    """Its creator may not have heard of it. The answers are those that an empty disk gets."""

    async def ask() -> None:
        async with scene.asking() as client:
            run = await create(client)
            scene.desk.config = replace(scene.desk.config, disk_floor_bytes=1 << 49)
            found = []
            for body in ({}, {"kind": "spark", "senders": {"sales": ["other"]}}):
                headers = {"Idempotency-Key": "k"}
                answer = await client.post("/v1/runs", headers=headers, json=body)
                found.append((answer.status_code, answer.json()["run"]))
            assert found == [(200, run), (409, run)]

    asyncio.run(ask())


def test_a_page_ends_early_after_many_chunks(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        async with scene.asking() as client:
            made = [await create(client, f"k{number}") for number in range(3)]
            for ordinal in range(1, 5):
                assert (await put(client, made[0], ordinal=ordinal)).status_code == 201
            senders = len(scene.desk.store.read_progress(RunId(made[0])))
            monkeypatch.setattr(runs, "_ROWS_AS_SENDER", 2)
            monkeypatch.setattr(runs, "_LIST_COST", senders + 2)
            first = (await client.get("/v1/runs")).json()
            assert [run["run"] for run in first["runs"]] == made[:1]
            rest = (await client.get("/v1/runs", params={"after": first["next"]})).json()
            assert [run["run"] for run in rest["runs"]] == made[1:]

    asyncio.run(ask())


class _FullLog(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "no room")


def test_an_upload_for_which_the_store_has_no_room_leaves_no_blob(scene: Scene) -> None:
    """Each try would leave one: as large as what somebody just made room for."""
    store = scene.desk.store
    scene.desk.store = cast(Any, _Failing(store, "bind_chunk", 1, DiskFull(path="p")))

    async def ask() -> None:
        async with scene.asking() as client:
            run = await create(client)
            answer = await put(client, run)
            assert (answer.status_code, answer.json()["code"]) == (507, "DISK_FULL")
            assert scene.blobs() == []
            assert (await put(client, run)).status_code == 201

    asyncio.run(ask())


def test_a_log_that_cannot_be_written_changes_no_answer(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> None:
        async with scene.asking() as client:
            run = await create(client)
            scene.desk.documents = cast(Any, _Unjudged(DiskFull(path="p")))
            monkeypatch.setattr("sys.stderr", _FullLog())
            answer = await put(client, run)
        assert (answer.status_code, answer.json()["code"]) == (507, "DISK_FULL")

    asyncio.run(ask())


def test_tokens_age_on_after_the_store_failed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The operator is told once, and the time that passed meanwhile is counted later."""
    monkeypatch.setattr(serve, "_AGE_S", 0.001)
    desk = scene.desk
    assert desk.store.rotate_token("north", make_token()[1], grace_ms=50)
    assert desk.store.read_use("north").tokens == 2
    desk.store = cast(Any, _Failing(desk.store, "age_tokens", 3))

    async def age() -> None:
        aging = asyncio.create_task(serve._age_tokens(desk, desk.clock))
        async with asyncio.timeout(20):
            while desk.store.read_use("north").tokens == 2:
                await asyncio.sleep(0)
                assert not aging.done()
        aging.cancel()

    asyncio.run(age())
    assert capsys.readouterr().err.count("STORAGE_FAILED") == 1


def test_time_in_which_the_store_was_waited_for_is_tokens_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are served meanwhile: an old token would be good for as much longer."""
    monkeypatch.setattr(serve, "_AGE_S", 0.001)
    clock, desk = VirtualClock(), scene.desk
    assert desk.store.rotate_token("north", make_token()[1], grace_ms=20_000)
    gate, age_tokens = threading.Event(), desk.store.age_tokens

    def slow(elapsed_ms: int, *, seen: int) -> int:
        found = age_tokens(elapsed_ms, seen=seen)
        gate.wait(20 if seen >= 0 else 0)
        return found

    monkeypatch.setattr(desk.store, "age_tokens", slow)

    async def age() -> None:
        aging = asyncio.create_task(serve._age_tokens(desk, clock))
        for _ in range(40):
            await asyncio.sleep(0.005)
            clock.advance(1)
        assert desk.store.read_use("north").tokens == 2
        gate.set()
        async with asyncio.timeout(20):
            while desk.store.read_use("north").tokens == 2:
                await asyncio.sleep(0.005)
                assert not aging.done()
        aging.cancel()

    asyncio.run(age())


def test_time_in_which_a_gateway_stood_still_is_no_tokens_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_AGE_S", 0.001)
    clock, desk = VirtualClock(), scene.desk
    assert desk.store.rotate_token("north", make_token()[1], grace_ms=20_000)

    async def age() -> None:
        aging = asyncio.create_task(serve._age_tokens(desk, clock))
        await asyncio.sleep(0.05)
        clock.advance(3600)
        await asyncio.sleep(0.05)
        assert desk.store.read_use("north").tokens == 2
        async with asyncio.timeout(20):
            while desk.store.read_use("north").tokens == 2:
                clock.advance(1)
                await asyncio.sleep(0.002)
        aging.cancel()

    asyncio.run(age())
