"""What `holdfast router` does: the RabbitMQ door as a process of its own, beside a service."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from holdfast._base.clock import SystemClock
from holdfast.amqp.address import refuse_password
from holdfast.cli.settings import load_settings
from holdfast.cli.tell import JsonTeller, TextTeller
from holdfast.engine.state import share

if TYPE_CHECKING:
    from holdfast.router.serve import RouterOptions


@dataclass(frozen=True, slots=True)
class RouterRequest:
    """What the command line asked for."""

    pipeline: str
    state: Path
    url: str
    options: RouterOptions
    metrics_port: int | None = None
    config_file: Path | None = None
    as_json: bool = False


def router_command(request: RouterRequest) -> None:
    """Serve clients' queues until SIGTERM or Ctrl-C. What is unfinished then comes again."""
    from holdfast.amqp.broker import Broker
    from holdfast.router.figures import served
    from holdfast.router.serve import Router
    from holdfast.spark.load import load_pipeline

    refuse_password(request.url)
    config = load_settings(request.config_file, {}).config
    spec = load_pipeline(request.pipeline).with_stages(config.stages).spec()
    clock = SystemClock()
    teller = JsonTeller(clock) if request.as_json else TextTeller(clock)

    def tell(event: str, facts: dict[str, Any]) -> None:
        named = " ".join(f"{name}={value}" for name, value in facts.items() if value != "")
        teller.say(event, f"{event} {named}".rstrip(), **facts)

    with (
        share(request.state, config, part="router", spec=spec) as shared,
        Broker(request.url, clock=clock, tell=tell) as broker,
    ):
        broker.connect()
        router = Router(
            *(shared, spec, broker, request.options), config=config, clock=clock, tell=tell
        )
        with served(router.figures, request.metrics_port) as port, _stops(router.stopping):
            tell("router ready", {"broker": broker.address.label, "metrics_port": port or ""})
            router.run()
        tell("router stopped", {})


@contextmanager
def _stops(stopping: Event) -> Iterator[None]:
    """Let SIGTERM and Ctrl-C set a flag: an exception in the middle of a commit helps nobody."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: stopping.set()) for number in numbers}
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)
