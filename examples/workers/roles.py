"""What the workers do: filter, aggregate, maximise, join. Nothing here knows of crashes.

Each role is a class with `outputs` (where it sends which table type), `first` (which tables must be
complete before the others are applied), and three methods that depend on the state and the chunk
alone. States are JSON; a joiner has one per table.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from examples.workers.rows import (
    ROWS_PER_CHUNK,
    UNITS_PER_ONE,
    blocks,
    decode_rows,
    encode_rows,
    money,
    read_csv,
    units,
)

from holdfast.worker.messages import Chunk
from holdfast.worker.roles import NoState, Output, Part
from holdfast.worker.tables import Tables

YEARS = ("2024", "2025")
OPEN, CLOSED = "06:00:00", "23:00:00"
LARGE = 75 * UNITS_PER_ONE
TOP_USERS = 3


class Filter:
    """Keeps what the answers need, and sends it to the shard that its key belongs to.

    q1 is complete with that. The others get sums of the chunk: volumes by store, visits by user,
    sales by item. A shard that no row of a chunk belongs to gets nothing.
    """

    first: Sequence[str] = ()

    def __init__(self, shards: Sequence[str], answers: str) -> None:
        self._shards, self._answers = shards, answers
        tables = ("volumes", "visits", "sales")
        self.outputs = [
            Output(answers, "q1"),
            *(Output(shard, table) for shard in shards for table in tables),
        ]

    def start(self) -> NoState:
        return NoState()

    def apply(self, state: NoState, chunk: Chunk) -> Iterator[Part]:
        del state
        rows = [row for row in read_csv(chunk.payload) if row["created_at"][:4] in YEARS]
        if chunk.table_type == "transactions":
            yield from self._transactions(rows)
        else:
            yield from self._items(rows)

    def results(self, state: NoState) -> Iterable[Part]:
        del state
        return ()

    def _transactions(self, rows: list[dict[str, str]]) -> Iterator[Part]:
        large: list[tuple[str, str]] = []
        volumes: Counter[tuple[str, int]] = Counter()
        visits: Counter[tuple[int, int]] = Counter()
        for row in rows:
            store = int(row["store_id"])
            if row["user_id"]:
                visits[store, int(row["user_id"].partition(".")[0])] += 1
            if not OPEN <= row["created_at"][11:] <= CLOSED:
                continue
            amount = units(row["final_amount"])
            volumes[_half(row["created_at"]), store] += amount
            if amount >= LARGE:
                large.append((row["transaction_id"], money(amount)))
        if large:
            yield Part(self._answers, "q1", encode_rows(large))
        yield from self._sharded("volumes", ((*key, n) for key, n in volumes.items()))
        yield from self._sharded("visits", ((*key, n) for key, n in visits.items()))

    def _items(self, rows: list[dict[str, str]]) -> Iterator[Part]:
        quantity: Counter[tuple[str, int]] = Counter()
        profit: Counter[tuple[str, int]] = Counter()
        for row in rows:
            key = row["created_at"][:7], int(row["item_id"])
            quantity[key] += int(row["quantity"])
            profit[key] += units(row["subtotal"])
        yield from self._sharded("sales", ((*key, n, profit[key]) for key, n in quantity.items()))

    def _sharded(self, table: str, rows: Iterable[tuple[Any, ...]]) -> Iterator[Part]:
        """Part rows by the second column: the store, the user or the item."""
        shares: defaultdict[int, list[tuple[Any, ...]]] = defaultdict(list)
        for row in rows:
            shares[row[1] % len(self._shards)].append(row)
        for shard, share in sorted(shares.items()):
            yield Part(self._shards[shard], table, encode_rows(share))


def _half(created_at: str) -> str:
    return f"{created_at[:4]}-H{1 if created_at[5:7] <= '06' else 2}"


class Sums:
    """Sums by table and key."""

    def __init__(self, tables: dict[str, dict[str, list[Any]]] | None = None) -> None:
        self.tables = tables or {"volumes": {}, "visits": {}, "sales": {}}

    def add(self, table: str, key: Sequence[Any], amounts: Sequence[int]) -> None:
        sums = self.tables[table].setdefault(json.dumps(key), [*key, *(0 for _ in amounts)])
        for place, amount in enumerate(amounts, len(key)):
            sums[place] += amount

    def to_bytes(self) -> bytes:
        return json.dumps(self.tables, sort_keys=True).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        return cls(json.loads(data))


class Aggregator:
    """One shard: adds up what the filters sent, and passes the sums on when all of it is here."""

    first: Sequence[str] = ()

    def __init__(self, maximizer: str, joiner: str) -> None:
        self.outputs = [
            Output(maximizer, "sales"),
            Output(maximizer, "visits"),
            Output(joiner, "volumes"),
        ]

    def start(self) -> Sums:
        return Sums()

    def apply(self, state: Sums, chunk: Chunk) -> Iterable[Part]:
        for row in decode_rows(chunk.payload):
            state.add(chunk.table_type, row[:2], row[2:])
        return ()

    def results(self, state: Sums) -> Iterator[Part]:
        for to, table in self.outputs:
            rows = (row for _, row in sorted(state.tables[table].items()))
            for block in blocks(rows, ROWS_PER_CHUNK):
                yield Part(to, table, encode_rows(block))


class Best:
    """The best so far: an item per month, by quantity and by profit; users per store."""

    def __init__(self, fields: dict[str, dict[str, list[Any]]] | None = None) -> None:
        self.fields = fields or {"quantity": {}, "profit": {}, "users": {}}

    def to_bytes(self) -> bytes:
        return json.dumps(self.fields, sort_keys=True).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        return cls(json.loads(data))


class Maximizer:
    """Finds the largest sums. A key is in one shard only, so each sum that comes is complete."""

    first: Sequence[str] = ()

    def __init__(self, names: str, users: str) -> None:
        self._names, self._users = names, users
        self.outputs = [
            Output(names, "best_quantity"),
            Output(names, "best_profit"),
            Output(users, "top_users"),
        ]

    def start(self) -> Best:
        return Best()

    def apply(self, state: Best, chunk: Chunk) -> Iterable[Part]:
        for row in decode_rows(chunk.payload):
            if chunk.table_type == "visits":
                store, user, visits = row
                ranked = state.fields["users"].setdefault(str(store), [])
                # More visits first; among equals the lower user id.
                ranked[:] = sorted([*ranked, [-visits, user]])[:TOP_USERS]
            else:
                month, item, *sums = row
                for field, amount in zip(("quantity", "profit"), sums, strict=True):
                    best = state.fields[field].setdefault(month, [-amount, item])
                    best[:] = min(best, [-amount, item])
        return ()

    def results(self, state: Best) -> Iterator[Part]:
        for field in ("quantity", "profit"):
            best = sorted(state.fields[field].items())
            if best:
                rows = [(month, item, -amount) for month, (amount, item) in best]
                yield Part(self._names, f"best_{field}", encode_rows(rows))
        users = sorted(state.fields["users"].items())
        if users:
            rows_of_users = [(int(store), user) for store, ranked in users for _, user in ranked]
            yield Part(self._users, "top_users", encode_rows(rows_of_users))


class Names:
    """One side of a joiner: what is known by key, of one table."""

    def __init__(self, rows: dict[str, Any] | None = None) -> None:
        self.rows = rows or {}

    def to_bytes(self) -> bytes:
        return json.dumps(self.rows, sort_keys=True).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        return cls(json.loads(data))

    def learn(self, chunk: Chunk, key: str, name: str) -> None:
        """Keep the names of a side table."""
        for row in read_csv(chunk.payload):
            self.rows[row[key]] = row[name]

    def name(self, key: int) -> str:
        """Return a name, or the key itself for an orphan."""
        return str(self.rows.get(str(key), key))


@dataclass
class Sides(Tables):
    """Two states: what q2 and q3 look up."""

    stores: Names
    menu_items: Names


@dataclass
class Asked(Tables):
    """What q4 knows: stores by name, who is looked for in which of them, and who was found."""

    stores: Names
    top_users: Names
    users: Names


class JoinNames:
    """q2 and q3: names for stores and items. Sums wait until both side tables are complete."""

    first: Sequence[str] = ("stores", "menu_items")

    def __init__(self, answers: str) -> None:
        self._answers = answers
        self.outputs = [Output(answers, name) for name in ("q2_quantity", "q2_profit", "q3")]

    def start(self) -> Sides:
        return Sides(Names(), Names())

    def apply(self, state: Sides, chunk: Chunk) -> Iterable[Part]:
        if chunk.table_type == "stores":
            state.stores.learn(chunk, "store_id", "store_name")
            return ()
        if chunk.table_type == "menu_items":
            state.menu_items.learn(chunk, "item_id", "item_name")
            return ()
        rows = decode_rows(chunk.payload)
        if chunk.table_type == "volumes":
            named = [(half, state.stores.name(key), money(n)) for half, key, n in rows]
            return [Part(self._answers, "q3", encode_rows(named))]
        field = chunk.table_type.removeprefix("best_")
        text = str if field == "quantity" else money
        named = [(month, state.menu_items.name(item), text(n)) for month, item, n in rows]
        return [Part(self._answers, f"q2_{field}", encode_rows(named))]

    def results(self, state: Sides) -> Iterable[Part]:
        del state
        return ()


class JoinUsers:
    """q4: birthdates for the top users. Users wait until it is known who is looked for.

    So the state holds the few that are asked for, never all users.
    """

    first: Sequence[str] = ("stores", "top_users")

    def __init__(self, answers: str) -> None:
        self.outputs = [Output(answers, "q4")]

    def start(self) -> Asked:
        return Asked(Names(), Names(), Names())

    def apply(self, state: Asked, chunk: Chunk) -> Iterable[Part]:
        if chunk.table_type == "stores":
            state.stores.learn(chunk, "store_id", "store_name")
        elif chunk.table_type == "top_users":
            for store, user in decode_rows(chunk.payload):
                state.top_users.rows.setdefault(str(user), []).append(store)
        else:
            for row in read_csv(chunk.payload):
                if row["user_id"] in state.top_users.rows:
                    state.users.rows[row["user_id"]] = row["birthdate"]
        return ()

    def results(self, state: Asked) -> Iterator[Part]:
        rows = [
            (state.stores.name(store), state.users.rows.get(user, ""))
            for user, stores in state.top_users.rows.items()
            for store in stores
        ]
        for block in blocks(sorted(rows), ROWS_PER_CHUNK):
            yield Part(self.outputs[0].to, "q4", encode_rows(block))
