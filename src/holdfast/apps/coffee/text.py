"""Turns the columns of a day into the bytes of CSV rows, without a Python loop over rows.

Each field becomes a matrix of bytes, one row per CSV row, padded with NUL. The matrices are laid
side by side and the NULs deleted: what is left is the text of all rows. No field holds a NUL.

Format: comma, no quoting, null is the empty field, amounts with one to three decimals, user_id
with ".0" in transactions and without it in users, timestamps `YYYY-MM-DD HH:MM:SS`.
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import lru_cache
from typing import Final

import numpy as np

from holdfast.apps.coffee.draw import (
    BIRTHDATES,
    FIRST_BIRTHDATE,
    PAYMENT_COUNT,
    STORE_COUNT,
    Day,
    Ints,
    Octets,
    Plan,
    draw_people,
    shuffled,
)
from holdfast.apps.coffee.tables import MENU, UNITS_PER_ONE, VOUCHERS, date_of, money_text

# Rows made into text at once. Larger: more memory at large scales. Smaller: more calls per day.
BLOCK_ROWS: Final = 100_000
MAX_QUANTITY: Final = 3
# Three lines of three of the dearest item: no amount of normal mode is above it.
MAX_AMOUNT: Final = 3 * MAX_QUANTITY * 10 * UNITS_PER_ONE


def transaction_lines(plan: Plan, day: Day, eol: str) -> Iterator[bytes]:
    """Yield the transaction rows of a day, in file order, as blocks of whole lines."""
    for rows in _blocks(shuffled(plan.seed, "transactions", day.number, len(day.store))):
        place = (day.store[rows] - 1) * PAYMENT_COUNT + day.payment[rows] - 1
        user = day.user[rows]
        yield _joined(
            uuid_octets(day.ids[rows]),
            _places()[place * (len(VOUCHERS) + 1) + day.voucher[rows]],
            _digits(user),
            _user_ends()[(user > 0).astype(np.int64)],
            _amounts()[day.original[rows]],
            _amounts()[day.discount[rows]],
            _amounts()[day.final[rows]],
            _stamps(day.number, day.second[rows], eol),
        )


def item_lines(plan: Plan, day: Day, eol: str) -> Iterator[bytes]:
    """Yield the item rows of a day, in file order, as blocks of whole lines."""
    for rows in _blocks(shuffled(plan.seed, "transaction_items", day.number, len(day.owner))):
        owner = day.owner[rows]
        yield _joined(
            uuid_octets(day.ids[owner]),
            _sales()[(day.item[rows] - 1) * MAX_QUANTITY + day.quantity[rows] - 1],
            _stamps(day.number, day.second[owner], eol),
        )


def user_lines(plan: Plan, day: Day, eol: str) -> Iterator[bytes]:
    """Yield the rows of the users who register on a day, in file order."""
    female, birthdate = draw_people(plan, day.number)
    user, second = day.user[day.registers], day.second[day.registers]
    for rows in _blocks(shuffled(plan.seed, "users", day.number, len(user))):
        yield _joined(
            _digits(user[rows]),
            _genders()[female[rows].astype(np.int64)],
            _birthdates()[birthdate[rows]],
            _stamps(day.number, second[rows], eol),
        )


def uuid_octets(ids: Octets) -> Octets:
    """Write 16 bytes a row as the 36 characters of a UUID."""
    digits = _hex_pairs()[ids].reshape(-1, 32)
    text = np.full((len(ids), 36), ord("-"), dtype=np.uint8)
    begin = 0
    for group, length in enumerate((8, 4, 4, 4, 12)):
        text[:, begin + group : begin + group + length] = digits[:, begin : begin + length]
        begin += length
    return text


def uuid_texts(ids: Octets) -> list[str]:
    """Return the UUIDs as strings."""
    return [row.tobytes().decode() for row in uuid_octets(ids)]


def _blocks(order: Ints) -> Iterator[Ints]:
    """Cut a file order into blocks of bounded length."""
    for begin in range(0, len(order), BLOCK_ROWS):
        yield order[begin : begin + BLOCK_ROWS]


def _joined(*fields: Octets) -> bytes:
    """Lay the fields side by side and delete the padding."""
    return np.concatenate(fields, axis=1).tobytes().translate(None, b"\0")


def _digits(numbers: Ints) -> Octets:
    """Write each number in decimal; 0, which stands for null, becomes nothing."""
    width = len(str(numbers.max(initial=0)))
    powers = 10 ** np.arange(width - 1, -1, -1, dtype=np.int64)
    quotients = numbers[:, None] // powers
    digits = (quotients % 10 + ord("0")).astype(np.uint8)
    digits[quotients == 0] = 0
    return digits


def _stamps(number: int, second: Ints, eol: str) -> Octets:
    """Write date, time and end of line."""
    fixed = np.frombuffer(date_of(number).isoformat().encode(), dtype=np.uint8)
    end = np.frombuffer(eol.encode(), dtype=np.uint8)
    text = np.empty((len(second), len(fixed) + 9 + len(end)), dtype=np.uint8)
    text[:, : len(fixed)] = fixed
    text[:, len(fixed) : len(fixed) + 9] = _times()[second]
    text[:, len(fixed) + 9 :] = end
    return text


def _table(texts: Iterable[str]) -> Octets:
    """Make the padded byte matrix of a list of texts, to be indexed by position."""
    padded = np.array([text.encode() for text in texts])
    return padded.view(np.uint8).reshape(len(padded), -1)


@lru_cache(maxsize=1)
def _hex_pairs() -> Octets:
    return _table(f"{octet:02x}" for octet in range(256))


@lru_cache(maxsize=1)
def _times() -> Octets:
    second = np.arange(86_400)
    pairs = _table(f":{number:02d}" for number in range(60))
    times = np.hstack([pairs[second // 3600], pairs[second // 60 % 60], pairs[second % 60]])
    times[:, 0] = ord(" ")
    return times


@lru_cache(maxsize=1)
def _amounts() -> Octets:
    return _table(money_text(units) + "," for units in range(MAX_AMOUNT + 1))


@lru_cache(maxsize=1)
def _places() -> Octets:
    """Store, payment method and voucher of a transaction, for every combination."""
    vouchers = ["", *(str(voucher.voucher_id) for voucher in VOUCHERS)]
    return _table(
        f",{store},{payment},{voucher},"
        for store in range(1, STORE_COUNT + 1)
        for payment in range(1, PAYMENT_COUNT + 1)
        for voucher in vouchers
    )


@lru_cache(maxsize=1)
def _user_ends() -> Octets:
    """What follows the digits of a null and of a present user id."""
    return _table([",", ".0,"])


@lru_cache(maxsize=1)
def _sales() -> Octets:
    """Item, quantity, unit price and subtotal of an item row, for every combination."""
    return _table(
        f",{item.item_id},{quantity},{money_text(item.price)},{money_text(item.price * quantity)},"
        for item in MENU
        for quantity in range(1, MAX_QUANTITY + 1)
    )


@lru_cache(maxsize=1)
def _genders() -> Octets:
    return _table([",male,", ",female,"])


@lru_cache(maxsize=1)
def _birthdates() -> Octets:
    return _table(birthdate_text(offset) + "," for offset in range(BIRTHDATES))


def birthdate_text(offset: int) -> str:
    """Return the birthdate a number of days after the first one."""
    return (FIRST_BIRTHDATE + timedelta(days=offset)).isoformat()
