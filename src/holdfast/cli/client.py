"""`holdfast client`: who may use the HTTP door. A token is shown once, when it is made.

Works on a state directory whether or not a gateway serves it; what is done here counts from the
next request on, nothing has to be started again.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from holdfast._base.files import FILE_MODE, os_errors
from holdfast.cli.sizes import parse_size
from holdfast.cli.words import counted, size_of
from holdfast.errors import UsageInvalid

if TYPE_CHECKING:
    from holdfast.engine.state import Shared

app = typer.Typer(help="Clients of the HTTP door, and their tokens.", rich_markup_mode=None)

State = Annotated[Path, typer.Option(help="Directory that holds the service's state.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Name = Annotated[str, typer.Argument(help="Name of the client.")]


@contextmanager
def _shared(state: Path) -> Iterator[Shared]:
    from holdfast.engine.state import share

    with share(state, part="client") as shared:
        yield shared


def _tell(shared: Shared, name: str, webhook: str) -> str:
    """Set where a client is told of its runs; returns the file of the secret to check it by."""
    from holdfast.delivery.signing import secret_path, signing_secret

    secrets = shared.directory.root / "secrets"
    signing_secret(secrets, name)
    shared.store.set_webhook(name, webhook)
    return str(secret_path(secrets, name))


def _check_owner(state: Path) -> None:
    """Refuse to make a secret that the service could not read: it would be this user's file."""
    with os_errors(state):
        if not state.exists() or (owner := state.stat().st_uid) == os.geteuid():
            return
    what = f"{state} belongs to user {owner}, to whom a secret of user {os.geteuid()} is closed"
    raise UsageInvalid(
        what=what, remedy=f"Run it as that user: sudo -u '#{owner}' holdfast client add"
    )


def _write(facts: dict[str, Any], lines: list[str], *, as_json: bool) -> None:
    text = json.dumps(facts) if as_json else "\n".join(lines)
    sys.stdout.write(text + "\n")


def _bytes(text: str | None, flag: str) -> int | None:
    if text is None:
        return None
    size = parse_size(text)
    if not size:
        raise UsageInvalid(what=f"{flag} {text} is no size", remedy="Write it as 64MiB or 64MB.")
    return size


def _check_webhook(url: str) -> None:
    what = f"--webhook {url!r} is no address"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
        # As the resolver will be asked for it: empty or long labels are refused there.
        is_address = bool(host.encode("idna")) and parts.scheme in ("https", "http")
    except ValueError as error:
        is_address, what = False, f"{what}, its host or port is none ({error})"
    if not is_address or any(char.isspace() for char in url):
        raise UsageInvalid(what=what, remedy="Write it as https://host/path.")


def _unknown(name: str) -> UsageInvalid:
    return UsageInvalid(what=f"there is no client {name}", remedy="See: holdfast client list")


def _token_lines(token: str) -> list[str]:
    return [f"token: {token}", "It is not shown again: keep it in a file that only you can read."]


def _write_token(path: Path, token: str) -> None:
    """Write a token where only its owner can read it. What is there already is not replaced."""
    with os_errors(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(f"{token}\n")


Count = Annotated[int | None, typer.Option(min=1, show_default="the gateway's setting")]
Size = Annotated[str | None, typer.Option(metavar="SIZE", show_default="the gateway's setting")]


@app.command()
def add(
    name: Name,
    state: State,
    weight: Annotated[int, typer.Option(min=1, help="Share of the engine.")] = 1,
    webhook: Annotated[
        str | None, typer.Option(metavar="URL", help="Where it is told of the ends of its runs.")
    ] = None,
    open_runs: Count = None,
    run_chunks: Count = None,
    request_rate: Count = None,
    stored_bytes: Size = None,
    chunk_bytes: Size = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the token there, do not show it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Add a client, and show its token. Quotas that are not given are the gateway's settings.

    Example: holdfast client add north --state state --weight 2 --stored-bytes 100GiB
    """
    from holdfast.intake.tokens import check_name, make_token
    from holdfast.store.client_rows import Client, Quotas

    check_name(name, "client")
    if webhook:
        _check_webhook(webhook)
        _check_owner(state)
    quotas = Quotas(
        open_runs=open_runs,
        stored_bytes=_bytes(stored_bytes, "--stored-bytes"),
        chunk_bytes=_bytes(chunk_bytes, "--chunk-bytes"),
        run_chunks=run_chunks,
        request_rate=request_rate,
    )
    text, token = make_token()
    if token_file is not None and token_file.exists():
        remedy = "Move it away, or give another file."
        raise UsageInvalid(what=f"{token_file} is there already", remedy=remedy)
    with _shared(state) as shared:
        if not shared.store.add_client(Client(name, weight, quotas), token):
            remedy = "Choose another name, or give it another token: holdfast client rotate"
            raise UsageInvalid(what=f"there is a client {name} already", remedy=remedy)
        if token_file is not None:
            _write_token(token_file, text)
        secret = _tell(shared, name, webhook) if webhook else None
    shown = {"token": text} if token_file is None else {"token_file": str(token_file)}
    facts = {"client": name, **shown, "weight": weight, "webhook": webhook}
    told = _token_lines(text) if token_file is None else [f"its token is in {token_file}"]
    lines = [f"added client {name}", *told]
    if secret:
        facts["webhook_secret_file"] = secret
        lines.append(f"webhook {webhook}: its signatures are checked with the secret in {secret}")
    where = shlex.quote(str(token_file or "FILE"))
    lines.append(f"next: holdfast submit DIR --url URL --token-file {where}")
    _write(facts | {"quotas": asdict(quotas)}, lines, as_json=as_json)


@app.command(name="list")
def list_(state: State, as_json: Json = False) -> None:
    """List clients, and what each of them takes.

    Example: holdfast client list --state state
    """
    from holdfast.engine.state import look

    with look(state) as (_, store):
        found = []
        for client in store.list_clients():
            use, webhook = store.read_use(client.client), store.read_webhook(client.client)
            found.append(asdict(client) | asdict(use) | {"webhook": webhook})
    lines = [_line(one) for one in found] or ["no clients; add one: holdfast client add NAME"]
    _write({"clients": found}, lines, as_json=as_json)


def _line(facts: dict[str, Any]) -> str:
    words = [
        "revoked" if facts["revoked"] else counted(facts["tokens"], "token"),
        f"weight {facts['weight']}",
        f"{counted(facts['runs'], 'run')}, {facts['open_runs']} open",
        size_of(facts["stored_bytes"]),
    ]
    if facts["webhook"]:
        words.append(f"webhook {facts['webhook']}")
    quotas = [f"{name} {value}" for name, value in facts["quotas"].items() if value]
    return f"{facts['client']}: {', '.join(words + quotas)}"


@app.command()
def rotate(
    name: Name,
    state: State,
    grace_s: Annotated[
        int, typer.Option(min=0, help="Seconds for which the old token stays good.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Give a client another token. The old one ends now, or after its grace.

    Example: holdfast client rotate north --state state --grace-s 3600
    """
    from holdfast.intake.tokens import make_token

    text, token = make_token()
    with _shared(state) as shared:
        if not shared.store.rotate_token(name, token, grace_ms=grace_s * 1000):
            raise _unknown(name)
    old = f"old tokens end after {grace_s} s of service" if grace_s else "old tokens open nothing"
    lines = [f"client {name} has another token; {old}", *_token_lines(text)]
    _write({"client": name, "token": text, "grace_s": grace_s}, lines, as_json=as_json)


@app.command()
def revoke(name: Name, state: State, as_json: Json = False) -> None:
    """Take all tokens of a client away, now. Its runs go on; `rotate` lets it in again.

    Example: holdfast client revoke north --state state
    """
    with _shared(state) as shared:
        if not shared.store.revoke_client(name):
            raise _unknown(name)
    lines = [f"client {name} is revoked: its tokens open nothing"]
    _write({"client": name, "revoked": True}, lines, as_json=as_json)
