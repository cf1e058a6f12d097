"""Every kind of ledger passes the public suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.postgres_server import PostgresServer

from holdfast.ledger.file_ledger import FileLedger
from holdfast.ledger.postgres.ledger import PostgresLedger
from holdfast.testing.ledgers import LEDGER_CHECKS, OpenLedger


@pytest.mark.parametrize("check", LEDGER_CHECKS, ids=lambda check: check.__name__)
def test_file_ledger(check: Callable[[OpenLedger], None], tmp_path: Path) -> None:
    check(lambda: FileLedger(f"file://{tmp_path}/ledger"))


@pytest.mark.parametrize("check", LEDGER_CHECKS, ids=lambda check: check.__name__)
def test_postgres_ledger(check: Callable[[OpenLedger], None], postgres: PostgresServer) -> None:
    url = postgres.new_url()
    check(lambda: PostgresLedger(url))
