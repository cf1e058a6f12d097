"""The random draws of one day of the coffee-shop data set, as integer columns.

Random numbers are counter-based: a Philox stream per (seed, table, day), whose key is a hash of
those three, and a draw's index is its position in that stream. So any day can be drawn alone, in
any order, in any process, and comes out the same. The only thing that links days is the number of
users that exist before a day; `plan_days` gets it from one cheap draw of three counts per day.

Rows of a day are drawn in time order: a returning user has always registered before.
"""

import math
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt

from holdfast.apps.coffee.tables import DAYS, MENU, UNITS_PER_ONE, VOUCHERS, date_of

Ints = npt.NDArray[np.int64]
Raw = npt.NDArray[np.uint64]
Octets = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

TRANSACTIONS_PER_DAY: Final = 20_005
# Larger: a day, held in memory, takes gigabytes; near 900 hard mode's orphan user becomes real.
MAX_SCALE: Final = 100.0

OPENING_S: Final = 7 * 3600
CLOSING_S: Final = 20 * 3600
PEAK_S: Final = 12.5 * 3600
SPREAD_S: Final = 2.5 * 3600
FIRST_BIRTHDATE: Final = date(1964, 7, 21)
BIRTHDATES: Final = (date(2009, 7, 19) - FIRST_BIRTHDATE).days + 1

STORE_COUNT: Final = 10
PAYMENT_COUNT: Final = 5
# In hard mode every second returning purchase goes to one of the first few users.
HOT_USERS: Final = 5

PRICES: Final[Ints] = np.array([item.price for item in MENU], dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How many transactions, member purchases and new users each day has, for one seed and scale.

    `users_before[d]` users exist before day d; it has one more entry, the number of all users.
    """

    seed: int
    hard: bool
    transactions: Ints
    members: Ints
    new_users: Ints
    users_before: Ints

    @property
    def user_count(self) -> int:
        """The number of users at the end of the last day; user ids are 1 to this number."""
        return int(self.users_before[DAYS])


@dataclass(frozen=True, slots=True, eq=False)
class Day:
    """The transactions of one day and their items, one array per column, in time order.

    `user` is 0 where the purchase is anonymous, `voucher` is 0 where none was used. An item row
    takes transaction id and time from the transaction at position `owner`. Amounts are units.
    """

    number: int
    ids: Octets
    store: Ints
    payment: Ints
    voucher: Ints
    user: Ints
    registers: Flags
    original: Ints
    discount: Ints
    second: Ints
    owner: Ints
    item: Ints
    quantity: Ints
    subtotal: Ints

    @property
    def final(self) -> Ints:
        """What was paid."""
        return self.original - self.discount


def philox(seed: int, table: str, day: int) -> np.random.Philox:
    """Return the stream of random numbers of a table and a day, at its start."""
    digest = blake2b(f"{seed}|{table}|{day}".encode(), digest_size=16).digest()
    return np.random.Philox(key=int.from_bytes(digest, "little"))


def plan_days(*, scale: float, seed: int, hard: bool) -> Plan:
    """Draw the three counts of every day.

    Raises ValueError if the scale is not above 0 and at most MAX_SCALE.
    """
    if not 0 < scale <= MAX_SCALE:
        raise ValueError(f"scale {scale} is out of range: give one above 0, up to {MAX_SCALE:g}")
    counts = np.zeros((3, DAYS), dtype=np.int64)
    for day in range(DAYS):
        generator = np.random.Generator(philox(seed, "counts", day))
        transactions = generator.poisson(TRANSACTIONS_PER_DAY * scale)
        member_share = 1 / (1 + math.exp(-12 * (day / (DAYS - 1) - 0.5)))
        members = generator.binomial(transactions, member_share)
        counts[:, day] = transactions, members, generator.binomial(members, 0.3)
    users_before = np.concatenate(([0], np.cumsum(counts[2])))
    return Plan(seed, hard, counts[0], counts[1], counts[2], users_before)


def draw_day(plan: Plan, number: int) -> Day:
    """Draw the transactions and items of a day, independently of every other day."""
    count = int(plan.transactions[number])
    draws = philox(plan.seed, "transactions", number).random_raw((10, count))
    user, registers = _users(plan, number, purchase=draws[0], choice=draws[1])
    voucher = _vouchers(number, use=draws[2], choice=draws[3])
    owner, item, quantity = _items(plan, number, lines=1 + _pick(draws[7], 3))
    subtotal = PRICES[item - 1] * quantity
    original = np.zeros(count, dtype=np.int64)
    np.add.at(original, owner, subtotal)
    return Day(
        number=number,
        ids=transaction_ids(draws[8:]),
        store=_stores(draws[4], skewed=plan.hard),
        payment=1 + _pick(draws[5], PAYMENT_COUNT),
        voucher=voucher,
        user=user,
        registers=registers,
        original=original,
        discount=_discounts(original, voucher),
        second=_seconds(draws[6]),
        owner=owner,
        item=item,
        quantity=quantity,
        subtotal=subtotal,
    )


def transaction_ids(raw: Raw) -> Octets:
    """Turn pairs of 64-bit numbers into 16 bytes each, with the marks of a random UUID."""
    ids = np.ascontiguousarray(raw.T).astype("<u8").view(np.uint8).reshape(-1, 16)
    ids[:, 6] = ids[:, 6] & 0x0F | 0x40
    ids[:, 8] = ids[:, 8] & 0x3F | 0x80
    return ids


def shuffled(seed: int, table: str, day: int, count: int) -> Ints:
    """Return the positions 0 to count-1 in the order of the file."""
    return np.argsort(philox(seed, table + "/order", day).random_raw(count)).astype(np.int64)


def draw_people(plan: Plan, number: int) -> tuple[Flags, Ints]:
    """Draw who registers on a day: whether female, and the birthdate in days from the first."""
    count = int(plan.new_users[number])
    draws = philox(plan.seed, "users", number).random_raw((2, count))
    return _pick(draws[0], 2) == 1, _pick(draws[1], BIRTHDATES)


def day_of_user(plan: Plan, user: int) -> int | None:
    """Return the day on which a user registers, or None if there is no such user."""
    if not 1 <= user <= plan.user_count:
        return None
    return int(np.searchsorted(plan.users_before, user)) - 1


def _pick(raw: Raw, choices: int | Ints) -> Ints:
    """Map the upper 32 bits of each number evenly to 0 .. choices-1, without floats."""
    scaled = (raw >> np.uint64(32)) * np.asarray(choices, dtype=np.uint64)
    return (scaled >> np.uint64(32)).astype(np.int64)


def _stores(raw: Raw, *, skewed: bool) -> Ints:
    """Draw stores: uniform, or, skewed, half of all rows in store 1 and the rest uniform."""
    if not skewed:
        return 1 + _pick(raw, STORE_COUNT)
    drawn = _pick(raw, 2 * STORE_COUNT)
    return np.where(drawn < STORE_COUNT, 1 + drawn, 1)


def _users(plan: Plan, number: int, *, purchase: Raw, choice: Raw) -> tuple[Ints, Flags]:
    """Draw who buys; the second result marks the purchases that create the user.

    The counts of the day are given, so it draws which rows they fall on: all subsets of that size
    are equally likely, which is what independent draws give once their number is known.
    """
    members, created = int(plan.members[number]), int(plan.new_users[number])
    rows = np.argsort(purchase)
    registers = np.zeros(len(purchase), dtype=np.bool_)
    registers[rows[:created]] = True
    newest = int(plan.users_before[number]) + np.cumsum(registers)
    user = np.where(registers, newest, 0)
    returning = rows[created:members]
    existing = newest[returning]
    if plan.hard:
        hot = (choice[returning] & np.uint64(1)) == 1
        existing = np.where(hot, np.minimum(existing, HOT_USERS), existing)
    # Before the first user exists there is nobody to draw: that purchase stays anonymous.
    drawn = 1 + _pick(choice[returning], existing)
    user[returning] = np.where(existing > 0, drawn, 0)
    return user, registers


def _vouchers(number: int, *, use: Raw, choice: Raw) -> Ints:
    """Draw vouchers: with probability 3/4 one of those valid on the day, if there is any."""
    today = date_of(number)
    valid = [v.voucher_id for v in VOUCHERS if v.valid_from <= today <= v.valid_to]
    if not valid:
        return np.zeros(len(use), dtype=np.int64)
    return np.where(_pick(use, 4) < 3, np.array(valid)[_pick(choice, len(valid))], 0)


def _discounts(original: Ints, voucher: Ints) -> Ints:
    """Compute the discount; the division is exact, since amounts are multiples of 0.5."""
    percent = np.array([0] + [v.percent or 0 for v in VOUCHERS], dtype=np.int64)
    fixed = np.where(percent > 0, 0, 5 * UNITS_PER_ONE)
    fixed[0] = 0
    return original * percent[voucher] // 100 + np.minimum(fixed[voucher], original)


def _items(plan: Plan, number: int, *, lines: Ints) -> tuple[Ints, Ints, Ints]:
    """Draw the items of transactions with these many lines: owner's position, item, quantity."""
    owner = np.repeat(np.arange(len(lines), dtype=np.int64), lines)
    draws = philox(plan.seed, "transaction_items", number).random_raw((2, len(owner)))
    return owner, 1 + _pick(draws[0], len(MENU)), 1 + _pick(draws[1], 3)


def _seconds(raw: Raw) -> Ints:
    """Draw the times of day, in order, by inverting the truncated normal distribution."""
    uniform = np.sort(raw >> np.uint64(11)) * 2.0**-53
    return OPENING_S + np.searchsorted(_shares_before_end(), uniform, side="right").astype(np.int64)


@lru_cache(maxsize=1)
def _shares_before_end() -> npt.NDArray[np.float64]:
    """For each second of the opening hours, the share of purchases before its end."""
    ends = range(OPENING_S, CLOSING_S + 1)
    normal = np.array([math.erf((end - PEAK_S) / (SPREAD_S * math.sqrt(2))) for end in ends])
    shares: npt.NDArray[np.float64] = (normal[1:] - normal[0]) / (normal[-1] - normal[0])
    # No number drawn may lie above the last second.
    shares[-1] = 1.0
    return shares
