"""`holdfast calls`: what a ledger of paid calls holds, and the verbs that take something out of it.

`holdfast calls LEDGER` is short for `holdfast calls show LEDGER`.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from holdfast.errors import UsageInvalid

if TYPE_CHECKING:
    from holdfast.ledger.books import Books, Choice, SlotView
    from holdfast.ledger.receipt import Receipt

_LIST_MOST = 50
"""Slots that are listed for people. More scroll the counts away; JSON and export give all."""


class _ShowByDefault(TyperGroup):
    """Reads `calls LEDGER` as `calls show LEDGER`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the verb in where none was given."""
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["show", *args]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


app = typer.Typer(
    cls=_ShowByDefault,
    help="What a ledger of paid calls holds. `calls LEDGER` is `calls show LEDGER`.",
    rich_markup_mode=None,
)

Ledger = Annotated[str, typer.Argument(help="The ledger's directory or URL.")]
Key = Annotated[str | None, typer.Option(help="Only the slots of this key.")]
Step = Annotated[str | None, typer.Option(help="Only the slots of this step.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@contextmanager
def _opened(ledger: str) -> Iterator[Books]:
    from holdfast.ledger.books import url_of
    from holdfast.ledger.opening import open_books

    books = open_books(url_of(ledger))
    try:
        yield books
    finally:
        books.close()


def _choice(
    step: str | None, key: str | None, *, unknown: bool, parked: bool, failed: bool
) -> Choice:
    from holdfast.ledger.books import Choice, SlotState

    wanted = {
        SlotState.IN_DOUBT: unknown,
        SlotState.PARKED: parked,
        SlotState.FAILED: failed,
    }
    states = frozenset(state for state, is_wanted in wanted.items() if is_wanted)
    return Choice(step, key, states or None)


@app.command()
def show(
    ledger: Ledger,
    unknown: Annotated[bool, typer.Option("--unknown", help="List calls in doubt.")] = False,
    parked: Annotated[bool, typer.Option("--parked", help="List parked calls.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="List failed calls.")] = False,
    key: Key = None,
    step: Step = None,
    as_json: Json = False,
) -> None:
    """Show what each step bought, and list calls in doubt, parked, failed, or of one key.

    Example: holdfast calls show ledger --parked
    """
    choice = _choice(step, key, unknown=unknown, parked=parked, failed=failed)
    listed = choice.states is not None or key is not None
    with _opened(ledger) as books:
        known = books.chosen_steps(choice)
        views = [view for view in books.steps() if view.id in known]
        found = list(books.slots(choice)) if listed else []
    if as_json:
        facts = [
            {"generation": v.generation, "calls": v.calls, "open": v.open, **asdict(v.receipt)}
            for v in views
        ]
        listing = {"slots": [_plain(view) for view in found]} if listed else {}
        sys.stdout.write(json.dumps({"steps": facts, **listing}) + "\n")
        return
    for view in views:
        renewed = f" (generation {view.generation})" if view.generation else ""
        sys.stdout.write(f"{view.receipt}{renewed}\n")
        if view.open:
            sys.stdout.write(f"  on their way now: {view.open:,}\n")
    if not views:
        sys.stdout.write("no step yet\n")
    for slot in found[:_LIST_MOST]:
        sys.stdout.write(_line(slot) + "\n")
    if len(found) > _LIST_MOST:
        more = len(found) - _LIST_MOST
        sys.stdout.write(f"... and {more:,} more: --json or `holdfast calls export` has all\n")
    sys.stdout.write(f"next: {_next([view.receipt for view in views], _named(ledger))}\n")


def _named(ledger: str) -> str:
    """Return a ledger as the next command may name it: a URL may carry a password."""
    from holdfast.ledger.books import url_of
    from holdfast.ledger.opening import is_shared

    return "LEDGER" if is_shared(url_of(ledger)) else shlex.quote(ledger)


def _next(receipts: Sequence[Receipt], ledger: str) -> str:
    if any(one.parked + one.failed for one in receipts):
        return f"holdfast calls retry {ledger} --parked --failed"
    if any(one.in_doubt for one in receipts):
        return "run the job again: its policy settles what is in doubt"
    if not receipts:
        return "run a job with this ledger"
    return f"holdfast calls export {ledger} --out calls.parquet"


def _plain(view: SlotView) -> dict[str, Any]:
    return {**asdict(view), "state": view.state.value}


def _line(view: SlotView) -> str:
    what = view.reason or view.answer or ""
    what = what if len(what) <= 100 else what[:97] + "..."
    return f"  {view.step} {view.key}: {view.state.value}, {view.attempts} attempt(s)  {what}"


@app.command()
def retry(
    ledger: Ledger,
    key: Key = None,
    parked: Annotated[bool, typer.Option("--parked", help="All parked calls.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="All failed calls.")] = False,
    step: Step = None,
    as_json: Json = False,
) -> None:
    """Take parked and failed outcomes back, so that the next run asks again.

    Bought answers are never touched. Example: holdfast calls retry ledger --parked
    """
    from holdfast.ledger.books import Choice, SlotState

    choice = _choice(step, key, unknown=False, parked=parked, failed=failed)
    if choice.states is None:
        if key is None:
            what, remedy = "nothing says what to retry", "Give --parked, --failed or --key."
            raise UsageInvalid(what=what, remedy=remedy)
        choice = Choice(step, key, frozenset({SlotState.PARKED, SlotState.FAILED}))
    with _opened(ledger) as books:
        count = books.drop(choice)
    if as_json:
        sys.stdout.write(json.dumps({"taken_back": count}) + "\n")
        return
    sys.stdout.write(f"{count:,} outcome(s) taken back\n")
    again = "run the job again; it asks these, and no others"
    sys.stdout.write(f"next: {again if count else f'holdfast calls show {_named(ledger)}'}\n")


@app.command()
def forget(
    ledger: Ledger,
    key: Key = None,
    step: Step = None,
    yes: Annotated[bool, typer.Option("--yes", help="Say that you mean it.")] = False,
    as_json: Json = False,
) -> None:
    """Delete outcomes, bought answers among them: a later run buys them again.

    Example: holdfast calls forget ledger --key doc-17 --yes
    """
    from holdfast.ledger.books import Choice

    if key is None and step is None:
        raise UsageInvalid(what="nothing says what to forget", remedy="Give --key or --step.")
    choice = Choice(step, key)
    with _opened(ledger) as books:
        if not yes:
            count = sum(1 for _ in books.slots(choice))
            what = f"this would delete {count:,} recorded outcome(s), which cost money"
            raise UsageInvalid(what=what, remedy="Add --yes.")
        count = books.drop(choice)
        swept = books.sweep_blobs()
    if as_json:
        sys.stdout.write(json.dumps({"deleted": count, "blobs_swept": swept}) + "\n")
        return
    sys.stdout.write(f"{count:,} outcome(s) deleted\n")
    if not swept:
        sys.stdout.write("their large answers are removed by the next forget while no job runs\n")
    sys.stdout.write("next: run the job again; it buys what it asks of these\n")


@app.command()
def export(
    ledger: Ledger,
    out: Annotated[Path, typer.Option(help="File to write: .parquet, .csv or .jsonl.")],
    step: Step = None,
    as_json: Json = False,
) -> None:
    """Write every slot as a table.

    Example: holdfast calls export ledger --out calls.parquet
    """
    from holdfast.ledger.books import Choice
    from holdfast.ledger.table import FORMATS, write_table

    if out.suffix not in FORMATS:
        raise UsageInvalid(
            what=f"--out {out} has no known ending", remedy=f"Use one of {', '.join(FORMATS)}."
        )
    with _opened(ledger) as books:
        count = write_table(out.absolute(), books.slots(Choice(step)))
    if as_json:
        sys.stdout.write(json.dumps({"slots": count, "out": str(out)}) + "\n")
        return
    sys.stdout.write(f"wrote {count:,} slot(s) to {out}\n")
    sys.stdout.write(f"next: holdfast calls show {_named(ledger)}\n")
