"""Errors of logs that live elsewhere: brokers."""

from __future__ import annotations

from typing import ClassVar

from holdfast.errors.tree import EnvironmentFailed


class LogUnreachable(EnvironmentFailed):
    """A broker does not answer, or did not confirm in time. Nothing unconfirmed counts as sent."""

    code: ClassVar[str] = "LOG_UNREACHABLE"
    template: ClassVar[str] = (
        "log {log}: {error}. Start the broker, or correct host and port, then run again."
    )
    log: str
    error: str


class LogEmptied(EnvironmentFailed):
    """A broker that keeps all in memory ended and was started again. A run sends it what is missing
    by itself.
    """

    code: ClassVar[str] = "LOG_EMPTIED"
    template: ClassVar[str] = (
        "log {log}: the broker was started again and has lost what it held."
        " Create its topics and send their records again."
    )
    log: str


class LogRefused(EnvironmentFailed):
    """A broker answers, but not for us: user, password, rights, or something it cannot do."""

    code: ClassVar[str] = "LOG_REFUSED"
    retryable: ClassVar[bool] = False
    template: ClassVar[str] = (
        "log {log}: the broker refused: {error}."
        " Correct user, password, rights or the broker's settings, then run again."
    )
    log: str
    error: str


class LogNotStarted(EnvironmentFailed):
    """A broker that is to run as our child does not serve. Its own output says more."""

    code: ClassVar[str] = "LOG_NOT_STARTED"
    template: ClassVar[str] = "the broker does not serve: {what}. {remedy} Its output is {output}."
    what: str
    remedy: str
    output: str
