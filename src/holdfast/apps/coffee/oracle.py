"""The exactly known answers to the five coffee-shop queries, from the generator's own draws.

Nothing is read from files and Spark has no part in it. Days are drawn one at a time and added up
in integers (money in units of 0.005), so memory holds one day, the rows of q1 and one counter per
user and store.

Ties: q2 takes the lowest item_id; q4 takes more purchases first, then the lower user_id. An orphan
store prints its id as its name; an orphan user is ranked like any other and prints no birthdate.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

import numpy as np

from holdfast.apps.coffee import hard as hard_mode
from holdfast.apps.coffee.draw import (
    STORE_COUNT,
    Day,
    Ints,
    Plan,
    day_of_user,
    draw_day,
    draw_people,
    plan_days,
)
from holdfast.apps.coffee.files import csv_lines
from holdfast.apps.coffee.tables import (
    MENU,
    MONTHS,
    UNITS_PER_ONE,
    days_of_month,
    money_text,
)
from holdfast.apps.coffee.text import birthdate_text, uuid_texts

Row = tuple[str, ...]

FIRST_MONTH: Final = MONTHS.index((2024, 1))
FIRST_S: Final = 6 * 3600
LAST_S: Final = 23 * 3600
MIN_FINAL: Final = 75 * UNITS_PER_ONE
TOP_USERS: Final = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one query, as it is printed: rows in the order the query asks for."""

    name: str
    header: Row
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to all queries, and the order-free hash of the rows of q1."""

    q1: Answer
    q2_quantity: Answer
    q2_profit: Answer
    q3: Answer
    q4: Answer
    q1_hash: str

    @property
    def q1_count(self) -> int:
        """The number of rows of q1."""
        return len(self.q1.rows)

    def __iter__(self) -> Iterator[Answer]:
        """Iterate over the five answers."""
        return iter((self.q1, self.q2_quantity, self.q2_profit, self.q3, self.q4))


def answers(*, scale: float, seed: int, hard: bool = False) -> Answers:
    """Compute the answers for the data set that `generate` writes for the same arguments.

    Raises ValueError if the scale is out of range.
    """
    plan = plan_days(scale=scale, seed=seed, hard=hard)
    tally = _Tally(plan)
    for month in range(FIRST_MONTH, len(MONTHS)):
        for day in _days(plan, month):
            tally.add(month, day)
    menu = [item.name for item in hard_mode.menu(hard)]
    stores = {store.store_id: store.name for store in hard_mode.stores(hard)}
    q1 = tuple(sorted(tally.dear))
    return Answers(
        q1=Answer("q1", ("transaction_id", "final_amount"), q1),
        q2_quantity=Answer(
            "q2_quantity",
            ("year_month_created_at", "item_name", "sellings_qty"),
            tuple((month, menu[item], str(most)) for month, item, most in _best(tally.quantity)),
        ),
        q2_profit=Answer(
            "q2_profit",
            ("year_month_created_at", "item_name", "profit_sum"),
            tuple((month, menu[i], money_text(most)) for month, i, most in _best(tally.profit)),
        ),
        q3=Answer("q3", ("year_half_created_at", "store_name", "tpv"), _q3(tally, stores)),
        q4=Answer("q4", ("store_name", "birthdate"), _q4(tally, plan, stores)),
        q1_hash=order_free_hash(q1),
    )


def write_answers(answers: Answers, out: Path) -> None:
    """Write q1.csv to q4.csv: header, LF, quotes only where needed; replaces what was there."""
    out.mkdir(parents=True, exist_ok=True)
    for answer in answers:
        part = out / f".{answer.name}.csv.part"
        part.write_bytes(csv_lines([answer.header, *answer.rows], "\n"))
        os.replace(part, out / f"{answer.name}.csv")


def order_free_hash(rows: Iterable[Row]) -> str:
    """Return the sum modulo 2**128 of a 128-bit hash per row, as 32 hexadecimal digits.

    It does not depend on the order of the rows, but, unlike an exclusive or, on their number. What
    is hashed is the fields joined by commas.
    """
    total = 0
    for row in rows:
        digest = blake2b(",".join(row).encode(), digest_size=16).digest()
        total += int.from_bytes(digest, "big")
    return f"{total % 2**128:032x}"


class _Tally:
    """What has been added up so far, for the days from 2024 on."""

    def __init__(self, plan: Plan) -> None:
        self.dear: list[Row] = []
        self.quantity = np.zeros((len(MONTHS), len(MENU)), dtype=np.int64)
        self.profit = np.zeros((len(MONTHS), len(MENU)), dtype=np.int64)
        self.volume: Counter[tuple[str, int]] = Counter()
        self.visits = np.zeros((STORE_COUNT + 1, plan.user_count + 1), dtype=np.int32)
        # Purchases that the array has no place for: orphans and the stores of hard mode.
        self.rare_visits: Counter[tuple[int, int]] = Counter()

    def add(self, month: int, day: Day) -> None:
        """Add the rows of a day."""
        np.add.at(self.quantity[month], day.item - 1, day.quantity)
        np.add.at(self.profit[month], day.item - 1, day.subtotal)
        self._add_visits(store=day.store, user=day.user)
        open_hours = np.flatnonzero((day.second >= FIRST_S) & (day.second <= LAST_S))
        store, final = day.store[open_hours], day.final[open_hours]
        year, number = MONTHS[month]
        half = f"{year}-H{1 if number <= 6 else 2}"
        sums = np.zeros(hard_mode.ORPHAN_STORE + 1, dtype=np.int64)
        np.add.at(sums, store, final)
        for here in np.unique(store):
            self.volume[half, int(here)] += int(sums[here])
        dear = final >= MIN_FINAL
        amounts = [money_text(units) for units in final[dear].tolist()]
        self.dear.extend(zip(uuid_texts(day.ids[open_hours[dear]]), amounts, strict=True))

    def _add_visits(self, *, store: Ints, user: Ints) -> None:
        """Count the purchases of each user in each store."""
        stores, users = self.visits.shape
        usual = (store < stores) & (user < users) & (user > 0)
        np.add.at(self.visits, (store[usual], user[usual]), 1)
        rare = (user > 0) & ~usual
        self.rare_visits.update(zip(store[rare].tolist(), user[rare].tolist(), strict=True))


def _days(plan: Plan, month: int) -> Iterator[Day]:
    """Draw the days of a month, then the edges of hard mode."""
    for number in days_of_month(month):
        yield draw_day(plan, number)
    edges = hard_mode.month_edges(plan, month)
    for placed in (*edges.head, *edges.tail):
        yield hard_mode.as_day(placed, copies=1)
    if edges.middle is not None:
        yield hard_mode.as_day(edges.middle, copies=edges.copies)


def _best(sums: Ints) -> list[tuple[str, int, int]]:
    """Return month, position of the best item and its sum, for each month with sales."""
    return [
        (f"{MONTHS[month][0]}-{MONTHS[month][1]:02d}", int(of_month.argmax()), int(of_month.max()))
        for month, of_month in enumerate(sums)
        if of_month.any()
    ]


def _q3(tally: _Tally, stores: dict[int, str]) -> tuple[Row, ...]:
    """Return the volume of each half-year and store."""
    rows = [
        (half, stores.get(store, str(store)), money_text(units))
        for (half, store), units in tally.volume.items()
    ]
    return tuple(sorted(rows))


def _q4(tally: _Tally, plan: Plan, stores: dict[int, str]) -> tuple[Row, ...]:
    """Return the birthdates of the users with most purchases in each store."""
    ranked: dict[int, list[tuple[int, int]]] = {}
    for store, visits in enumerate(tally.visits):
        # A stable sort keeps the lower user id first among equals.
        best = np.argsort(-visits, kind="stable")[:TOP_USERS]
        ranked[store] = [(-int(visits[user]), int(user)) for user in best if visits[user] > 0]
    for (store, user), count in tally.rare_visits.items():
        ranked.setdefault(store, []).append((-count, user))
    rows = [
        (stores.get(store, str(store)), _birthdate(plan, user))
        for store, candidates in ranked.items()
        for _, user in sorted(candidates)[:TOP_USERS]
    ]
    return tuple(sorted(rows))


def _birthdate(plan: Plan, user: int) -> str:
    """Return a user's birthdate, or nothing for an orphan; draws only the day it registered."""
    day = day_of_user(plan, user)
    if day is None:
        return ""
    _, birthdates = draw_people(plan, day)
    return birthdate_text(int(birthdates[user - 1 - plan.users_before[day]]))
