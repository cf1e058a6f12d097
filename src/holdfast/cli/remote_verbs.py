"""The verbs of a client: `submit`, `watch`, `results`, `cancel`. What they do loads when called."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

Url = Annotated[
    str, typer.Option(envvar="HOLDFAST_URL", help="The server, like http://127.0.0.1:8080.")
]
TokenFile = Annotated[
    Path, typer.Option(envvar="HOLDFAST_TOKEN_FILE", help="File that holds the client's token.")
]
CaFile = Annotated[
    Path | None, typer.Option(help="Certificates to trust.", show_default="the system's")
]
PlainHttp = Annotated[
    bool, typer.Option("--plain-http", help="Allow http to another machine: the token is in clear.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Run = Annotated[str, typer.Argument(help="The run's id, as `submit` printed it.")]


def submit(
    directory: Annotated[Path, typer.Argument(help="Directory with the input files.")],
    url: Url,
    token_file: TokenFile,
    key: Annotated[
        str | None,
        typer.Option(
            help="Names the run: the same key, the same run.",
            show_default="made of the files' names and bytes",
        ),
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(
            help="The pipeline, if it is here: file names are checked before the server is asked."
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the run is DONE.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Wait, and write the results to this directory.")
    ] = None,
    empty: Annotated[
        list[str] | None, typer.Option(metavar="TABLE", help="A table that has no file.")
    ] = None,
    ignore_unknown: Annotated[
        bool, typer.Option("--ignore-unknown", help="Leave files alone that belong to no table.")
    ] = False,
    chunk_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Size at which files are cut.", show_default="16MiB"),
    ] = None,
    connections: Annotated[
        int, typer.Option(min=1, max=64, help="Chunks sent at the same time.")
    ] = 4,
    ca_file: CaFile = None,
    plain_http: PlainHttp = False,
    as_json: Json = False,
) -> None:
    """Hand in a directory to a server, or go on with it: the same command, the same run.

    Example: holdfast submit data --url http://127.0.0.1:8080 --token-file token
    """
    from holdfast.cli.remote import Server
    from holdfast.cli.submit import Request, submit_command

    submit_command(
        Request(
            directory=directory,
            server=Server(url, token_file, ca_file, plain_http),
            key=key,
            pipeline=pipeline,
            empty=tuple(empty or ()),
            ignore_unknown=ignore_unknown,
            chunk_bytes=chunk_bytes,
            connections=connections,
            wait=wait,
            out=out,
            as_json=as_json,
        )
    )


def watch(
    run: Run,
    url: Url,
    token_file: TokenFile,
    ca_file: CaFile = None,
    plain_http: PlainHttp = False,
    as_json: Json = False,
) -> None:
    """Follow a run on a server until it is DONE. Exit code 1: it ended otherwise.

    Example: holdfast watch RUN --url http://127.0.0.1:8080 --token-file token
    """
    from holdfast.cli.remote import Server
    from holdfast.cli.watch import watch_command

    watch_command(run, Server(url, token_file, ca_file, plain_http), as_json=as_json)


def results(
    run: Run,
    url: Url,
    token_file: TokenFile,
    out: Annotated[Path, typer.Option(help="Directory for the result files.")],
    ca_file: CaFile = None,
    plain_http: PlainHttp = False,
    as_json: Json = False,
) -> None:
    """Fetch the results of a finished run, or what is missing of them; verify every checksum.

    Example: holdfast results RUN --url http://127.0.0.1:8080 --token-file token --out answers
    """
    from holdfast.cli.remote import Server
    from holdfast.cli.results import results_command

    results_command(run, Server(url, token_file, ca_file, plain_http), out, as_json=as_json)


def cancel(
    run: Run,
    url: Url,
    token_file: TokenFile,
    ca_file: CaFile = None,
    plain_http: PlainHttp = False,
    as_json: Json = False,
) -> None:
    """Cancel a run on a server. That is final.

    Example: holdfast cancel RUN --url http://127.0.0.1:8080 --token-file token
    """
    from holdfast.cli.remote import Server, connected

    with connected(Server(url, token_file, ca_file, plain_http)) as client:
        info = client.cancel(run)
    if as_json:
        sys.stdout.write(json.dumps({"run": info.run, "state": info.state}) + "\n")
        return
    sys.stdout.write(f"run {info.run} is {info.state}\n")


VERBS = (submit, watch, results, cancel)
"""In the order of `holdfast --help`."""
