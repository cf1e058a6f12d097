"""The root of all errors, its three groups, and how an error travels as text."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar, cast, dataclass_transform

_WIRE_MARK = "HOLDFAST_ERROR "


class Blame(StrEnum):
    """Who has to act."""

    CALLER = "caller"
    ENVIRONMENT = "environment"
    DATA = "data"
    HOLDFAST = "holdfast"


@dataclass_transform(eq_default=False)
@dataclass(eq=False)
class HoldfastError(Exception):
    """Root of all errors raised on purpose.

    Cause and remedy stand in each subclass. `retryable` tells whether the same work may succeed
    when it is simply done again. Every subclass is a dataclass: its attributes are typed, and
    given by name.
    """

    code: ClassVar[str] = "HOLDFAST"
    blame: ClassVar[Blame] = Blame.HOLDFAST
    retryable: ClassVar[bool] = False
    template: ClassVar[str] = "unspecified"

    def __init_subclass__(cls) -> None:
        """Make each kind of error a dataclass, compared by identity as exceptions are."""
        super().__init_subclass__()
        dataclass(eq=False)(cls)

    def facts(self) -> dict[str, Any]:
        """Return the typed attributes by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __str__(self) -> str:
        """Return code and message, as one line."""
        return f"[{self.code}] {self.template.format(**self.facts())}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by class and attributes, so that child processes can hand errors over."""
        return (partial(type(self), **self.facts()), ())

    def wire_text(self) -> str:
        """Return one line that carries the error through text (a log, a traceback)."""
        return _WIRE_MARK + json.dumps({"code": self.code, "facts": self.facts()})


def all_errors() -> dict[str, type[HoldfastError]]:
    """Return every concrete error class by its code."""
    found: dict[str, type[HoldfastError]] = {}
    pending: list[type[HoldfastError]] = [HoldfastError]
    while pending:
        cls = pending.pop()
        pending.extend(cls.__subclasses__())
        if "code" in vars(cls) and cls is not HoldfastError:
            found[cls.code] = cls
    return found


def from_text(text: str) -> HoldfastError | None:
    """Return the error that `wire_text` put somewhere into `text`, or None."""
    mark = text.rfind(_WIRE_MARK)
    if mark < 0:
        return None
    try:
        wire, _ = json.JSONDecoder().raw_decode(text, mark + len(_WIRE_MARK))
        return all_errors()[wire["code"]](**cast(dict[str, Any], wire["facts"]))
    except (ValueError, KeyError, TypeError):
        return None


class CallerError(HoldfastError):
    """The call, the pipeline or the command line is wrong. Correct it and call again."""

    blame: ClassVar[Blame] = Blame.CALLER


class EnvironmentFailed(HoldfastError):
    """The machine cannot do it now. The run stays as it is; run again when the cause is gone."""

    blame: ClassVar[Blame] = Blame.ENVIRONMENT
    retryable: ClassVar[bool] = True


class DataError(HoldfastError):
    """The bytes are not what they should be. Doing the same again gives the same."""

    blame: ClassVar[Blame] = Blame.DATA


class RunFailed(HoldfastError):
    """A run ended FAILED. The reason is that of its last attempt."""

    code: ClassVar[str] = "RUN_FAILED"
    blame: ClassVar[Blame] = Blame.CALLER
    template: ClassVar[str] = (
        "run {run} failed: {reason} A failed run is over: correct the cause, and use a new state"
        " directory."
    )
    run: str
    reason: str


class InvariantViolated(HoldfastError):
    """Our own reasoning was wrong. The process stops before it can do harm; report it."""

    code: ClassVar[str] = "INVARIANT_VIOLATED"
    template: ClassVar[str] = "{what}. This is a bug in Holdfast; please report it."
    what: str
