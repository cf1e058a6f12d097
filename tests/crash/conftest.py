"""Counts what the crash tests tried and found, and says it at the end, all together."""

from __future__ import annotations

from collections import defaultdict

import pytest

from holdfast.testing.crash import Tally

_TALLIES: defaultdict[str, Tally] = defaultdict(Tally)


@pytest.fixture(scope="session")
def tallies() -> defaultdict[str, Tally]:
    """Where each crash test adds what it did, under the name of what it crashed."""
    return _TALLIES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    total = Tally()
    for name, tally in _TALLIES.items():
        terminalreporter.write_line(f"{name}: {tally}")
        total.add(tally)
    terminalreporter.write_line(f"crash: {total}")
