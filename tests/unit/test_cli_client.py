"""`holdfast client`: one clear line for each mistake, a token shown once, nothing half done."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.command import QuickCommand

TOKEN = re.compile(r"hf_[0-9a-f]{16}_[0-9a-f]{64}")


@pytest.fixture
def holdfast(tmp_path: Path) -> QuickCommand:
    return QuickCommand(tmp_path)


def client(holdfast: QuickCommand, verb: str, *more: str) -> Any:
    ended = holdfast("client", verb, *more, "--state", "state", "--json")
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


def test_a_client_is_added_listed_rotated_and_revoked(holdfast: QuickCommand) -> None:
    options = ("--weight", "3", "--open-runs", "5", "--stored-bytes", "2GiB")
    added = client(holdfast, "add", "north", *options)
    assert TOKEN.fullmatch(added["token"])
    client(holdfast, "add", "east")
    east, north = client(holdfast, "list")["clients"]
    assert (east["client"], north["client"], north["weight"]) == ("east", "north", 3)
    assert (north["quotas"]["open_runs"], north["quotas"]["stored_bytes"]) == (5, 2 << 30)
    assert (north["tokens"], north["runs"], north["revoked"]) == (1, 0, False)
    rotated = client(holdfast, "rotate", "north", "--grace-s", "60")
    assert rotated["token"] != added["token"]
    assert client(holdfast, "list")["clients"][1]["tokens"] == 2
    client(holdfast, "revoke", "north")
    last = client(holdfast, "list")["clients"][1]
    assert (last["tokens"], last["revoked"]) == (0, True)


def test_a_token_is_shown_once_and_kept_nowhere(holdfast: QuickCommand, tmp_path: Path) -> None:
    ended = holdfast("client", "add", "north", "--state", "state")
    (token,) = TOKEN.findall(ended.out)
    assert "not shown again" in ended.out
    secret = token.rpartition("_")[2].encode()
    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if secret in path.read_bytes()] == []
    assert token not in holdfast("client", "list", "--state", "state", "--json").out


def test_a_webhook_is_set_by_the_owner_of_the_state_only(
    holdfast: QuickCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write anywhere; what it writes is closed to the service that is to read it."""
    client(holdfast, "add", "east")
    monkeypatch.setattr("os.geteuid", lambda: tmp_path.stat().st_uid + 1)
    place = ("--webhook", "https://north.example/done", "--state", "state")
    ended = holdfast("client", "add", "north", *place)
    assert (ended.code, "belongs to user" in ended.err) == (2, True)
    assert not (tmp_path / "state" / "secrets").exists()
    assert [one["client"] for one in client(holdfast, "list")["clients"]] == ["east"]


def test_a_webhook_has_a_secret_that_only_its_owner_reads(
    holdfast: QuickCommand, tmp_path: Path
) -> None:
    added = client(holdfast, "add", "north", "--webhook", "https://north.example/done")
    path = Path(added["webhook_secret_file"])
    assert path.is_relative_to(tmp_path / "state" / "secrets")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert len(path.read_bytes()) >= 32
    assert client(holdfast, "list")["clients"][0]["webhook"] == "https://north.example/done"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("add", "a b"), ("a b",)),
        (("add", "../x"), ("../x",)),
        (("add", ""), ("no name",)),
        (("add", "x" * 65), ("no name",)),
        (("add", "north", "--weight", "0"), ("weight",)),
        (("add", "north", "--stored-bytes", "much"), ("--stored-bytes much",)),
        (("add", "north", "--webhook", "ftp://x"), ("--webhook",)),
        (("add", "north", "--webhook", "http://north..example/done"), ("--webhook", "host")),
        (("add", "north", "--webhook", f"http://{'a' * 64}.example/"), ("--webhook", "host")),
        (("add", "north", "--webhook", "http:///done"), ("--webhook", "host")),
        (("add", "north", "--webhook", "http://[::1/done"), ("--webhook",)),
        (("add", "north", "--webhook", "http://north.example:99999/"), ("--webhook",)),
        (("rotate", "nobody"), ("no client nobody", "client list")),
        (("revoke", "nobody"), ("no client nobody",)),
    ],
    ids=str,
)
def test_a_mistake_is_one_line_and_changes_nothing(
    holdfast: QuickCommand, arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    client(holdfast, "add", "first")
    ended = holdfast("client", *arguments, "--state", "state")
    ended.failed("USAGE_INVALID", *parts, exit_code=2)
    assert [one["client"] for one in client(holdfast, "list")["clients"]] == ["first"]


def test_a_name_is_given_once(holdfast: QuickCommand) -> None:
    client(holdfast, "add", "north")
    ended = holdfast("client", "add", "north", "--state", "state")
    ended.failed("USAGE_INVALID", "already", "rotate", exit_code=2)
    assert client(holdfast, "list")["clients"][0]["tokens"] == 1
