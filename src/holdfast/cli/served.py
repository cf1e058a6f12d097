"""The verbs of a service that work on runs: `up` and `engine`. Loads nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.gateway import MetricsClient, Producer

PipelineOption = Annotated[
    str, typer.Option(help="A bundled name (coffee), module:object, or a .py file.")
]
StateOption = Annotated[Path, typer.Option(help="Directory that holds the service's state.")]
ConfigPath = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="File with settings.",
        show_default="holdfast.toml, if it is there",
    ),
]
Master = Annotated[
    str | None, typer.Option(help="Where Spark runs.", show_default="local[*]: all cores here")
]
SparkConf = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="A Spark setting; may be given again."),
]
SharedState = Annotated[
    bool, typer.Option(help="Say that every machine of the cluster sees these directories.")
]
Amqp = Annotated[
    str | None,
    typer.Option(metavar="URL", help="RabbitMQ for external producers and clients' notices."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def up(
    pipeline: PipelineOption,
    state: StateOption,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the gateway listens.")
    ] = "127.0.0.1:8080",
    config: ConfigPath = None,
    master: Master = None,
    spark_conf: SparkConf = None,
    shared_state: SharedState = False,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate chain of the gateway, PEM.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key, PEM.")] = None,
    insecure_listen: Annotated[
        bool, typer.Option("--insecure-listen", help="Listen to others without TLS.")
    ] = False,
    metrics_client: MetricsClient = None,
    producer: Producer = None,
    amqp: Amqp = None,
    as_json: Json = False,
) -> None:
    """Serve clients: gateway, engine and delivery, watched and started again when they end.

    Example: holdfast up --pipeline coffee --state state --listen 127.0.0.1:8080
    """
    from holdfast.cli.up import UpRequest, up_command

    engine_options = [f"--spark-conf={pair}" for pair in spark_conf or ()]
    engine_options += [f"--master={master}"] if master else []
    engine_options += ["--shared-state"] if shared_state else []
    up_command(
        UpRequest(
            pipeline=pipeline,
            state=state,
            listen=listen,
            config_file=config,
            engine_options=tuple(engine_options),
            tls_cert=tls_cert,
            tls_key=tls_key,
            insecure_listen=insecure_listen,
            metrics_client=metrics_client,
            producer=producer,
            amqp=amqp,
            as_json=as_json,
        )
    )


def engine(
    pipeline: PipelineOption,
    state: StateOption,
    config: ConfigPath = None,
    master: Master = None,
    spark_conf: SparkConf = None,
    shared_state: SharedState = False,
    as_json: Json = False,
) -> None:
    """Work on the runs of a service's clients. Of several on one state, one is active.

    Example: holdfast engine --pipeline coffee --state state
    """
    from holdfast.cli.engine import EngineRequest, engine_command

    engine_command(
        EngineRequest(
            pipeline=pipeline,
            state=state,
            config_file=config,
            master=master,
            spark_conf=tuple(spark_conf or ()),
            shared_state=shared_state,
            as_json=as_json,
        )
    )
