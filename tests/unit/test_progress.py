"""The view of a run: events and a clock in, numbers and lines out."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from tests.crash.workloads import SALES, SHOPS
from tests.unit.plain_runs import run_toy

from holdfast._base.ids import RunId
from holdfast.cli.live import LiveTeller, render
from holdfast.cli.progress import Progress, TableProgress, advance, left_s, rate, total
from holdfast.cli.words import size_of, words
from holdfast.engine.events import Event, EventKind, TableCount
from holdfast.testing.clock import VirtualClock

RUN = RunId("r")


def event(kind: EventKind, name: str = "", *tables: TableCount, **more: int | str) -> Event:
    chunks, size = sum(t.chunks for t in tables), sum(t.size for t in tables)
    return Event(kind, RUN, name, chunks, size, tables=tables, **more)  # type: ignore[arg-type]


class Story:
    """Events told one after the other, each after some seconds."""

    def __init__(self) -> None:
        self.clock, self.progress = VirtualClock(monotonic_s=100.0), Progress()

    def tell(self, after_s: float, told: Event) -> None:
        self.clock.advance(after_s)
        self.progress = advance(self.progress, told, self.clock.monotonic_s())

    def table(self, name: str) -> TableProgress:
        return next(one for one in self.progress.tables if one.table == name)

    def lines(self, note: str = "", width: int = 100) -> list[str]:
        with Path("/dev/null").open("w") as nowhere:
            console = Console(width=width, record=True, file=nowhere)
            console.print(render(self.progress, self.clock.monotonic_s(), note=note))
        return [line.rstrip() for line in console.export_text().splitlines()]


def two_tables() -> Story:
    story = Story()
    sales, users = TableCount("sales", 10, 1000), TableCount("users", 1, 50, 0, 1, 50)
    story.tell(0, event(EventKind.BOUND, "", sales, users))
    return story


def test_rate_and_time_left_count_from_the_first_batch_to_the_last_commit() -> None:
    story = two_tables()
    story.tell(60, event(EventKind.STARTED, "1.1", TableCount("sales", 2, 200)))
    assert rate(story.table("sales")) is None
    assert left_s(story.table("sales"), 160.0) is None
    story.tell(10, event(EventKind.COMMITTED, "1.1", TableCount("sales", 2, 200, 7)))
    sales = story.table("sales")
    assert (sales.applied, sales.applied_size, sales.rows) == (2, 200, 7)
    assert rate(sales) == 20.0
    assert left_s(sales, 170.0) == 40.0
    assert left_s(sales, 175.0) == 35.0
    assert left_s(sales, 999.0) == 0.0
    assert left_s(total(story.progress), 170.0) == 40.0


def test_what_former_processes_did_counts_as_applied_but_not_for_the_rate() -> None:
    story = Story()
    found = TableCount("sales", 10, 1000, 0, 6, 600)
    story.tell(0, event(EventKind.FOUND, "", found, rows=42))
    story.tell(0, event(EventKind.RESUMED, "1.7", TableCount("sales", 2, 200)))
    story.tell(0, event(EventKind.STARTED, "1.7", TableCount("sales", 2, 200)))
    story.tell(4, event(EventKind.COMMITTED, "1.7", TableCount("sales", 2, 200, 5)))
    sales = story.table("sales")
    assert (sales.applied, sales.rows, rate(sales)) == (8, 5, 50.0)
    assert left_s(sales, 104.0) == 4.0
    assert story.progress.rows_before == 42
    assert (story.progress.redone_batches, story.progress.redone_chunks) == (1, 2)
    assert "rows read before this process: 42" in story.lines()
    assert "done again after an interruption: 1 batch, 2 chunks" in story.lines()


def test_the_current_batch_is_shown_until_it_is_committed_or_fails() -> None:
    story = two_tables()
    story.tell(0, event(EventKind.STARTED, "1.1", TableCount("sales", 2, 2_500_000)))
    story.clock.advance(75)
    assert "batch 1.1: 2 chunks, 2.5 MB, for 1:15" in story.lines()
    story.tell(0, event(EventKind.FAILED_ATTEMPT, "1.1", TableCount("sales", 2, 1), detail="no"))
    assert story.progress.doing is None
    assert "failed attempts: 1" in story.lines()
    story.tell(0, event(EventKind.STARTED, "1.1", TableCount("sales", 2, 200)))
    story.tell(3, event(EventKind.COMMITTED, "1.1", TableCount("sales", 2, 200)))
    assert not any(line.startswith("batch") for line in story.lines())


def test_the_lines_of_the_view() -> None:
    story = two_tables()
    story.tell(0, event(EventKind.STARTED, "1.1", TableCount("sales", 4, 400)))
    story.tell(8, event(EventKind.COMMITTED, "1.1", TableCount("sales", 4, 400, 1234)))
    head, sales, users, everything, barrier = [" ".join(x.split()) for x in story.lines()]
    assert head == "table chunks size applied rows rate left"
    assert sales == "sales 4/10 1.0 kB 40% 1,234 50 bytes/s 0:12"
    assert users == "users 1/1 50 bytes 100% - - done"
    assert everything == "all 5/11 1.1 kB 42% 1,234 50 bytes/s 0:12"
    assert barrier == "barrier: waits for 6 chunks"
    assert story.lines(note="stopping")[-1] == "stopping"


def test_the_view_after_the_barrier() -> None:
    story = two_tables()
    story.tell(0, event(EventKind.BARRIER, "1"))
    assert "barrier: waits for 10 chunks (segment 1 passed)" in story.lines()
    story.tell(0, event(EventKind.SERIES, count=3, done=1))
    story.tell(0, event(EventKind.STARTED, "report"))
    story.clock.advance(3700)
    assert "result report, for 1:01:40" in story.lines()
    story.tell(0, event(EventKind.COMMITTED, "report"))
    story.tell(0, event(EventKind.EXPORTED, "report"))
    assert story.lines()[-2:] == [
        "barrier: passed, all input is applied",
        "results: 2 of 3, 1 exported",
    ]


def test_a_table_that_a_stage_makes_has_no_end_yet() -> None:
    story = two_tables()
    made = TableCount("doubled", 1, 10)
    story.tell(0, event(EventKind.STARTED, "2.1", made))
    story.tell(1, event(EventKind.COMMITTED, "2.1", made))
    row = next(line for line in story.lines() if line.startswith("doubled"))
    assert row.split()[:2] == ["doubled", "1/?"]
    assert left_s(story.table("doubled"), 101.0) is None


def test_a_narrow_terminal_cuts_names_not_lines() -> None:
    story = Story()
    story.tell(0, event(EventKind.BOUND, "", TableCount("n" * 200, 3, 30)))
    assert all(len(line) <= 60 for line in story.lines(width=60))
    assert len(story.lines(width=60)) == 3


def test_a_whole_run_as_the_engine_tells_it(tmp_path: Path) -> None:
    """From real events: at the end every table is applied and every row was counted."""
    story = Story()
    run_toy(tmp_path, watch=lambda told: story.tell(1, told))
    assert total(story.progress).applied == total(story.progress).chunks
    assert story.table("sales").rows == len(SALES)
    assert story.table("shops").applied == story.table("shops").chunks == len(SHOPS)
    assert story.table("doubled").rows == len(SALES)
    assert story.progress.barriers == ("1", "2")
    assert (story.progress.results, story.progress.results_done) == (3, 3)
    assert story.progress.exported == 3
    assert story.progress.doing is None


def test_the_live_view_draws_prints_what_lasts_and_brings_the_cursor_back() -> None:
    """On a console that says it is a terminal; the same on a real one is in tests/spark."""
    with Path("/dev/null").open("w") as nowhere:
        console = Console(width=90, record=True, force_terminal=True, file=nowhere)
        teller = LiveTeller(VirtualClock(), console)
        teller.say("starting", "starting Spark")
        told = event(EventKind.BOUND, "", TableCount("sales", 3, 30), TableCount("b", 1, 1))
        teller(told)
        teller(event(EventKind.FAILED_ATTEMPT, "1.1", TableCount("sales", 3, 30), detail="why"))
        teller.stopping()
        teller.close()
    text = console.export_text(styles=True)
    assert "starting Spark" in text
    assert "an attempt at batch 1.1 failed: why" in text
    assert text.count("\x1b[?25l") == 1
    assert text.rstrip().endswith("\x1b[?25h")


def test_words_know_one_from_many() -> None:
    one, two = TableCount("t", 1, 1, 1), TableCount("t", 2, 2_000_000_000, 2)
    assert words(event(EventKind.BOUND, "", one)) == "bound 1 chunk, 1 byte"
    assert words(event(EventKind.RESUMED, "1.1", one)).endswith("1 chunk is done again")
    assert words(event(EventKind.RESUMED, "1.1", two)).endswith("2 chunks are done again")
    committed = event(EventKind.COMMITTED, "1.1", two, rows=1)
    assert words(committed) == "batch 1.1 committed: 2 chunks, 2.0 GB, 1 row"
    assert words(event(EventKind.FAILED_ATTEMPT, "q", detail="a\nb")).endswith("failed: a b")
    assert size_of(999) == "999 bytes"


def test_every_kind_of_event_has_words() -> None:
    for kind in EventKind:
        for tables in ((), (TableCount("t", 2, 3),)):
            assert words(event(kind, "x", *tables))
