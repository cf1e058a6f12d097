"""A second, naive implementation of the coffee-shop queries: plain Python over the CSV files.

It knows the published format and nothing of the generator, so that an error in the draws' columns,
in the text or in the oracle makes the two disagree. Only for small scales: it holds all rows.
"""

import csv
from collections import Counter, defaultdict
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

Row = tuple[str, ...]


def naive_answers(data: Path) -> dict[str, list[Row]]:
    """Compute the five answers of a directory of CSV files, rows in the order of the queries."""
    transactions = [row for row in _rows(data, "transactions_*.csv") if _in_years(row)]
    in_hours = [row for row in transactions if "06:00:00" <= row["created_at"][11:] <= "23:00:00"]
    items = [row for row in _rows(data, "transaction_items_*.csv") if _in_years(row)]
    names = {row["item_id"]: row["item_name"] for row in _rows(data, "menu_items.csv")}
    stores = {row["store_id"]: row["store_name"] for row in _rows(data, "stores.csv")}
    birthdates = {int(row["user_id"]): row["birthdate"] for row in _rows(data, "users_*.csv")}
    quantity: dict[str, Counter[int]] = defaultdict(Counter)
    profit: dict[str, dict[int, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    for row in items:
        month, item = row["created_at"][:7], int(row["item_id"])
        quantity[month][item] += int(row["quantity"])
        profit[month][item] += Decimal(row["subtotal"])
    return {
        "q1": sorted(
            (row["transaction_id"], _plain(Decimal(row["final_amount"])))
            for row in in_hours
            if Decimal(row["final_amount"]) >= 75
        ),
        "q2_quantity": [
            (month, names[str(best)], str(sums[best]))
            for month, sums in sorted(quantity.items())
            for best in [min(sums, key=lambda item: (-sums[item], item))]
        ],
        "q2_profit": [
            (month, names[str(best)], _plain(money[best]))
            for month, money in sorted(profit.items())
            for best in [min(money, key=lambda item: (-money[item], item))]
        ],
        "q3": _q3(in_hours, stores),
        "q4": _q4(transactions, stores, birthdates),
    }


def _rows(data: Path, pattern: str) -> Iterator[dict[str, str]]:
    for path in sorted(data.glob(pattern)):
        with path.open(encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file, strict=True)


def _in_years(row: dict[str, str]) -> bool:
    return row["created_at"][:4] in ("2024", "2025")


def _q3(in_hours: list[dict[str, str]], stores: dict[str, str]) -> list[Row]:
    sums: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for row in in_hours:
        half = row["created_at"][:4] + ("-H1" if row["created_at"][5:7] <= "06" else "-H2")
        sums[half, row["store_id"]] += Decimal(row["final_amount"])
    return sorted(
        (half, stores.get(store, store), _plain(total)) for (half, store), total in sums.items()
    )


def _q4(
    transactions: list[dict[str, str]], stores: dict[str, str], birthdates: dict[int, str]
) -> list[Row]:
    visits: dict[str, Counter[int]] = defaultdict(Counter)
    for row in transactions:
        if row["user_id"]:
            visits[row["store_id"]][int(Decimal(row["user_id"]))] += 1
    return sorted(
        (stores.get(store, store), birthdates.get(user, ""))
        for store, counts in visits.items()
        for user in sorted(counts, key=lambda user: (-counts[user], user))[:3]
    )


def _plain(amount: Decimal) -> str:
    text = f"{amount:.3f}".rstrip("0")
    return text + "0" if text.endswith(".") else text
