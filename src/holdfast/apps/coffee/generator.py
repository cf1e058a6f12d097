"""Writes the coffee-shop data set of a seed at any scale: 72 monthly files and 4 small ones.

A monthly file holds its days as blocks in a random order, and the rows of each day in a random
order, so row order is not time order and no more than a day is held in memory. The
bytes depend only on scale, seed and mode (and on numpy's Poisson and binomial draws).
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.apps.coffee import hard as hard_mode
from holdfast.apps.coffee.draw import Plan, draw_day, plan_days, shuffled
from holdfast.apps.coffee.files import FileStyle, TableFile, WrittenFile, csv_lines, write_empty
from holdfast.apps.coffee.tables import (
    HEADERS,
    MONTHLY_TABLES,
    MONTHS,
    PAYMENT_METHODS,
    days_of_month,
    menu_rows,
    store_rows,
    voucher_rows,
)
from holdfast.apps.coffee.text import item_lines, transaction_lines, user_lines

# Copies of the run of hard mode that are written at once.
RUN_BLOCK_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class TableSize:
    """What all files of a table hold together; rows without headers."""

    table: str
    files: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class GeneratedFiles:
    """The files of a data set, in the order of their names within each table."""

    files: tuple[WrittenFile, ...]

    def size(self, table: str) -> TableSize:
        """Return what the files of a table hold."""
        mine = [file for file in self.files if file.table == table]
        rows = sum(file.rows for file in mine)
        return TableSize(table, len(mine), rows, sum(file.bytes for file in mine))

    @property
    def tables(self) -> tuple[TableSize, ...]:
        """What each table holds."""
        return tuple(self.size(table) for table in HEADERS)


def generate(out: Path, *, scale: float, seed: int, hard: bool = False) -> GeneratedFiles:
    """Write the data set into a new or empty directory.

    The same arguments give the same bytes. A file appears under its name when it is complete; after
    an error or a crash the directory holds some of the files and must be cleared before a retry.

    Raises ValueError if the scale is out of range, or if `out` is a file or not empty.
    """
    plan = plan_days(scale=scale, seed=seed, hard=hard)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is not an empty directory: name a new one or clear it first")
    out.mkdir(parents=True, exist_ok=True)
    files = _write_small_tables(out, hard=hard)
    for month in range(len(MONTHS)):
        files.extend(_write_month(out, plan, month))
    if hard:
        files.extend(_write_rowless_files(out))
    position = {table: number for number, table in enumerate(HEADERS)}
    return GeneratedFiles(tuple(sorted(files, key=lambda file: (position[file.table], file.name))))


def _write_small_tables(out: Path, *, hard: bool) -> list[WrittenFile]:
    """Write the tables that are one file each."""
    plain = FileStyle()
    contents: list[tuple[str, Sequence[Sequence[str]], FileStyle]] = [
        ("menu_items", menu_rows(hard_mode.menu(hard)), FileStyle("\r\n", final_newline=False)),
        ("stores", store_rows(hard_mode.stores(hard)), FileStyle(final_newline=False)),
        ("payment_methods", PAYMENT_METHODS, plain),
        ("vouchers", voucher_rows(), FileStyle("\r\n")),
    ]
    files = []
    for table, rows, style in contents:
        with _open(out, table, "", style if hard else plain) as file:
            file.write_rows(rows)
        files.append(file.written)
    return files


def _write_month(out: Path, plan: Plan, month: int) -> list[WrittenFile]:
    """Write the three files of a month, day by day."""
    year, number = MONTHS[month]
    style = hard_mode.style_of(plan.hard, month)
    edges = hard_mode.month_edges(plan, month)
    days = days_of_month(month)
    order = shuffled(plan.seed, "days", month, len(days))
    with ExitStack() as stack:
        users, transactions, items = files = [
            stack.enter_context(_open(out, table, f"_{year}{number:02d}", style))
            for table in MONTHLY_TABLES
        ]
        _write_edges(edges.head, transactions=transactions, items=items)
        for position, offset in enumerate(order):
            if edges.middle is not None and position == len(order) // 2:
                _write_run(edges.middle, edges.copies, transactions=transactions, items=items)
            day = draw_day(plan, days[offset])
            for file, lines in (
                (users, user_lines),
                (transactions, transaction_lines),
                (items, item_lines),
            ):
                for block in lines(plan, day, style.eol):
                    file.write(block)
        _write_edges(edges.tail, transactions=transactions, items=items)
    return [file.written for file in files]


def _write_edges(
    edges: Sequence[hard_mode.PlacedEdge], *, transactions: TableFile, items: TableFile
) -> None:
    """Write each edge once, with its items."""
    transactions.write_rows(hard_mode.transaction_row(placed) for placed in edges)
    for placed in edges:
        items.write_rows(hard_mode.item_rows(placed))


def _write_run(
    placed: hard_mode.PlacedEdge, copies: int, *, transactions: TableFile, items: TableFile
) -> None:
    """Write an edge many times over, with its items."""
    for file, rows in (
        (transactions, [hard_mode.transaction_row(placed)]),
        (items, hard_mode.item_rows(placed)),
    ):
        lines = csv_lines(rows, file.style.eol)
        for begin in range(0, copies, RUN_BLOCK_ROWS):
            file.write(lines * min(RUN_BLOCK_ROWS, copies - begin))


def _write_rowless_files(out: Path) -> list[WrittenFile]:
    """Write the files of hard mode without any row: of zero bytes, and of a header alone."""
    files = []
    for table in MONTHLY_TABLES:
        empty = out / f"{table}_{hard_mode.EMPTY_MONTH}.csv"
        files.append(write_empty(empty, table=table))
        style = FileStyle(final_newline=table != "users")
        with _open(out, table, f"_{hard_mode.HEADER_ONLY_MONTH}", style) as file:
            pass
        files.append(file.written)
    return files


def _open(out: Path, table: str, suffix: str, style: FileStyle) -> TableFile:
    """Open the file of a table, or of one month of it."""
    path = out / f"{table}{suffix}.csv"
    return TableFile(path, table=table, header=HEADERS[table], style=style)
