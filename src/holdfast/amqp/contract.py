"""What travels over queues, and what a consumer's callback may say about it.

A callback is called in a thread of its own queue, with the message, whether the broker handed it
out before, and a handle for a later ack; or, if it takes one argument, with the message alone.

| it | then |
| --- | --- |
| returns True or None | the message is acked |
| returns False | "I ack later": it stays un-acked until `handle.ack()`, or comes again |
| raises `Reject` | it goes to the dead letters, with the reason, at once |
| raises anything else | an attempt is counted; it comes again later, at last it is a dead letter |

A message comes at least once: after a lost connection, a consumer's time-out or a crash it comes
again, `redelivered`. That counts for nothing: only a callback that raised does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

PREFETCH = 10
"""Messages that one consumer holds un-acked. Fewer: it waits for the broker between two. More: a
crashed one gives more back, and another consumer sits idle meanwhile."""


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent. `message_id` names it: said again after a crash, it has the same name."""

    body: bytes
    message_id: str = ""
    kind: str = ""
    """What the body is, for people and for routing; nothing is decided by it."""
    headers: Mapping[str, Any] = field(default_factory=dict)


class Reject(Exception):
    """Raised by a callback: this message can never be worked on. It goes to the dead letters."""

    def __init__(self, reason: str, *, code: str = "REJECTED") -> None:
        super().__init__(reason)
        self.reason, self.code = reason, code


class Handle(Protocol):
    """What a callback that returned False acks with. Any thread may."""

    @property
    def tag(self) -> tuple[int, int]:
        """The consumer's connection, counted from 1, and the delivery within it."""

    def is_live(self) -> bool:
        """Tell whether an ack would still be heard. False: the message comes again."""

    def ack(self) -> bool:
        """Ack. False: the tag died with its channel; the message comes again."""

    def reject(self, reason: str, *, code: str = "REJECTED") -> bool:
        """Send it to the dead letters after all. False: it stays un-acked, and comes again."""


Callback = Callable[[Message], bool | None] | Callable[[Message, bool, Handle], bool | None]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that nobody could work on, and why."""

    message: Message
    queue: str
    code: str
    reason: str
    attempts: int
