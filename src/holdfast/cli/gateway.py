"""`holdfast gateway`: the HTTP door of a state directory, as a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from holdfast.errors import DependencyMissing

MetricsClient = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="A client that may read /metrics from elsewhere."),
]
Producer = Annotated[
    str | None,
    typer.Option(metavar="QUEUE", help="Request queue of the producer of external results."),
]


@contextmanager
def needing_server() -> Iterator[None]:
    """Say which package of the door is not there, and how it is got."""
    try:
        yield
    except ModuleNotFoundError as error:
        what = f"the gateway needs {error.name}"
        raise DependencyMissing(what=what, install="pip install 'holdfast[server]'") from error


def gateway(
    pipeline: Annotated[
        str, typer.Option(help="A bundled name (coffee), module:object, or a .py file.")
    ],
    state: Annotated[Path, typer.Option(help="Directory that holds the service's state.")],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 takes a free one.")
    ] = "127.0.0.1:8080",
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate chain, PEM.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key, PEM.")] = None,
    insecure_listen: Annotated[
        bool, typer.Option("--insecure-listen", help="Listen to others without TLS.")
    ] = False,
    metrics_client: MetricsClient = None,
    producer: Producer = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with settings.",
            show_default="holdfast.toml, if it is there",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the address as JSON instead of text.")
    ] = False,
) -> None:
    """Let clients create runs, upload, look and fetch results over HTTP.

    Example: holdfast gateway --pipeline coffee --state state --listen 127.0.0.1:8080
    """
    from holdfast.cli.settings import load_settings
    from holdfast.spark.load import load_pipeline

    with needing_server():
        from holdfast.gateway.serve import parse_listen, serve

    place = parse_listen(listen, tls_cert=tls_cert, tls_key=tls_key, insecure=insecure_listen)
    settings = load_settings(config, {})
    serve(
        state,
        load_pipeline(pipeline).with_stages(settings.config.stages).spec(),
        settings.config,
        place,
        metrics_client=metrics_client,
        producer=producer or "",
        as_json=as_json,
    )
