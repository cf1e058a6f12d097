"""`holdfast delivery`: DONE, notices, external results, clean-up; one active, others stand by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast._base.clock import SystemClock, pause
from holdfast.blobs.local import LocalBlobs
from holdfast.cli.settings import load_settings
from holdfast.cli.tell import JsonTeller, TextTeller
from holdfast.cli.turns import Say, stop_on_signals, take_turns
from holdfast.config import Config
from holdfast.delivery.log_queues import LogQueues
from holdfast.delivery.sweep import Homes
from holdfast.engine.state import Shared, StateDirectory, share
from holdfast.errors import DependencyMissing, DiskFull
from holdfast.log.embedded import EmbeddedBackend
from holdfast.store.leases import DELIVERY_RESOURCE
from holdfast.store.rows import Fence

IDLE_MIN_S, IDLE_MAX_S = 0.02, 0.25
"""Pauses of an idle delivery: it looks soon after something happened, and rarely after a while."""
FULL_S = 1.0
"""Pause after the disk was full, before it is tried again."""


def delivery_command(state: Path, config_file: Path | None, *, as_json: bool) -> None:
    """Deliver until somebody asks for the end."""
    _require_httpx()
    teller = JsonTeller(SystemClock()) if as_json else TextTeller(SystemClock())
    config = load_settings(config_file, {}).config
    with (
        stop_on_signals() as stop,
        share(state, config, part=DELIVERY_RESOURCE) as shared,
    ):
        take_turns(
            shared,
            DELIVERY_RESOURCE,
            config,
            stop,
            lambda fence, over: deliver(shared, config, fence, over, teller.say),
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


def deliver(
    shared: Shared, config: Config, fence: Fence, is_over: Callable[[], bool], say: Say
) -> None:
    """Deliver under one grant of the lease until it is over."""
    from holdfast.delivery.loop import Delivery, Means

    means = Means(
        store=shared.store,
        blobs=LocalBlobs(shared.directory.blobs),
        queues=LogQueues(EmbeddedBackend(shared.store), shared.store),
        homes=homes_of(shared.directory),
        secrets=shared.directory.root / "secrets",
        config=config,
        clock=SystemClock(),
    )
    delivery = Delivery(means, fence)
    idle_s = IDLE_MIN_S
    try:
        while not is_over():
            try:
                done = delivery.advance()
            except DiskFull as error:
                say("full", str(error))
                pause(FULL_S)
                continue
            if not done:
                pause(idle_s)
            idle_s = IDLE_MIN_S if done else min(2 * idle_s, IDLE_MAX_S)
    finally:
        delivery.close()
