"""The view of a run on a terminal: a line per table, what is under way, what is left."""

from __future__ import annotations

import os

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast._base.clock import Clock
from holdfast.cli.exits import one_line
from holdfast.cli.progress import Progress, TableProgress, advance, left_s, rate, total
from holdfast.cli.tell import STOPPING, Lines
from holdfast.cli.words import batches, counted, size_of, words
from holdfast.engine.events import Event, EventKind
from holdfast.errors import HoldfastError

_PER_SECOND = 4
"""Often enough for a clock that counts seconds; each time costs about a millisecond."""
_LASTING = (EventKind.FAILED_ATTEMPT, EventKind.RESUMED, EventKind.FOUND, EventKind.EXPORTED)
"""What is also printed above the view, and stays there."""
_SHOW_CURSOR = b"\x1b[?25h\r\n"


def render(progress: Progress, now_s: float, *, note: str = "") -> RenderableType:
    """Return what a terminal shows of a run. Pure."""
    lines: list[RenderableType] = []
    if progress.tables:
        lines.append(_table(progress, now_s))
    for doing in progress.doing:
        what = f": {counted(doing.chunks, 'chunk')}, {size_of(doing.size)}" if doing.chunks else ""
        lines.append(Text(f"{doing.name}{what}, for {clock_text(now_s - doing.since_s)}"))
    lines += [Text(text) for text in _facts(progress)]
    if note:
        lines.append(Text(note, style="bold"))
    return Group(*lines)


def _table(progress: Progress, now_s: float) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("table", no_wrap=True, overflow="ellipsis")
    for heading in ("chunks", "size", "applied", "rows", "rate", "left"):
        table.add_column(heading, justify="right", no_wrap=True)
    several = len(progress.tables) > 1
    for one in (*progress.tables, *([total(progress)] if several else ())):
        table.add_row(*_cells(one, now_s))
    return table


def _cells(table: TableProgress, now_s: float) -> tuple[str, ...]:
    speed, seconds = rate(table), left_s(table, now_s)
    complete = table.applied == table.chunks and not table.is_open
    share = f"{100 * table.applied_size // table.size}%" if table.size else "-"
    return (
        table.table,
        f"{table.applied}/{'?' if table.is_open else table.chunks}",
        size_of(table.size),
        "100%" if complete else "-" if table.is_open else share,
        f"{table.rows:,}" if table.rows else "-",
        f"{size_of(speed)}/s" if speed else "-",
        "done" if complete else "-" if seconds is None else clock_text(seconds),
    )


def _facts(progress: Progress) -> list[str]:
    found = []
    if progress.tables:
        found.append(_barrier(progress))
    if progress.results is not None:
        exported = f", {progress.exported} exported" if progress.exported else ""
        found.append(f"results: {progress.results_done} of {progress.results}{exported}")
    if progress.rows_before:
        found.append(f"rows read before this process: {progress.rows_before:,}")
    if progress.redone_batches:
        redone = counted(progress.redone_chunks, "chunk")
        found.append(
            f"done again after an interruption: {batches(progress.redone_batches)}, {redone}"
        )
    if progress.failures:
        found.append(f"failed attempts: {progress.failures}")
    return found


def _barrier(progress: Progress) -> str:
    missing = sum(table.chunks - table.applied for table in progress.tables)
    if progress.results is not None:
        return "barrier: passed, all input is applied"
    waits = f"waits for {counted(missing, 'chunk')}" if missing else "waits for a stage's output"
    passed = f" (segment {', '.join(progress.barriers)} passed)" if progress.barriers else ""
    return f"barrier: {waits}{passed}"


def clock_text(seconds: float) -> str:
    """Return a duration as 1:02:03 or 2:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class LiveTeller:
    """Draws the view again and again on standard error, until it is closed.

    A thread of rich's draws; it only reads `_progress`, which is replaced as a whole.
    """

    def __init__(self, clock: Clock, console: Console | None = None) -> None:
        self._clock = clock
        self._console = console or Console(stderr=True, highlight=False)
        self._progress, self._note = Progress(), ""
        self._live: Live | None = None
        self._lines: Lines | None = None

    def __call__(self, event: Event) -> None:
        """Show what the engine said."""
        self._progress = advance(self._progress, event, self._clock.monotonic_s())
        if event.kind in _LASTING:
            self._print(words(event))
        if event.kind is EventKind.STARTED:
            self._note = STOPPING if self._note == STOPPING else ""
        if self._live is not None:
            self._live.refresh()

    def say(self, event: str, message: str, **facts: object) -> None:
        """Show something of our own below the view, until a batch starts; begin the view."""
        del event, facts
        self._note = message
        if self._live is None:
            self._live = Live(
                get_renderable=self._view,
                console=self._console,
                refresh_per_second=_PER_SECOND,
                redirect_stdout=False,
            )
            self._live.start(refresh=True)

    def _view(self) -> RenderableType:
        return render(self._progress, self._clock.monotonic_s(), note=self._note)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def output(self) -> int:
        """Return a pipe whose lines are printed above the view."""
        self._lines = self._lines or Lines(self._print)
        return self._lines.descriptor

    def stopping(self) -> None:
        """Show that somebody asked to stop, the next time the view is drawn."""
        self._note = STOPPING

    def ending(self, error: HoldfastError, log: str | None = None) -> str:
        """Return the last line of a run that ended with `error`."""
        return f"{one_line(error, log)}\n"

    def close(self, *, at_once: bool = False) -> None:
        """Stop drawing; the last view stays on the terminal, and the cursor comes back."""
        if at_once:
            if self._live is not None:
                os.write(self._console.file.fileno(), _SHOW_CURSOR)
            return
        if self._lines is not None:
            self._lines.close()
        self._note = ""
        if self._live is not None:
            self._live.stop()
