"""`holdfast delivery`: DONE, notices, external results, clean-up; one active, others stand by."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast._base.clock import SystemClock, pause
from holdfast.amqp.address import refuse_password
from holdfast.blobs.local import LocalBlobs
from holdfast.cli.settings import load_settings
from holdfast.cli.tell import JsonTeller, TextTeller
from holdfast.cli.turns import Say, stop_on_signals, take_turns
from holdfast.config import Config
from holdfast.delivery.log_queues import LogQueues
from holdfast.delivery.ports import ResultQueues
from holdfast.delivery.sweep import Homes
from holdfast.engine.state import Shared, StateDirectory, share
from holdfast.errors import BrokerUnreachable, DependencyMissing, DiskFull
from holdfast.log.embedded import EmbeddedBackend
from holdfast.store.leases import DELIVERY_RESOURCE
from holdfast.store.rows import Fence

if TYPE_CHECKING:
    from holdfast.amqp.broker import Broker

IDLE_MIN_S, IDLE_MAX_S = 0.02, 0.25
"""Pauses of an idle delivery: it looks soon after something happened, and rarely after a while."""
FULL_S = 1.0
"""Pause after the disk was full, before it is tried again."""
PATIENCE_S = 5.0
"""How long one question to the broker is tried while it is away; webhooks and clean-up wait so
long. Shorter: a queue whose leader is being elected is asked in vain, and again later."""


def delivery_command(
    state: Path, config_file: Path | None, *, amqp: str | None = None, as_json: bool
) -> None:
    """Deliver until somebody asks for the end. `amqp`: a RabbitMQ for producers and notices."""
    # Whatever is made here is for its owner only.
    os.umask(0o077)
    _require_httpx()
    teller = JsonTeller(SystemClock()) if as_json else TextTeller(SystemClock())
    config = load_settings(config_file, {}).config
    with (
        stop_on_signals() as stop,
        share(state, config, part=DELIVERY_RESOURCE) as shared,
        _broker(amqp, teller.say) as broker,
    ):
        take_turns(
            shared,
            DELIVERY_RESOURCE,
            config,
            stop,
            lambda fence, over: deliver(shared, config, fence, over, teller.say, broker),
            teller.say,
        )


def _require_httpx() -> None:
    try:
        import holdfast.delivery.webhook  # noqa: F401 - whether it is there is the question
    except ModuleNotFoundError as error:
        what = f"notices are sent by a package that is not there ({error.name})"
        raise DependencyMissing(what=what, install="pip install 'holdfast[server]'") from error


def homes_of(directory: StateDirectory) -> Homes:
    """Return where the bytes of the runs of a state directory are."""
    return Homes((directory.runs, directory.inputs), directory.blobs)


@contextmanager
def _broker(url: str | None, say: Say) -> Iterator[Broker | None]:
    """Open RabbitMQ, if there is one. Webhooks and clean-up need not wait until it is there."""
    if url is None:
        yield None
        return
    from holdfast.amqp.broker import Broker

    refuse_password(url)
    with Broker(url, patience_s=PATIENCE_S) as broker:
        try:
            broker.connect()
        except BrokerUnreachable as error:
            say("waiting", str(error))
        yield broker


def deliver(
    shared: Shared,
    config: Config,
    fence: Fence,
    is_over: Callable[[], bool],
    say: Say,
    broker: Broker | None = None,
) -> None:
    """Deliver under one grant of the lease until it is over."""
    from holdfast.delivery.loop import Delivery, Means

    queues: ResultQueues = LogQueues(EmbeddedBackend(shared.store, fence=fence), shared.store)
    if broker is not None:
        from holdfast.delivery.rabbit_queues import NoticeRelay, RabbitQueues

        queues = RabbitQueues(broker, abandon_s=config.abandon_after_s)
    means = Means(
        store=shared.store,
        blobs=LocalBlobs(shared.directory.blobs),
        queues=queues,
        homes=homes_of(shared.directory),
        secrets=shared.directory.root / "secrets",
        config=config,
        clock=SystemClock(),
        tell=say,
        go_on=shared.life.go_on,
    )
    delivery = Delivery(means, fence)
    relay = NoticeRelay(shared.store, broker, delivery.troubles) if broker else None
    idle_s = IDLE_MIN_S
    try:
        with shared.life.working() as go_on:
            while not is_over():
                go_on()
                try:
                    # The relay first: what it was seen to read, no sweep drops unread.
                    done = (relay.advance() if relay else 0) + delivery.advance()
                except DiskFull as error:
                    say("waiting", str(error))
                    pause(FULL_S)
                    continue
                if not done:
                    pause(idle_s)
                idle_s = IDLE_MIN_S if done else min(2 * idle_s, IDLE_MAX_S)
    finally:
        delivery.close()
