"""Small tools of the contract suites: an error that must come, bodies that run at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from holdfast.errors import HoldfastError

Expected = TypeVar("Expected", bound=HoldfastError)

WAIT_S = 30.0
"""Longest wait for another thread. Only something broken needs it."""


def error_of(kind: type[Expected], call: Callable[[], object]) -> Expected:
    """Return the error of `kind` that `call` must raise; another one passes through."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def run_threads(bodies: Iterable[Callable[[], None]]) -> None:
    """Run bodies at once, each in a thread; raise what any of them raised."""
    errors: list[BaseException] = []

    def guarded(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:  # Broad: a failed assertion must reach the caller, below.
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
