"""The processes of servers, tested with one that never gets ready."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration import processes
from tests.integration.processes import ServerProcess


@pytest.mark.parametrize("breaks", [False, True])
def test_a_server_that_does_not_get_ready_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: bool
) -> None:
    monkeypatch.setattr(processes, "READY_S", 0.2)

    def ready() -> bool:
        assert not breaks
        return False

    server = ServerProcess(["sleep", "600"], log=tmp_path / "log", ready=ready)
    with pytest.raises(AssertionError):
        server.start()
    assert not Path(f"/proc/{server.pid}").exists()
