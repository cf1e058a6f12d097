"""Trouble of one run or of one client's queue: told, and tried again later. The others go on.

What is everybody's is not caught here, and ends what is under way: a fence that was lost, a full
disk, a fault of ours. A store that fails is met again by the next look at it, outside of this.

Nothing of it is kept: after a start everything is tried at once.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast._base.clock import Clock
from holdfast.errors import (
    BrokerRefused,
    BrokerUnreachable,
    HoldfastError,
    MessageNacked,
    MessageReturned,
    MessageUnroutable,
    QueueMismatch,
    StorageFailed,
    UsageInvalid,
)

REST_MIN_S, REST_MAX_S = 2.0, 60.0
"""How long what failed is left alone: doubled with each failure. Shorter: it takes the others' time
and fills the log. Longer: it is late when its cause is gone."""
BROKER_REST_S = 1.0
"""How long nobody asks a broker that did not answer, since each would wait for it in turn. The one
that asked rests longer, so that one whose queue alone looks like that leaves others their turn."""
_OWN = (
    BrokerRefused,
    BrokerUnreachable,
    MessageNacked,
    MessageReturned,
    MessageUnroutable,
    QueueMismatch,
    StorageFailed,
    UsageInvalid,
)

Tell = Callable[[str, str], None]
"""Tells people, or programs: the event's name, and a message."""


def say_nothing(event: str, message: str) -> None:
    """Be told, and do nothing about it."""


def do_nothing() -> None:
    """Do nothing."""


class Troubles:
    """Who had trouble, and until when each rests. Used by one thread."""

    def __init__(
        self, clock: Clock, tell: Tell = say_nothing, go_on: Callable[[], None] = do_nothing
    ) -> None:
        """`go_on` is called with each attempt, and within those that may take long."""
        self._clock, self._tell, self.go_on = clock, tell, go_on
        self._rests: dict[str, tuple[float, float]] = {}
        self._broker_until_s = clock.monotonic_s()
        self._is_broker_away = False

    def attempt(self, what: str, work: Callable[[], int], *, asks_broker: bool = False) -> int:
        """Return what `work` returns; 0 if it had trouble of its own, or rests from it.

        `what` names whom it is for, to people too.
        """
        self.go_on()
        now_s = self._clock.monotonic_s()
        until_s, _ = self._rests.get(what, (now_s, 0.0))
        if now_s < until_s or (asks_broker and now_s < self._broker_until_s):
            return 0
        try:
            done = work()
        except _OWN as error:
            self._keep(what, error)
            return 0
        self._rests.pop(what, None)
        if asks_broker:
            self._is_broker_away = False
        return done

    def hinder(self, what: str) -> bool:
        """Tell whether the last work for `what`, or the last question to the broker, failed."""
        return what in self._rests or self._is_broker_away

    def _keep(self, what: str, error: HoldfastError) -> None:
        now_s = self._clock.monotonic_s()
        _, before_s = self._rests.get(what, (0.0, 0.0))
        rest_s = min(max(2 * before_s, REST_MIN_S), REST_MAX_S)
        # Whoever came to its end otherwise is asked for no more: it is forgotten here.
        rests = {name: one for name, one in self._rests.items() if now_s < one[0] + REST_MAX_S}
        self._rests = rests | {what: (now_s + rest_s, rest_s)}
        if isinstance(error, BrokerUnreachable):
            self._broker_until_s, self._is_broker_away = now_s + BROKER_REST_S, True
        self._tell("trouble", f"{what} is tried again in {rest_s:g} s: {error}")
