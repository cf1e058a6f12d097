"""What `holdfast up` hands to its parts, and which addresses it waits for."""

from __future__ import annotations

import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.command import QuickCommand

from holdfast.cli.up import UpRequest, check_listen, commands_of
from holdfast.errors import DependencyMissing, UsageInvalid


def asked(listen: str = "127.0.0.1:0") -> UpRequest:
    return UpRequest("coffee", Path("state"), listen, insecure_listen=True)


def test_each_part_gets_its_own_options() -> None:
    """A gateway's and a delivery's; one that was not given is not passed on."""
    given = replace(asked(), metrics_client="ops", producer="requests", amqp="amqp://a@b/")
    commands = commands_of(given)
    assert {"--metrics-client=ops", "--producer=requests"} < set(commands["gateway"])
    assert "--amqp=amqp://a@b/" in commands["delivery"]
    names = ("--metrics-client", "--producer", "--amqp")
    others = [*commands["engine"], *(one for part in commands_of(asked()).values() for one in part)]
    assert [one for one in others if one.startswith(names)] == []


def test_a_password_on_the_command_line_is_refused_before_anything_starts(tmp_path: Path) -> None:
    url = "amqp://me:canary@localhost/"
    told = QuickCommand(tmp_path)("up", "--pipeline", "coffee", "--state", "new", "--amqp", url)
    told.failed("USAGE_INVALID", "HOLDFAST_AMQP_PASSWORD_FILE", exit_code=2)
    assert "canary" not in told.err
    assert not (tmp_path / "new").exists()


def test_only_a_taken_address_may_become_free() -> None:
    """Whoever waits looks whether to stop: for what never changes nobody looks."""

    def never() -> bool:
        raise AssertionError("it waits")

    with pytest.raises(UsageInvalid, match=r"192\.0\.2\.1"):
        check_listen(asked("192.0.2.1:8080"), never)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = asked(f"127.0.0.1:{other.getsockname()[1]}")
        with pytest.raises(AssertionError, match="it waits"):
            check_listen(taken, never)
        check_listen(taken, lambda: True)
    check_listen(taken, never)


def test_without_the_door_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "holdfast.gateway.serve", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(DependencyMissing) as caught:
        check_listen(asked(), lambda: True)
    assert caught.value.what == "the gateway needs uvicorn"
    assert "holdfast[server]" in caught.value.install
