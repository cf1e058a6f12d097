"""A ledger in PostgreSQL, read as a whole, and what a person takes out of it. Fulfils `Books`.

Transactions and their reasons: docs/internals/ledger-postgres.md#questions. Invariants:

* A question is a transaction that can change nothing, ends before anything is handed out, and
  holds a bounded part of the slots. Slots are read in the order of their hashes, which never
  change: each is listed once, a lost connection or a slow reader notwithstanding.
* Nothing is deleted that has an owner and no outcome, as the row says when it is locked.

Crash points: `calls.shared.*`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from holdfast._base.clock import SystemClock
from holdfast._base.crashpoint import crashpoint
from holdfast.ledger.books import (
    WHOLE,
    Choice,
    HashRange,
    SlotState,
    SlotView,
    StepView,
    chosen_of,
    no_ledger,
    open_view,
    settled_view,
)
from holdfast.ledger.budget import Sums
from holdfast.ledger.contract import HASH_BYTES, OpenSlot, Outcome, Slot, SlotHash, Status
from holdfast.ledger.postgres import tallies
from holdfast.ledger.postgres.address import address_of
from holdfast.ledger.postgres.connection import Server, Sql
from holdfast.ledger.postgres.ledger import PostgresLedger
from holdfast.ledger.postgres.schema import Meta, open_schema
from holdfast.ledger.postgres.slots import read_rows, to_text
from holdfast.ledger.receipt import receipt_from

PAGE_ROWS = 2000
"""Slots that one statement looks at. More: statements that last; fewer: journeys to the server."""
PAGE_BYTES = 8 << 20
"""Answers held at once, if each is smaller. A larger one is held alone."""

_END = b"\xff" * (HASH_BYTES + 1)
"""Above every hash."""
_TAKE_TIME = "SET LOCAL statement_timeout = '10min'"
"""A person may take a million outcomes out at once, which is one statement."""

_CHOSEN = """s.step = ANY(%s::int[]) AND coalesce(s.key = %s::text, true) AND coalesce(s.status,
  CASE WHEN s.owner IS NULL THEN 'in doubt' ELSE 'open' END) = ANY(%s::text[])"""

# S608, here and below: only the constants above become part of a statement.
_PAGE = f"""SELECT s.hash, {_CHOSEN}, coalesce(octet_length(s.answer), octet_length(b.data), 0)
  FROM holdfast_ledger_slot s LEFT JOIN holdfast_ledger_blob b ON b.name = s.blob
  WHERE s.hash >= %s AND s.hash < %s ORDER BY s.hash LIMIT %s"""  # noqa: S608

_ROWS = """SELECT coalesce(sum(bought + parked + failed), 0)::bigint
  + (SELECT count(*) FROM holdfast_ledger_slot WHERE status IS NULL) FROM holdfast_ledger_tally"""

_DROP = """WITH chosen AS (SELECT s.hash FROM holdfast_ledger_slot s WHERE {} AND {}
    ORDER BY s.hash FOR UPDATE),
  gone AS (DELETE FROM holdfast_ledger_slot s USING chosen c WHERE s.hash = c.hash
    RETURNING s.step, s.status, s.held)
  SELECT step, status, count(*), sum(held)::bigint FROM gone GROUP BY step, status"""
_DROP_IN_DOUBT = _DROP.format(_CHOSEN, "s.status IS NULL AND s.owner IS NULL")
_DROP_SETTLED = _DROP.format(_CHOSEN, "s.status IS NOT NULL")

_SWEEP = """DELETE FROM holdfast_ledger_blob b
  WHERE NOT EXISTS (SELECT 1 FROM holdfast_ledger_slot s WHERE s.blob = b.name)"""

_STEPS = "SELECT id, name, generation FROM holdfast_ledger_step ORDER BY id"
_GENERATIONS = """SELECT s.id, s.fingerprint, coalesce(sum(t.spent), 0)::bigint,
  coalesce(sum(t.bought), 0)::bigint,
  coalesce(sum(t.bought + t.parked + t.failed), 0) > 0
  OR EXISTS (SELECT 1 FROM holdfast_ledger_slot WHERE step = s.id)
  FROM holdfast_ledger_step s LEFT JOIN holdfast_ledger_tally t ON t.step = s.id
  WHERE s.name = %s GROUP BY s.id ORDER BY s.generation DESC"""


class PostgresBooks:
    """The slots and steps of a ledger in PostgreSQL."""

    def __init__(self, url: str) -> None:
        """Open a ledger that exists. The right to read its tables is enough for questions.

        Raises:
            UsageInvalid: there is none, or the URL cannot be read.
            LedgerUnreachable, LedgerRefused, StoreNewer, StoreOlder: see `holdfast.errors`.
        """
        self._url, self._label = url, address_of(url).label
        self._server, meta = _opened(url)
        if meta is None:
            self._server.close()
            raise no_ledger(self._label)
        self._id = meta.ledger

    def steps(self) -> list[StepView]:
        """Return every generation of every step, in order of their making."""
        return self._server.ask(lambda sql: [_step(sql, *row) for row in sql.rows(_STEPS)])

    def chosen_steps(self, choice: Choice) -> dict[int, tuple[str, int]]:
        """Return id -> (name, generation) of the steps that are meant. See the contract."""
        rows = self._server.ask(lambda sql: sql.rows(_STEPS))
        return chosen_of(choice, [(id_, name, of) for id_, name, of in rows], self._label)

    def rows(self) -> int:
        """Return how many slots there are, by the steps' counters and without reading them."""
        (count,) = self._server.ask(lambda sql: sql.one(_ROWS)) or (0,)
        return int(count)

    def slots(self, choice: Choice, within: HashRange = WHOLE) -> Iterator[SlotView]:
        """Yield the slots that are meant, in the order of their hashes, a page at a time."""
        steps = self.chosen_steps(choice)
        values = _values(choice, steps)
        low: bytes | None = within.low
        high = _END if within.high is None else within.high
        while low is not None:
            found, low = self._page(values, low, high)
            for slot, known in found:
                if isinstance(known, Outcome):
                    yield settled_view(known, *steps[slot.step])
                else:
                    yield open_view(slot, known.owner, known.attempts, *steps[slot.step])

    def _page(
        self, values: tuple[Any, ...], low: bytes, high: bytes
    ) -> tuple[list[tuple[Slot, OpenSlot | Outcome]], bytes | None]:
        """Return chosen slots from `low` on, and where to go on; None: nowhere."""

        def read(sql: Sql) -> tuple[list[tuple[Slot, OpenSlot | Outcome]], bytes | None]:
            rows = sql.rows(_PAGE, (*values, low, high, PAGE_ROWS))
            wanted, then = cut([(bytes(hash_), chosen, size) for hash_, chosen, size in rows])
            return list(read_rows(sql, wanted, self._label)), then

        return self._server.ask(read)

    def drop(self, choice: Choice) -> int:
        """Take chosen outcomes and slots in doubt out of the ledger. Returns how many.

        One transaction of an owner of its own, so that it is carried out once and its count is
        right even if the connection is lost while it commits:

        1. The fence: this owner's turn.
        2. Slots in doubt are locked in the order of claims, and deleted if they still are in
           doubt; one that was claimed meanwhile stays its owner's.
        3. Outcomes are deleted. Nobody else changes a settled slot.
        4. The steps' counters follow. COMMIT. Crash before: nothing has happened. Crash after: it
           has; the owner's row is removed by whoever sees its silence.
        """
        values = _values(choice, self.chosen_steps(choice))

        def take_out(sql: Sql) -> int:
            sql.run(_TAKE_TIME)
            gone = sql.rows(_DROP_IN_DOUBT, values) + sql.rows(_DROP_SETTLED, values)
            _count(sql, gone)
            sql.rows("SELECT 1")  # every statement above has reached the server
            crashpoint("calls.shared.before")
            return sum(count for _, _, count, _ in gone)

        with closing(PostgresLedger(self._url, create=False, expected_id=self._id)) as owner:
            count = owner.as_owner(take_out)
            crashpoint("calls.shared.after")
        return count

    def sweep_blobs(self) -> bool:
        """Remove large answers that no outcome names. Jobs may run meanwhile.

        A settlement inserts a large answer, or finds it there, and then names it. It must not go
        between the two: the lock waits for settlements with large answers, and they for it.
        """

        def sweep(sql: Sql) -> None:
            sql.run("LOCK TABLE holdfast_ledger_blob IN SHARE ROW EXCLUSIVE MODE")
            sql.run(_SWEEP)

        self._server.transact(sweep)
        return True

    def close(self) -> None:
        """Close the connection."""
        self._server.close()


def cut(rows: list[tuple[bytes, bool, int]]) -> tuple[list[SlotHash], bytes | None]:
    """Return the chosen slots of a page, as many as fit, and where the next page begins.

    A row is a slot's hash, whether it is chosen, and how many bytes its answer has.
    """
    wanted: list[SlotHash] = []
    held = 0
    for hash_, chosen, size in rows:
        if not chosen:
            continue
        if wanted and held + size > PAGE_BYTES:
            return wanted, hash_
        wanted.append(SlotHash(hash_))
        held += size
    # Longer by a zero byte: the very next text after the last hash.
    return wanted, rows[-1][0] + b"\0" if len(rows) == PAGE_ROWS else None


def _values(choice: Choice, steps: dict[int, tuple[str, int]]) -> tuple[Any, ...]:
    """Return the values of `_CHOSEN`."""
    key = None if choice.key is None else to_text(choice.key)
    states = SlotState if choice.states is None else choice.states
    return list(steps), key, [str(state) for state in states]


def _step(sql: Sql, id_: int, name: str, generation: int) -> StepView:
    totals = tallies.totals(sql, id_)
    receipt = receipt_from(name, totals, tallies.reused(sql, id_))
    return StepView(id_, name, generation, totals.calls, totals.open - totals.in_doubt, receipt)


def _count(sql: Sql, gone: list[tuple[Any, ...]]) -> None:
    """Take deleted slots from the counters of owners that ended. Rows: step, status, count, held.

    What a claim had reserved is given back by an outcome already, by a slot in doubt now.
    """
    sums: dict[int, Sums] = {}
    for step, status, count, held in gone:
        added = sums.setdefault(step, Sums())
        added.bought -= count if status == Status.BOUGHT else 0
        added.parked -= count if status == Status.PARKED else 0
        added.failed -= count if status == Status.FAILED else 0
        added.held += held if status is None else 0
    for step in sorted(sums):
        tallies.add_outcomes(sql, step, 0, sums[step])


def registered(url: str, name: str) -> tuple[str, list[tuple[int, str, int, int, bool]]] | None:
    """Return a ledger's id and a step's generations, newest first; None if there is no ledger.

    A generation is its id, fingerprint, what it spent, how much it bought, and whether it asked.
    """
    server, meta = _opened(url)
    with closing(server):
        if meta is None:
            return None
        rows = server.ask(lambda sql: sql.rows(_GENERATIONS, (name,)))
        return meta.ledger, [
            (id_, text, spent, bought, asked) for id_, text, spent, bought, asked in rows
        ]


def _opened(url: str) -> tuple[Server, Meta | None]:
    address = address_of(url)
    server = Server(address, SystemClock())
    try:
        return server, open_schema(server, address.label, create=False)
    except BaseException:  # whatever it is, nobody else can close the connection
        server.close()
        raise
