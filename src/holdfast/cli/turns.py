"""A part of a service of which one process is active and the others stand by.

SIGTERM or Ctrl-C once: what is under way is brought to its end. Twice: the process ends at once,
which is one of the crashes that everything here is made for.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from holdfast._base.clock import SystemClock, pause
from holdfast.cli.exits import STOPPED
from holdfast.config import Config
from holdfast.engine.state import Shared
from holdfast.errors import Fenced, HoldfastError
from holdfast.store.leases import Keeper, beating
from holdfast.store.rows import Fence

STANDBY_S = 0.1
"""How often one that stands by looks. Shorter: it reads for nothing. Longer: after the active
one's death nothing leaves for so long."""

Act = Callable[[Fence, Callable[[], bool]], None]
"""Works under a fence until the second argument says that it is over."""
Say = Callable[[str, str], None]
"""Tells people, or programs: the event's name, and a message."""


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Give a function that tells whether somebody asked for the end."""
    asked: list[int] = []

    def take(number: int, frame: FrameType | None) -> None:
        del frame
        if asked:
            os._exit(STOPPED)
        asked.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, take) for number in numbers}
    try:
        yield lambda: bool(asked)
    finally:
        for number, known in before.items():
            signal.signal(number, known)


def take_turns(
    shared: Shared,
    resource: str,
    config: Config,
    stop: Callable[[], bool],
    act: Act,
    say: Say,
) -> None:
    """Stand by, act when it is our turn, stand by again when somebody else took over."""
    clock = SystemClock()
    keeper = Keeper(
        shared.store,
        resource,
        directory=shared.directory.root,
        owner=f"pid {os.getpid()}",
        clock=clock,
        patience_s=config.lease_patience_s,
    )
    say("standby", f"{resource}: stands by")
    try:
        while not stop():
            fence = keeper.try_take()
            if fence is None:
                pause(STANDBY_S)
                continue
            say("active", f"{resource}: active, epoch {fence.epoch}")
            _act(shared, keeper, fence, stop, act, say)
            keeper.close()
    finally:
        keeper.close()
    say("stopped", f"{resource}: stopped")


def _act(
    shared: Shared, keeper: Keeper, fence: Fence, stop: Callable[[], bool], act: Act, say: Say
) -> None:
    lost: list[HoldfastError] = []
    with beating(keeper, lost.append, shared.life.hangs):
        try:
            act(fence, lambda: stop() or bool(lost))
        except Fenced as error:
            lost.append(error)
    if lost:
        if not isinstance(lost[0], Fenced):
            raise lost[0]
        say("fenced", f"{fence.resource}: epoch {fence.epoch} was replaced; stands by")
