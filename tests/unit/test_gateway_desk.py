"""One gateway's desk and application, without a socket: what a request leaves, what it waits for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from tests.crash.workloads import SMALL, make_pipeline
from tests.service.door import CSV, checksum

from holdfast._base.clock import SystemClock
from holdfast.engine.state import share
from holdfast.errors import StorageFailed
from holdfast.gateway.app import make_app
from holdfast.gateway.desk import Desk
from holdfast.intake.tokens import make_token
from holdfast.store.client_rows import Client, Quotas

TEXT = b"shop,amount\na,1\n"


class Scene:
    """A desk, and one client that knows its application."""

    def __init__(self, desk: Desk, token: str) -> None:
        self.desk, self.headers = desk, {"Authorization": f"Bearer {token}"}

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(make_app(self.desk), raise_app_exceptions=False)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://x", headers=self.headers
        ) as client:
            yield client

    def blobs(self) -> list[str]:
        return list(self.desk.blobs.names())


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    spec = make_pipeline().spec()
    text, token = make_token()
    with share(tmp_path / "state", SMALL, part="gateway", spec=spec) as shared:
        shared.store.add_client(Client("north", quotas=Quotas(stored_bytes=100)), token)
        desk = Desk(shared, spec, SMALL, SystemClock())
        try:
            yield Scene(desk, text)
        finally:
            desk.close()


async def create(client: httpx.AsyncClient, key: str = "k") -> str:
    answer = await client.post("/v1/runs", headers={"Idempotency-Key": key}, json={})
    assert answer.status_code in (200, 201), answer.text
    run: str = answer.json()["run"]
    return run


async def put(
    client: httpx.AsyncClient, run: str, data: bytes = TEXT, *, ordinal: int = 1
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
