"""Errors of a message broker and of what it was asked to carry."""

from __future__ import annotations

from typing import ClassVar

from holdfast.errors.tree import CallerError, EnvironmentFailed


class BrokerUnreachable(EnvironmentFailed):
    """No broker answers there, or it stopped answering. Nothing unconfirmed counts as sent."""

    code: ClassVar[str] = "BROKER_UNREACHABLE"
    template: ClassVar[str] = (
        "the broker {broker} cannot be reached: {error}. What it did not confirm does not count as"
        " sent. Start it, or correct its URL, and try again."
    )
    broker: str
    error: str


class BrokerRefused(EnvironmentFailed):
    """The broker knows no such user, or the user may not do this. Correct one or the other."""

    code: ClassVar[str] = "BROKER_REFUSED"
    retryable: ClassVar[bool] = False
    template: ClassVar[str] = (
        "the broker {broker} refused: {error}. Correct user, password or virtual host, or give the"
        " user the permission."
    )
    broker: str
    error: str


class MessageUnroutable(EnvironmentFailed):
    """No queue takes such a message, so the broker gave it back. It was not sent."""

    code: ClassVar[str] = "MESSAGE_UNROUTABLE"
    template: ClassVar[str] = (
        "no queue takes message {message} to {target}: {error}. It was not sent; declare the queue"
        " or its binding, and send again."
    )
    target: str
    message: str
    error: str


class MessageReturned(EnvironmentFailed):
    """The broker gave a message back for another reason than a missing queue. It was not sent."""

    code: ClassVar[str] = "MESSAGE_RETURNED"
    template: ClassVar[str] = (
        "message {message} to {target} came back: {error}. It was not sent; correct that, and send"
        " again."
    )
    target: str
    message: str
    error: str


class MessageNacked(EnvironmentFailed):
    """The broker could not take responsibility for a message: no room, or no leader."""

    code: ClassVar[str] = "MESSAGE_NACKED"
    template: ClassVar[str] = (
        "the broker did not take message {message} to {target}. It was not sent; look at the"
        " queue's length limit and the broker's log, and send again."
    )
    target: str
    message: str


class ShardsMismatch(CallerError):
    """A run is spread over other shards than the router's, or in another order."""

    code: ClassVar[str] = "SHARDS_MISMATCH"
    template: ClassVar[str] = (
        "run {run} is spread over the shards {kept}, this router has {given}: its shards would take"
        " chunks for copies of others. Nothing was forwarded; start it with the shards of the run,"
        " in that order, or wait until no run goes by them."
    )
    run: str
    kept: str
    given: str


class QueueMismatch(CallerError):
    """A queue or exchange of that name exists with other settings. Nothing was changed."""

    code: ClassVar[str] = "QUEUE_MISMATCH"
    template: ClassVar[str] = (
        "{queue} exists with other settings: {error}. Nothing was changed; use another name, or"
        " delete it when it is empty."
    )
    queue: str
    error: str
