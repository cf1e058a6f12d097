"""The constant tables of the coffee-shop data set and the calendar it covers.

Owns the rows of menu_items, stores, payment_methods and vouchers, the header of every table, and
the one way money is printed. Money is an integer count of units of 0.005 everywhere: every price,
discount and sum of the data set is a multiple of it, so no sum depends on the order of its terms.
"""

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

UNITS_PER_ONE: Final = 200

START: Final = date(2023, 7, 1)
DAYS: Final = 731

MONTHS: Final = tuple((2023 + (6 + i) // 12, (6 + i) % 12 + 1) for i in range(24))

HEADERS: Final = {
    "menu_items": "item_id,item_name,category,price,is_seasonal,available_from,available_to",
    "stores": "store_id,store_name,street,postal_code,city,state,latitude,longitude",
    "payment_methods": "method_id,method_name,category",
    "vouchers": "voucher_id,voucher_code,discount_type,discount_value,valid_from,valid_to",
    "users": "user_id,gender,birthdate,registered_at",
    "transactions": (
        "transaction_id,store_id,payment_method_id,voucher_id,user_id,"
        "original_amount,discount_applied,final_amount,created_at"
    ),
    "transaction_items": "transaction_id,item_id,quantity,unit_price,subtotal,created_at",
}

MONTHLY_TABLES: Final = ("users", "transactions", "transaction_items")


@dataclass(frozen=True, slots=True)
class MenuItem:
    """One thing on the menu; the price in units of 0.005."""

    item_id: int
    name: str
    category: str
    price: int


@dataclass(frozen=True, slots=True)
class Store:
    """One coffee shop; the address columns are never used by a query."""

    store_id: int
    name: str
    street: str
    postal_code: str
    city: str
    state: str
    latitude: str
    longitude: str


@dataclass(frozen=True, slots=True)
class Voucher:
    """A discount that can be used from the first to the last day of its window, both included.

    `percent` is whole: the original amount is a multiple of 0.5, so the discount is a multiple of
    0.005. None means the fixed discount of 5, capped at the original amount.
    """

    voucher_id: int
    code: str
    percent: int | None
    valid_from: date
    valid_to: date


MENU: Final = (
    MenuItem(1, "Espresso", "coffee", 1200),
    MenuItem(2, "Americano", "coffee", 1400),
    MenuItem(3, "Latte", "coffee", 1600),
    MenuItem(4, "Cappuccino", "coffee", 1600),
    MenuItem(5, "Flat White", "coffee", 1800),
    MenuItem(6, "Mocha", "coffee", 1900),
    MenuItem(7, "Hot Chocolate", "non-coffee", 1800),
    MenuItem(8, "Matcha Latte", "non-coffee", 2000),
)

STORES: Final = (
    Store(
        1, "G Coffee @ Harbour Gate", "1 Quay Road", "10110", "Northport", "Coast", "3.1", "101.5"
    ),
    Store(
        2, "G Coffee @ Old Market", "28 Clock Street", "10120", "Northport", "Coast", "3.2", "101.6"
    ),
    Store(3, "G Coffee @ Riverside", "7 Mill Lane", "20210", "Ferrymouth", "Delta", "3.3", "101.7"),
    Store(
        4, "G Coffee @ University", "90 College Row", "20220", "Ferrymouth", "Delta", "3.4", "101.8"
    ),
    Store(
        5, "G Coffee @ Central Station", "2 Rail Square", "30310", "Midway", "Plain", "3.5", "101.9"
    ),
    Store(
        6, "G Coffee @ Garden City", "15 Fern Avenue", "30320", "Midway", "Plain", "3.6", "102.1"
    ),
    Store(7, "G Coffee @ Hill View", "44 Ridge Road", "40410", "Highton", "Upland", "3.7", "102.2"),
    Store(8, "G Coffee @ PJ8", "8 Section Eight", "40420", "Highton", "Upland", "3.8", "102.3"),
    Store(
        9,
        "G Coffee @ Lakeside Mall",
        "100 Shore Drive",
        "50510",
        "Westlake",
        "Basin",
        "3.9",
        "102.4",
    ),
    Store(10, "G Coffee @ Airport", "1 Terminal Way", "50520", "Westlake", "Basin", "4.1", "102.5"),
)

PAYMENT_METHODS: Final = (
    ("1", "Cash", "offline"),
    ("2", "Credit Card", "card"),
    ("3", "Debit Card", "card"),
    ("4", "E-Wallet", "digital"),
    ("5", "Bank Transfer", "digital"),
)


def _voucher(voucher_id: int, percent: int | None, first: date, days: int) -> Voucher:
    """Build the voucher whose window is `days` long from its first day on."""
    code = f"COFFEE{voucher_id:02d}"
    return Voucher(voucher_id, code, percent, first, first + timedelta(days=days - 1))


# The windows leave most days without any voucher, as in the published files: were they longer, a
# transaction row would be longer than the 77 to 86 bytes it has there.
VOUCHERS: Final = (
    _voucher(1, 10, date(2023, 8, 10), 14),
    _voucher(2, None, date(2023, 9, 15), 10),
    _voucher(3, 15, date(2023, 10, 20), 14),
    _voucher(4, 20, date(2023, 12, 18), 14),
    _voucher(5, 11, date(2024, 1, 20), 14),
    _voucher(6, None, date(2024, 2, 9), 7),
    _voucher(7, 5, date(2024, 3, 25), 14),
    _voucher(8, 7, date(2024, 4, 1), 14),
    _voucher(9, 12, date(2024, 5, 27), 10),
    _voucher(10, None, date(2024, 7, 1), 14),
    _voucher(11, 13, date(2024, 8, 26), 14),
    _voucher(12, 25, date(2024, 10, 31), 7),
    _voucher(13, 11, date(2024, 11, 25), 14),
    _voucher(14, None, date(2024, 12, 20), 12),
    _voucher(15, 9, date(2025, 1, 25), 10),
    _voucher(16, 3, date(2025, 2, 10), 7),
)


def date_of(day: int) -> date:
    """Return the date of a day number; day 0 is 2023-07-01."""
    return START + timedelta(days=day)


def days_of_month(month: int) -> range:
    """Return the day numbers of the month with this position in MONTHS."""
    year, number = MONTHS[month]
    first = (date(year, number, 1) - START).days
    following = date(year + number // 12, number % 12 + 1, 1)
    return range(first, (following - START).days)


def money_text(units: int) -> str:
    """Print an amount as a plain decimal with at least one and no superfluous digit after the dot.

    Amounts are never negative here.
    """
    whole, thousandths = divmod(units * 5, 1000)
    return f"{whole}." + (f"{thousandths:03d}".rstrip("0") or "0")


def menu_rows(menu: tuple[MenuItem, ...]) -> list[tuple[str, ...]]:
    """Return the rows of menu_items.csv; nothing is seasonal, so the two dates are null."""
    return [
        (str(item.item_id), item.name, item.category, money_text(item.price), "False", "", "")
        for item in menu
    ]


def store_rows(stores: tuple[Store, ...]) -> list[tuple[str, ...]]:
    """Return the rows of stores.csv."""
    return [
        (
            str(store.store_id),
            store.name,
            store.street,
            store.postal_code,
            store.city,
            store.state,
            store.latitude,
            store.longitude,
        )
        for store in stores
    ]


def voucher_rows() -> list[tuple[str, ...]]:
    """Return the rows of vouchers.csv."""
    return [
        (
            str(voucher.voucher_id),
            voucher.code,
            "fixed" if voucher.percent is None else "percentage",
            "5.0" if voucher.percent is None else f"{voucher.percent}.0",
            voucher.valid_from.isoformat(),
            voucher.valid_to.isoformat(),
        )
        for voucher in VOUCHERS
    ]
