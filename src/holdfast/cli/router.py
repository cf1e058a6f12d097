"""`holdfast router`: its options."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.served import ConfigPath, PipelineOption, StateOption


def router(
    pipeline: PipelineOption,
    state: StateOption,
    amqp: Annotated[
        str,
        typer.Option(
            metavar="URL",
            envvar="HOLDFAST_AMQP_URL",
            help="The broker: amqp://USER@HOST:PORT/VHOST.",
        ),
    ],
    client: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A client to serve; may be given again.", show_default="all"
        ),
    ] = None,
    prefetch: Annotated[int, typer.Option(help="Messages held un-acked per client.")] = 10,
    threads: Annotated[int, typer.Option(help="Messages of a client worked on at once.")] = 1,
    delayed_ack: Annotated[
        bool, typer.Option("--delayed-ack", help="Leave ENDs at the broker until all is in.")
    ] = False,
    shard: Annotated[
        list[str] | None,
        typer.Option(metavar="QUEUE", help="Forward to this queue; may be given again."),
    ] = None,
    hold_alert_s: Annotated[
        float, typer.Option(help="Seconds an END may be held before the log says ALERT.")
    ] = 300.0,
    metrics_port: Annotated[
        int | None, typer.Option(help="Serve /metrics on this port, to this machine only.")
    ] = None,
    config: ConfigPath = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Say what happens as JSON, an object a line.")
    ] = False,
) -> None:
    """Take clients' chunks and ENDs from RabbitMQ queues, beside a running service.

    Example: holdfast router --pipeline coffee --state state --amqp amqp://holdfast@localhost/
    """
    from holdfast.cli.routing import RouterRequest, router_command
    from holdfast.router.serve import RouterOptions

    options = RouterOptions(
        clients=tuple(client or ()),
        prefetch=prefetch,
        threads=threads,
        delayed=delayed_ack,
        shards=tuple(shard or ()),
        alert_s=hold_alert_s,
    )
    router_command(
        RouterRequest(
            pipeline=pipeline,
            state=state,
            url=amqp,
            options=options,
            metrics_port=metrics_port,
            config_file=config,
            as_json=as_json,
        )
    )
