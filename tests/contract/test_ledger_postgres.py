"""What only a ledger in PostgreSQL can get wrong: takeover, fencing, lost connections, secrets."""

from __future__ import annotations

import importlib
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.postgres_server import PASSWORD, PostgresServer
from tests.tcp_proxy import Lose, Proxy

from holdfast.errors import (
    Damaged,
    DependencyMissing,
    Fenced,
    HoldfastError,
    LedgerMismatch,
    LedgerRefused,
    LedgerUnreachable,
    StorageFailed,
    StoreNewer,
    UsageInvalid,
)
from holdfast.ledger.asking import Asker, Pending
from holdfast.ledger.caller import Caller, Limits
from holdfast.ledger.contract import Claim, Ledger, Limit, Slot, Status, inputs_hash, slot_hash
from holdfast.ledger.opening import open_ledger
from holdfast.ledger.postgres import slots
from holdfast.ledger.postgres.ledger import PostgresLedger
from holdfast.ledger.rules import Policy
from holdfast.testing.clock import VirtualClock
from holdfast.testing.expect import run_threads
from holdfast.testing.ledgers import bought, claim, make_slot, make_step

COMMIT = b"\0COMMIT\0"
"""As it goes over the wire, not the end of READ COMMITTED."""

NEVER_S = 1e6
"""So long a time-out that nobody beats within a test: silent, but not dead."""


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_url()


@pytest.fixture
def opened(url: str) -> Iterator[Callable[..., PostgresLedger]]:
    made: list[PostgresLedger] = []

    def make(**options: Any) -> PostgresLedger:
        made.append(PostgresLedger(options.pop("url", url), **options))
        return made[-1]

    yield make
    for ledger in made:
        ledger.abandon()


def owner_of(ledger: Ledger, slot: Slot) -> int:
    owner = ledger.lookup([slot.hash]).open[slot.hash].owner
    assert owner is not None
    return owner


def watch_for(ledger: PostgresLedger, clock: VirtualClock, owner: int, seconds: float) -> bool:
    """Look at an owner ten times a second, as a waiting task does. True: it was taken over."""
    for _ in range(round(seconds * 10)):
        if ledger.reap([owner]):
            return True
        clock.advance(0.1)
    return False


def test_a_silent_owner_is_replaced_and_fenced(opened: Callable[..., PostgresLedger]) -> None:
    clock = VirtualClock()
    former, watcher = opened(takeover_s=NEVER_S), opened(takeover_s=1.0, clock=clock)
    slot, other = (make_slot(make_step(former), key) for key in "ab")
    claim(former, [slot, other])
    owner = owner_of(watcher, slot)
    assert not watch_for(watcher, clock, owner, 0.9)
    assert watch_for(watcher, clock, owner, 0.5)
    assert watcher.lookup([slot.hash]).open[slot.hash].owner is None
    assert claim(watcher, [slot]).attempts == {slot.hash: 2}
    # Everything the former owner may try changes nothing.
    with pytest.raises(Fenced):
        former.settle([bought(slot, b"late")])
    with pytest.raises(Fenced):
        former.settle([bought(other, b"late, and nobody took it yet")])
    with pytest.raises(Fenced):
        former.release([slot])
    with pytest.raises(Fenced):
        former.release([slot], in_doubt=True)
    with pytest.raises(Fenced):
        former.assure()
    with pytest.raises(Fenced):
        claim(former, [make_slot(make_step(former), "new")])
    view = watcher.lookup([slot.hash, other.hash])
    assert not view.outcomes
    assert view.open[slot.hash].owner is not None
    assert view.open[other.hash].owner is None
    watcher.settle([bought(slot, b"mine")])
    assert watcher.lookup([slot.hash]).outcomes[slot.hash].answer == b"mine"


def test_an_owner_that_beats_or_writes_is_left_alone(
    opened: Callable[..., PostgresLedger],
) -> None:
    clock = VirtualClock()
    owner, watcher = opened(takeover_s=NEVER_S), opened(takeover_s=1.0, clock=clock)
    slots_ = [make_slot(make_step(owner), str(n)) for n in range(3)]
    claim(owner, slots_)
    number = owner_of(watcher, slots_[0])
    for work in (owner._beat, lambda: owner.settle([bought(slots_[1])]), owner.assure):
        assert not watch_for(watcher, clock, number, 0.9)
        work()
    assert not watch_for(watcher, clock, number, 0.9)


def test_an_owner_in_the_middle_of_a_write_is_left_alone(
    opened: Callable[..., PostgresLedger], url: str
) -> None:
    clock = VirtualClock()
    owner, watcher = opened(takeover_s=NEVER_S), opened(takeover_s=1.0, clock=clock)
    slot = make_slot(make_step(owner), "k")
    claim(owner, [slot])
    number = owner_of(watcher, slot)
    with psycopg.connect(url) as writing:
        writing.execute("UPDATE holdfast_ledger_owner SET beat = beat + 1")
        assert not watch_for(watcher, clock, number, 2.0)
        writing.rollback()
    assert watch_for(watcher, clock, number, 0.2)


def test_beats_come_by_themselves_and_the_dead_are_found_without_asking(
    opened: Callable[..., PostgresLedger], url: str
) -> None:
    """A real clock: a living owner outlives many time-outs, a corpse does not."""
    corpse, alive = opened(takeover_s=NEVER_S), opened(takeover_s=0.6)
    step = make_step(corpse)
    lost, kept = make_slot(step, "lost"), make_slot(step, "kept")
    claim(corpse, [lost])
    claim(alive, [kept])
    watcher = opened(takeover_s=0.6)
    number = owner_of(watcher, kept)
    with psycopg.connect(url, autocommit=True) as looking:
        query = "SELECT beat FROM holdfast_ledger_owner WHERE id = %s"
        while (looking.execute(query, (number,)).fetchone() or (0,))[0] < 40:
            assert not watcher.reap([number])
    assert watcher.lookup([lost.hash]).open[lost.hash].owner is None
    assert alive.is_sure
    alive.settle([bought(kept)])


class Books:
    """What the provider saw."""

    def __init__(self, on_call: Callable[[str], None] = lambda _: None) -> None:
        self.calls: Counter[str] = Counter()
        self._on_call = on_call

    def __call__(self, key: str) -> str:
        self.calls[key] += 1
        self._on_call(key)
        return key.upper()

    async def later(self, key: str) -> str:
        return self(key)


def buy(ledger: Ledger, function: Any, keys: list[str], *, is_async: bool = False) -> list[str]:
    step = make_step(ledger)
    asker = Asker(
        function, lambda v: str(v).encode(), "step", ledger.id, Policy(), is_async=is_async
    )
    limits = Limits(max_in_flight=1, intent_ahead=7)
    caller = Caller(ledger, asker, limits=limits, budget=Limit())
    asked = [
        Pending(Slot(slot_hash(step.id, key), step.id, key, inputs_hash(b"in")), key)
        for key in keys
    ]
    answers = [answer for taken in caller.answers([asked]) for answer in taken]
    return [(answer.outcome.answer or b"").decode() for answer in answers]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_zombie_calls_nobody(opened: Callable[..., PostgresLedger], is_async: bool) -> None:
    """It stood still in a call and was replaced. What it had claimed besides is not called.

    In the second call: intents run ahead only when the first row has left.
    """
    clock, watching = VirtualClock(), VirtualClock()
    zombie = opened(takeover_s=NEVER_S, clock=clock)
    watcher = opened(takeover_s=1.0, clock=watching)

    def stand_still(key: str) -> None:
        if key == "a":
            return
        slot = make_slot(make_step(watcher), "d")
        assert watch_for(watcher, watching, owner_of(watcher, slot), 2.0)
        clock.advance(NEVER_S)

    books = Books(stand_still)
    with pytest.raises(Fenced):
        buy(zombie, books.later if is_async else books, list("abcd"), is_async=is_async)
    assert books.calls == {"a": 1, "b": 1}
    assert not zombie.is_usable
    after = Books()
    assert buy(watcher, after, list("abcd")) == list("ABCD")
    assert after.calls == {"b": 1, "c": 1, "d": 1}


def test_two_tasks_share_slots(opened: Callable[..., PostgresLedger]) -> None:
    books, keys = Books(), [str(n) for n in range(40)]
    orders = [keys, keys[::-1]]
    got: list[list[str]] = [[], []]

    def ask(number: int) -> None:
        got[number] = buy(opened(), books, orders[number])

    run_threads([lambda: ask(0), lambda: ask(1)])
    assert got == orders
    assert books.calls == dict.fromkeys(keys, 1)


@pytest.mark.parametrize("lose", ["request", "answer"])
def test_a_lost_commit_is_carried_out_once(
    opened: Callable[..., PostgresLedger], postgres: PostgresServer, url: str, lose: Lose
) -> None:
    """The line is cut at COMMIT: before the server heard of it, or after, before it answered."""
    proxy = Proxy(postgres.port)
    ledger = opened(url=url.replace(f":{postgres.port}/", f":{proxy.port}/"), takeover_s=NEVER_S)
    step = make_step(ledger)
    slots_ = [make_slot(step, str(n)) for n in range(6)]
    limit = Limit(cost_micros=1000, each_micros=10)
    claim(ledger, slots_[:1], limit)
    proxy.lose_next(COMMIT, lose)
    wishes = [Claim(slot) for slot in slots_[1:]]
    grant = ledger.claim(wishes, generation=slots.GENERATION, limit=limit)
    assert grant.attempts == {slot.hash: 1 for slot in slots_[1:]}
    totals = ledger.totals(step.id)
    assert (totals.calls, totals.reserved_micros, totals.open) == (6, 60, 6)
    proxy.lose_next(COMMIT, lose)
    ledger.settle([bought(slot, cost_micros=7) for slot in slots_[:3]])
    totals = ledger.totals(step.id)
    assert (totals.settled[Status.BOUGHT], totals.spent_micros, totals.reserved_micros) == (
        3,
        21,
        30,
    )
    proxy.lose_next(COMMIT, lose)
    ledger.release(slots_[3:])
    totals = ledger.totals(step.id)
    assert (totals.open, totals.reserved_micros) == (0, 0)
    assert proxy.lost == 3
    proxy.close()


def test_a_connection_that_is_lost_and_does_not_know_it_is_replaced(
    opened: Callable[..., PostgresLedger],
) -> None:
    """libpq says so in many words; under load it was "cannot exit pipeline mode while busy"."""
    sessions: list[Any] = []

    def work(sql: Any) -> list[Any]:
        sessions.append(sql.one("SELECT pg_backend_pid()"))
        if len(sessions) == 1:
            raise psycopg.OperationalError("cannot exit pipeline mode while busy")
        return sessions

    first, second = opened()._server.transact(work)
    assert first != second


def test_a_killed_server_loses_nothing_and_nobody_pays_twice(
    opened: Callable[..., PostgresLedger], postgres: PostgresServer
) -> None:
    """SIGKILL to every process of the server, twice, in the middle of two tasks' work."""
    keys = [str(n) for n in range(60)]

    def strike(key: str) -> None:
        if key in ("20", "40"):
            postgres.kill()
            postgres.start()

    books = Books(strike)
    ledgers = [opened(), opened()]
    got: list[list[str]] = [[], []]

    def ask(number: int) -> None:
        got[number] = buy(ledgers[number], books, keys)

    run_threads([lambda: ask(0), lambda: ask(1)])
    assert got == [keys, keys]
    assert books.calls == dict.fromkeys(keys, 1)
    step = make_step(ledgers[0])
    hashes = [slot_hash(step.id, key) for key in keys]
    assert len(opened().lookup(hashes).outcomes) == len(keys)


def test_a_settlement_and_a_claim_that_came_too_late_do_not_wait_in_a_circle(
    opened: Callable[..., PostgresLedger], url: str
) -> None:
    """Whoever finds a slot taken when its turn comes keeps the row locked until its own end."""
    one, late = opened(), opened()
    step = make_step(one)
    four = sorted((make_slot(step, key) for key in "abcd"), key=lambda slot: slot.hash)
    lowest, first, middle, last = four
    claim(one, four)
    one.release(four, in_doubt=True)
    lock = "SELECT 1 FROM holdfast_ledger_slot WHERE hash = %s FOR UPDATE"
    waiting = "SELECT transactionid::text FROM pg_locks WHERE NOT granted ORDER BY pid"
    with (
        psycopg.connect(url) as before,
        psycopg.connect(url) as between,
        psycopg.connect(url, autocommit=True) as watch,
    ):

        def locked(holder: psycopg.Connection[Any], slot: Slot) -> str:
            holder.execute(lock, (slot.hash,))
            return str(holder.execute("SELECT pg_current_xact_id()").fetchall()[0][0])

        def wait_until(is_so: Callable[[list[str]], bool]) -> None:
            give_up_s = time.monotonic() + 30
            while not is_so([row[0] for row in watch.execute(waiting)]):
                assert time.monotonic() < give_up_s

        first_wait, second_wait = locked(before, lowest), locked(between, middle)

        def come_late() -> None:
            assert claim(late, four).attempts == {lowest.hash: 2, middle.hash: 2}

        def be_quicker() -> None:
            wait_until(lambda held: held == [first_wait])
            for slot in (last, first):
                assert claim(one, [slot]).attempts == {slot.hash: 2}
            before.rollback()
            wait_until(lambda held: held == [second_wait])
            one.settle([bought(last), bought(first)])

        def let_go() -> None:
            wait_until(lambda held: len(held) == 2)
            between.rollback()

        run_threads([come_late, be_quicker, let_go])
    view = one.lookup([slot.hash for slot in four])
    assert set(view.outcomes) == {first.hash, last.hash}


def test_many_may_make_a_ledger_at_once(opened: Callable[..., PostgresLedger]) -> None:
    made: list[PostgresLedger] = []
    run_threads([lambda: made.append(opened())] * 6)
    assert len({ledger.id for ledger in made}) == 1


def all_text(error: BaseException) -> str:
    """Everything a user or a log may see of an error."""
    wire = error.wire_text() if isinstance(error, HoldfastError) else ""
    return "".join([*traceback.format_exception(error), repr(error), str(error), wire])


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        ((f":{PASSWORD}@", ":canary-wrong@"), LedgerRefused, "password authentication failed"),
        (("/postgres?", "/nowhere?"), LedgerRefused, '"nowhere" does not exist'),
        (("PORT", "1"), LedgerUnreachable, "does not answer"),
        (("@127.0.0.1", "@no.such.host.invalid"), LedgerUnreachable, "does not answer"),
        (("?options=", "?canary-unknown=1&options="), UsageInvalid, "option that does not exist"),
        (("search_path%3D", "search_path%3Dmissing_"), LedgerRefused, "no schema"),
    ],
    ids=["password", "database", "port", "host", "option", "schema"],
)
def test_a_server_that_is_away_or_refuses_is_named(
    postgres: PostgresServer,
    url: str,
    change: tuple[str, str],
    kind: type[HoldfastError],
    says: str,
) -> None:
    old, new = change
    wrong = url.replace(str(postgres.port) if old == "PORT" else old, new)
    assert wrong != url
    with pytest.raises(kind) as caught:
        open_ledger(wrong)
    assert says in str(caught.value)
    # Neither the right password nor the wrong one, nor the option that may be a password.
    assert "canary" not in all_text(caught.value)
    assert "\n" not in str(caught.value)


def test_a_lost_server_is_named_without_its_password(
    opened: Callable[..., PostgresLedger], postgres: PostgresServer
) -> None:
    proxy = Proxy(postgres.port)
    ledger = opened(url=postgres.new_url().replace(f":{postgres.port}/", f":{proxy.port}/"))
    ledger._server._patience_s = 0.0
    proxy.refuse()
    proxy.lose_next(b"holdfast_ledger_tally", "request")
    with pytest.raises(LedgerUnreachable) as caught:
        ledger.totals(1)
    proxy.close()
    assert PASSWORD not in all_text(caught.value)


def test_a_server_that_stays_away_ends_the_owner(
    opened: Callable[..., PostgresLedger], postgres: PostgresServer
) -> None:
    """Nobody knows whether its last transaction counts. Another handle finds out and goes on."""
    url = postgres.new_url()
    proxy = Proxy(postgres.port)
    ledger = opened(url=url.replace(f":{postgres.port}/", f":{proxy.port}/"), takeover_s=NEVER_S)
    slot = make_slot(make_step(ledger), "k")
    claim(ledger, [slot])
    ledger._server._patience_s = 0.0
    proxy.refuse()
    proxy.lose_next(COMMIT, "answer")
    with pytest.raises(LedgerUnreachable):
        ledger.settle([bought(slot)])
    assert not ledger.is_usable
    with pytest.raises(StorageFailed):
        ledger.settle([bought(slot)])
    assert opened(url=url).lookup([slot.hash]).outcomes[slot.hash].answer == b"answer"
    proxy.close()


def test_a_process_has_two_connections(
    opened: Callable[..., PostgresLedger], postgres: PostgresServer
) -> None:
    url = postgres.new_url() + "&application_name=counted"
    ledger = opened(url=url, takeover_s=0.3)
    books = Books()
    buy(ledger, books, [str(n) for n in range(20)])
    with psycopg.connect(postgres.url(), autocommit=True) as other:
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'counted'"
        assert other.execute(query).fetchone() in [(1,), (2,)]
        ledger.close()
        while other.execute(query).fetchone() != (0,):
            pass  # the server takes a moment to see the end of a connection


def test_a_newer_schema_is_refused(opened: Callable[..., PostgresLedger], url: str) -> None:
    opened()
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("UPDATE holdfast_ledger_meta SET version = 3")
    with pytest.raises(StoreNewer) as caught:
        opened()
    assert (caught.value.found, caught.value.known) == (3, 2)
    assert PASSWORD not in all_text(caught.value)


def test_another_ledger_is_refused(opened: Callable[..., PostgresLedger]) -> None:
    with pytest.raises(LedgerMismatch):
        opened(create=False, expected_id="x")
    found = opened().id
    assert opened(create=False, expected_id=found).id == found
    with pytest.raises(LedgerMismatch):
        opened(create=False, expected_id="x")


def test_without_the_extra_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("holdfast.ledger.postgres.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(DependencyMissing) as caught:
        open_ledger("postgresql://h/d")
    assert "holdfast[postgres]" in caught.value.install
    monkeypatch.undo()
    importlib.import_module("holdfast.ledger.postgres.ledger")


def test_altered_answers_are_damage(
    opened: Callable[..., PostgresLedger], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "BLOB_BYTES", 10)
    ledger = opened()
    step = make_step(ledger)
    small, large = make_slot(step, "small"), make_slot(step, "large")
    claim(ledger, [small, large])
    ledger.settle([bought(small, b"answer"), bought(large, b"large answer")])
    assert ledger.lookup([large.hash]).outcomes[large.hash].answer == b"large answer"
    with psycopg.connect(url, autocommit=True) as other:
        row = other.execute("SELECT count(*) FROM holdfast_ledger_blob").fetchone()
        assert row == (1,)
        other.execute("UPDATE holdfast_ledger_slot SET answer = 'anower' WHERE key = 'small'")
        other.execute("UPDATE holdfast_ledger_blob SET data = 'large anower'")
    for slot in (small, large):
        with pytest.raises(Damaged):
            ledger.lookup([slot.hash])
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("DROP TABLE holdfast_ledger_slot")
        with pytest.raises(Damaged):
            ledger.lookup([small.hash])
        other.execute("DROP TABLE holdfast_ledger_meta")
    with pytest.raises(Damaged):
        ledger.verify()


def test_answers_are_durable_even_where_the_server_is_lax(
    opened: Callable[..., PostgresLedger], postgres: PostgresServer
) -> None:
    """A role or database may default to asynchronous commits or another isolation."""
    url = (
        postgres.new_url()
        + "%20-csynchronous_commit%3Doff%20-cdefault_transaction_isolation%3Dserializable"
    )
    ledger = opened(url=url)
    query = "SELECT current_setting('synchronous_commit'), current_setting('transaction_isolation')"
    assert ledger._server.transact(lambda sql: sql.one(query)) == ("on", "read committed")


def test_the_rate_is_shared_in_a_place_of_our_own(
    opened: Callable[..., PostgresLedger], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ledger = opened()
    assert ledger.rate_file(3) == opened().rate_file(3)
    ledger.rate_file(3).parent.chmod(0o777)
    with pytest.raises(StorageFailed):
        ledger.rate_file(3)
