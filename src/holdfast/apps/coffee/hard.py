"""Hard mode: rare but legal rows and files, each placed where a careless reader gets it wrong.

Owns the edge rows, the small tables they need and the shape of the files. The natural rows of a
day stay, with half of them in store 1 and half of the returning purchases by five users.

In a monthly file, edge rows stand at the very beginning and end, so that a lost first or last row
shows. The twin is the first and the last row of its file: equal rows in different chunks, however
the file is cut. The run fills the middle of the same file: a chunk of up to half the file cuts it.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import numpy as np

from holdfast.apps.coffee.draw import PRICES, Day, Ints, Plan, philox, transaction_ids
from holdfast.apps.coffee.files import FileStyle
from holdfast.apps.coffee.tables import (
    MENU,
    MONTHS,
    START,
    STORES,
    MenuItem,
    Store,
    days_of_month,
    money_text,
)
from holdfast.apps.coffee.text import uuid_texts

ORPHAN_USER: Final = "2000000000.0"
ORPHAN_STORE: Final = 99
FEW_CLIENTS_STORE: Final = 11
RANKING_STORE: Final = 12
# The run needs a few rows even where the scale leaves a month almost empty.
MIN_RUN_ROWS: Final = 64

EMPTY_MONTH: Final = "202306"
HEADER_ONLY_MONTH: Final = "202507"


@dataclass(frozen=True, slots=True)
class Edge:
    """One transaction made by hand; `lines` are pairs of item id and quantity, amounts are units.

    `user` and `final_text` are written as they stand; without `final_text`, the usual text is.
    """

    created_at: datetime
    store: int = 2
    user: str = ""
    lines: tuple[tuple[int, int], ...] = ((8, 3), (8, 3), (8, 2))
    discount: int = 0
    final_text: str | None = None

    @property
    def original(self) -> int:
        """The sum of the lines."""
        return sum(int(PRICES[item - 1]) * quantity for item, quantity in self.lines)


def _ranking_edges() -> list[Edge]:
    """Make the store whose top 3 is the orphan, 7 and 8.

    It is another one if null counts as a client, if "7" and "7.0" are two clients, if users are
    joined before the ranking, or if the tie between 8 and 9 goes to the higher id.
    """
    purchases = [("", 6), (ORPHAN_USER, 5), ("7", 2), ("7.0", 2), ("9.0", 3), ("8.0", 3)]
    users = [user for user, count in purchases for _ in range(count)]
    noon = datetime(2024, 6, 3, 12, 0, 0)
    return [
        Edge(noon + timedelta(seconds=i), RANKING_STORE, user, ((1, 1),))
        for i, user in enumerate(users)
    ]


def _boundary_edges() -> list[Edge]:
    """Make the rows at the limits of time and amount."""
    times = [(5, 59, 59), (6, 0, 0), (22, 59, 59), (23, 0, 0), (23, 0, 1), (23, 59, 59)]
    # One row of every item: whichever wins the month, its sum shows whether the row counts.
    every_item = tuple((item.item_id, 2) for item in MENU)
    finals = [(1001, None), (1000, None), (1000, "75.000"), (999, None)]
    return [
        *(Edge(datetime(2024, 3, 15, *time)) for time in times),
        *(Edge(datetime(2025, 2, 14, *time)) for time in times),
        Edge(datetime(2023, 12, 31, 23, 59, 59), FEW_CLIENTS_STORE, "3.0", every_item),
        Edge(datetime(2024, 1, 1, 0, 0, 0), FEW_CLIENTS_STORE, "7.0", every_item),
        *(
            Edge(datetime(2024, 5, 5, 12, 0, 0), 4, discount=discount, final_text=text)
            for discount, text in finals
        ),
    ]


EDGES: Final = (
    *_boundary_edges(),
    *_ranking_edges(),
    Edge(datetime(2024, 7, 9, 9, 30, 0), FEW_CLIENTS_STORE, ORPHAN_USER),
    Edge(datetime(2024, 8, 9, 9, 30, 0), ORPHAN_STORE),
    Edge(datetime(2025, 1, 9, 9, 30, 0), ORPHAN_STORE, "8.0"),
)
TWIN: Final = Edge(datetime(2024, 9, 9, 9, 9, 9), 3, "7.0", ((8, 3), (8, 2), (8, 3)))
RUN: Final = Edge(datetime(2024, 9, 19, 19, 19, 19), 6, "9.0", ((3, 1),))
TWIN_MONTH: Final = MONTHS.index((2024, 9))


@dataclass(frozen=True, slots=True)
class PlacedEdge:
    """An edge with its transaction id, which depends on the seed."""

    edge: Edge
    transaction_id: str


@dataclass(frozen=True, slots=True)
class MonthEdges:
    """The edges of a monthly file: at its head, in its middle (`copies` of one), at its tail."""

    head: tuple[PlacedEdge, ...]
    middle: PlacedEdge | None
    copies: int
    tail: tuple[PlacedEdge, ...]


def menu(hard: bool) -> tuple[MenuItem, ...]:
    """Return the menu; in hard mode the dearest item, likely to win a month, needs quotes."""
    return (*MENU[:-1], replace(MENU[-1], name="Matcha Latte, Iced")) if hard else MENU


def stores(hard: bool) -> tuple[Store, ...]:
    """Return the stores; hard mode adds two, one of which needs quotes."""
    if not hard:
        return STORES
    few = replace(STORES[0], store_id=FEW_CLIENTS_STORE, name="G Coffee @ Pier 11, East")
    return (*STORES, few, replace(STORES[1], store_id=RANKING_STORE, name="G Coffee @ Ranking"))


def style_of(hard: bool, month: int) -> FileStyle:
    """Return how the lines of a monthly file end: in hard mode, all four ways occur."""
    if not hard:
        return FileStyle()
    return FileStyle(eol="\r\n" if month % 3 == 1 else "\n", final_newline=month % 2 == 1)


def month_edges(plan: Plan, month: int) -> MonthEdges:
    """Return the edges of a month; in normal mode there are none."""
    if not plan.hard:
        return MonthEdges((), None, 0, ())
    here = [
        PlacedEdge(edge, _transaction_id(plan.seed, number))
        for number, edge in enumerate(EDGES)
        if (edge.created_at.year, edge.created_at.month) == MONTHS[month]
    ]
    head, tail = tuple(here[::2]), tuple(here[1::2])
    if month != TWIN_MONTH:
        return MonthEdges(head, None, 0, tail)
    twin = PlacedEdge(TWIN, _transaction_id(plan.seed, len(EDGES)))
    run = PlacedEdge(RUN, _transaction_id(plan.seed, len(EDGES) + 1))
    # Natural items number about twice the transactions: the run is half of the items file.
    days = days_of_month(month)
    copies = max(MIN_RUN_ROWS, 2 * int(plan.transactions[days.start : days.stop].sum()))
    return MonthEdges((twin, *head), run, copies, (*tail, twin))


def transaction_row(placed: PlacedEdge) -> tuple[str, ...]:
    """Return the transaction as CSV fields."""
    edge = placed.edge
    return (
        placed.transaction_id,
        str(edge.store),
        "1",
        "",
        edge.user,
        money_text(edge.original),
        money_text(edge.discount),
        edge.final_text or money_text(edge.original - edge.discount),
        f"{edge.created_at:%Y-%m-%d %H:%M:%S}",
    )


def item_rows(placed: PlacedEdge) -> list[tuple[str, ...]]:
    """Return the items as CSV fields."""
    return [
        (
            placed.transaction_id,
            str(item),
            str(quantity),
            money_text(int(PRICES[item - 1])),
            money_text(int(PRICES[item - 1]) * quantity),
            f"{placed.edge.created_at:%Y-%m-%d %H:%M:%S}",
        )
        for item, quantity in placed.edge.lines
    ]


def as_day(placed: PlacedEdge, *, copies: int) -> Day:
    """Return the edge as the columns of a day on which nothing else happens, for the oracle."""
    edge = placed.edge
    octets = np.frombuffer(bytes.fromhex(placed.transaction_id.replace("-", "")), dtype=np.uint8)
    item, quantity = np.tile(np.array(edge.lines, dtype=np.int64), (copies, 1)).T
    clock = edge.created_at

    def column(value: int) -> Ints:
        return np.full(copies, value, dtype=np.int64)

    return Day(
        number=(clock.date() - START).days,
        ids=np.tile(octets, (copies, 1)),
        store=column(edge.store),
        payment=column(1),
        voucher=column(0),
        user=column(int(float(edge.user)) if edge.user else 0),
        registers=np.zeros(copies, dtype=np.bool_),
        original=column(edge.original),
        discount=column(edge.discount),
        second=column(clock.hour * 3600 + clock.minute * 60 + clock.second),
        owner=np.repeat(np.arange(copies, dtype=np.int64), len(edge.lines)),
        item=item,
        quantity=quantity,
        subtotal=PRICES[item - 1] * quantity,
    )


def _transaction_id(seed: int, number: int) -> str:
    """Return the transaction id of an edge: different for each seed, so that a leak shows."""
    return uuid_texts(transaction_ids(philox(seed, "hard", number).random_raw((2, 1))))[0]
