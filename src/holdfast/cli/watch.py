"""`holdfast watch`: a run on a server, followed until it is over."""

from __future__ import annotations

import json
import sys
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast._base.clock import Clock, SystemClock
from holdfast._base.tell import tell
from holdfast.cli.remote import Server, connected, on_terminal
from holdfast.cli.words import moment
from holdfast.client.answers import RunInfo, TableInfo
from holdfast.client.client import Client, done_or_over


def watch_command(run: str, server: Server, *, as_json: bool) -> None:
    """Follow a run until it is DONE; exit with 1 if it ends otherwise."""
    with connected(server) as client:
        info = followed(client, run)
    if as_json:
        sys.stdout.write(json.dumps({"run": info.run, "state": info.state}) + "\n")
        return
    sys.stdout.write(f"run {info.run} is DONE\n")
    sys.stdout.write(f"next: holdfast results {info.run} {server.words()} --out answers\n")


def followed(client: Client, run: str) -> RunInfo:
    """Show a run whenever it changes, up to its end; returns it if it is DONE.

    Raises:
        RunOver: it ended without results.
    """
    screen: _Screen = _LiveScreen() if on_terminal() else _LineScreen(SystemClock())
    try:
        for info in client.events(run):
            screen.show(info)
    finally:
        screen.close()
    return done_or_over(info)


def sender_of(table: TableInfo) -> str:
    """Return a table, with its sender if that has a name."""
    return f"{table.table}/{table.sender}" if table.sender else table.table


def line_of(info: RunInfo) -> str:
    """Return how far a run is, in one line. Pure."""
    received = sum(table.received for table in info.tables)
    applied = sum(table.applied for table in info.tables)
    text = f"{info.state}: {received} chunks received, {applied} applied"
    if waiting := waiting_for(info):
        text += f"; no END yet of {', '.join(waiting)}{idle_of(info)}"
    return text


def waiting_for(info: RunInfo) -> list[str]:
    """Return the senders that a run waits for: those without an END. Pure."""
    waits = [table for table in info.tables if table.announced is None]
    return [sender_of(table) for table in waits] if info.state == "OPEN" else []


def idle_of(info: RunInfo) -> str:
    """Return for how long nothing came, in steps: each is another line. Empty: not long. Pure."""
    for unit, seconds in (("h", 3600), ("min", 60)):
        if info.idle_s >= seconds:
            return f"; nothing came for {info.idle_s // seconds} {unit}"
    return ""


def picture_of(info: RunInfo) -> RenderableType:
    """Return what a terminal shows of a run. Pure."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("table", no_wrap=True, overflow="ellipsis")
    for heading in ("announced", "received", "applied", "missing"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in info.tables:
        announced = "-" if one.announced is None else str(one.announced)
        missing = one.missing if one.announced is not None else "-"
        table.add_row(sender_of(one), announced, str(one.received), str(one.applied), missing)
    idle = idle_of(info) if waiting_for(info) else ""
    head = f"run {info.run} of {info.pipeline}: {info.state}{idle}"
    return Group(Text(head, style="bold"), table)


class _Screen(Protocol):
    def show(self, info: RunInfo) -> None: ...

    def close(self) -> None: ...


class _LineScreen:
    """A line whenever something people care for has changed."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._last = clock, ""

    def show(self, info: RunInfo) -> None:
        line = line_of(info)
        if line != self._last:
            tell(f"{moment(self._clock.wall_ms())} {line}\n")
        self._last = line

    def close(self) -> None:
        pass


class _LiveScreen:
    """A table, drawn again whenever the run has changed."""

    def __init__(self) -> None:
        console = Console(stderr=True, highlight=False)
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False)
        self._live.start()

    def show(self, info: RunInfo) -> None:
        self._live.update(picture_of(info), refresh=True)

    def close(self) -> None:
        self._live.stop()
