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
from holdfast.blobs.local import LocalBlobs
from holdfast.cli.tell import JsonTeller, TextTeller
from holdfast.engine.state import share

if TYPE_CHECKING:
    from holdfast.router.serve import RouterOptions


@dataclass(frozen=True, slots=True)
class RouterRequest:
    """What the command line asked for."""

    state: Path
    url: str
    options: RouterOptions
    metrics_port: int | None = None
    as_json: bool = False


def router_command(request: RouterRequest) -> None:
    """Serve clients' queues until SIGTERM or Ctrl-C. What is unfinished then comes again."""
    from holdfast.amqp.broker import Broker
    from holdfast.router.figures import served
    from holdfast.router.serve import Router

    refuse_password(request.url)
    clock = SystemClock()
    teller = JsonTeller(clock) if request.as_json else TextTeller(clock)

    def tell(event: str, facts: dict[str, Any]) -> None:
        named = " ".join(f"{name}={value}" for name, value in facts.items() if value != "")
        teller.say(event, f"{event} {named}".rstrip(), **facts)

    with (
        share(request.state, part="router") as shared,
        Broker(request.url, clock=clock, tell=tell) as broker,
    ):
        broker.connect()
        blobs = LocalBlobs(shared.directory.blobs)
        router = Router(shared.store, blobs, broker, request.options, clock=clock, tell=tell)
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
