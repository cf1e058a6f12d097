"""What only questions to a ledger in PostgreSQL can get wrong: pages, races, lost lines, rights."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import psycopg
import pytest
from tests.postgres_server import PASSWORD, PostgresServer
from tests.tcp_proxy import Lose, Proxy

from holdfast.errors import Damaged, LedgerRefused, StorageFailed, StoreOlder
from holdfast.ledger.books import Choice, SlotState
from holdfast.ledger.contract import Ledger, Limit, Outcome, Slot, SlotHash, Status
from holdfast.ledger.postgres import books as shared_books
from holdfast.ledger.postgres import slots as shared_slots
from holdfast.ledger.postgres.books import PostgresBooks, cut
from holdfast.ledger.postgres.ledger import PostgresLedger
from holdfast.testing.ledgers import bought, claim, make_slot, make_step

COMMIT = b"\0COMMIT\0"
PARKED = Choice(states=frozenset({SlotState.PARKED}))


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_url()


@pytest.fixture
def opened() -> Iterator[Callable[[str], PostgresBooks]]:
    made: list[PostgresBooks] = []

    def make(url: str) -> PostgresBooks:
        made.append(PostgresBooks(url))
        return made[-1]

    yield make
    for books in made:
        books.close()


def parked(slot: Slot) -> Outcome:
    return Outcome(slot, Status.PARKED, reason="why", recorded_ms=1)


def fill(url: str, count: int) -> list[Slot]:
    """Settle slots as parked, and leave."""
    ledger = PostgresLedger(url)
    step = make_step(ledger)
    slots = [make_slot(step, str(n)) for n in range(count)]
    claim(ledger, slots)
    ledger.settle([parked(slot) for slot in slots])
    ledger.close()
    return slots


def test_a_page_is_cut_by_rows_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_books, "PAGE_ROWS", 3)
    monkeypatch.setattr(shared_books, "PAGE_BYTES", 10)
    assert cut([]) == ([], None)
    assert cut([(b"a", True, 5), (b"b", True, 5)]) == ([b"a", b"b"], None)
    assert cut([(b"a", True, 5), (b"b", False, 99), (b"c", True, 5)]) == ([b"a", b"c"], b"c\0")
    assert cut([(b"a", True, 5), (b"b", True, 6), (b"c", True, 1)]) == ([b"a"], b"b")
    assert cut([(b"a", True, 99), (b"b", True, 1)]) == ([b"a"], b"b"), "a large one goes alone"
    assert cut([(b"a", False, 0)] * 3) == ([], b"a\0"), "a page with none of ours is not the end"


def test_pages_hold_each_slot_once_and_few_bytes(
    url: str, opened: Callable[[str], PostgresBooks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_books, "PAGE_ROWS", 7)
    monkeypatch.setattr(shared_books, "PAGE_BYTES", 100)
    monkeypatch.setattr(shared_slots, "BLOB_BYTES", 60)
    ledger = PostgresLedger(url)
    step = make_step(ledger)
    slots = [make_slot(step, str(n)) for n in range(50)]
    claim(ledger, slots)
    ledger.settle([bought(slot, b"x" * (n * 2)) for n, slot in enumerate(slots[:45])])
    held: list[int] = []
    read_rows = shared_slots.read_rows

    def weighed(*asked: object) -> list[tuple[Slot, Outcome]]:
        rows = list(read_rows(*asked))  # type: ignore[arg-type]  # handed on as it came
        sizes = [len(known.answer or b"") for _, known in rows if isinstance(known, Outcome)]
        held.append(sum(sizes))
        return rows  # type: ignore[return-value]  # as above

    monkeypatch.setattr(shared_books, "read_rows", weighed)
    views = list(opened(url).slots(Choice()))
    assert sorted(view.key for view in views) == sorted(slot.key for slot in slots)
    assert [view.slot for view in views if view.state is SlotState.OPEN]
    assert max(held) <= 100
    assert len(held) >= 20
    ledger.close()


def test_a_slow_reader_holds_nothing_and_outlives_a_lost_line(
    postgres: PostgresServer,
    url: str,
    opened: Callable[[str], PostgresBooks],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two pages no transaction is open; others work, and the line may break."""
    monkeypatch.setattr(shared_books, "PAGE_ROWS", 4)
    slots = fill(url, 20)
    proxy = Proxy(postgres.port)
    there = url.replace(f":{postgres.port}/", f":{proxy.port}/") + "&application_name=slow"
    listing = opened(there).slots(Choice())
    seen = [next(listing).key]
    with psycopg.connect(url, autocommit=True) as other:
        query = "SELECT xact_start FROM pg_stat_activity WHERE application_name = 'slow'"
        assert other.execute(query).fetchall() == [(None,)]
    proxy.lose_next(b"holdfast_ledger_slot", "answer")
    seen += [view.key for view in listing]
    assert proxy.lost == 1
    assert sorted(seen) == sorted(slot.key for slot in slots)
    proxy.close()


def test_a_page_is_of_one_moment(
    url: str, opened: Callable[[str], PostgresBooks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot is chosen as in doubt, and claimed before it is read whole: it is not open then."""
    former, owner = PostgresLedger(url), PostgresLedger(url)
    slot = make_slot(make_step(former), "a")
    claim(former, [slot])
    former.close()

    def claimed_meanwhile(
        rows: list[tuple[bytes, bool, int]],
    ) -> tuple[list[SlotHash], bytes | None]:
        assert claim(owner, [slot]).attempts == {slot.hash: 2}
        return cut(rows)

    monkeypatch.setattr(shared_books, "cut", claimed_meanwhile)
    views = opened(url).slots(Choice(states=frozenset({SlotState.IN_DOUBT})))
    assert [view.state for view in views] == [SlotState.IN_DOUBT]
    owner.close()


@pytest.mark.parametrize("lose", ["request", "answer"])
def test_a_lost_commit_drops_once_and_says_how_many(
    postgres: PostgresServer, url: str, opened: Callable[[str], PostgresBooks], lose: Lose
) -> None:
    fill(url, 5)
    proxy = Proxy(postgres.port)
    books = opened(url.replace(f":{postgres.port}/", f":{proxy.port}/"))
    real = PostgresLedger.as_owner

    def lossy(ledger: PostgresLedger, work: Callable[..., int]) -> int:
        ledger._own()
        proxy.lose_next(COMMIT, lose)
        return real(ledger, work)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PostgresLedger, "as_owner", lossy)
        assert books.drop(PARKED) == 5
    assert proxy.lost == 1
    (step,) = books.steps()
    assert (step.receipt.parked, books.rows()) == (0, 0)
    proxy.close()


def wait_until_blocked(url: str) -> None:
    """Return when some other session waits for a lock."""
    with psycopg.connect(url, autocommit=True) as looking:
        query = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        while looking.execute(query).fetchone() == (0,):
            pass


def test_a_slot_that_is_claimed_meanwhile_is_its_owners(
    url: str, opened: Callable[[str], PostgresBooks]
) -> None:
    """The slot was in doubt when the drop began; somebody takes it while the drop waits for it."""
    former, owner = PostgresLedger(url), PostgresLedger(url)
    slot, other = (make_slot(make_step(former), key) for key in "ab")
    claim(former, [slot, other])
    former.close()
    books, dropped = opened(url), list[int]()
    claiming = shared_slots._take_over

    def slowly(*values: object) -> None:
        claiming(*values)  # type: ignore[arg-type]  # handed on as it came
        values[0].rows("SELECT 1")  # type: ignore[attr-defined]  # the statements' Sql
        taking.start()
        wait_until_blocked(url)

    taking = threading.Thread(target=lambda: dropped.append(books.drop(Choice())))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shared_slots, "_take_over", slowly)
        assert claim(owner, [slot]).attempts == {slot.hash: 2}
    taking.join()
    assert dropped == [1], "only the one that nobody took"
    owner.settle([bought(slot)])
    assert owner.lookup([slot.hash, other.hash]).outcomes.keys() == {slot.hash}
    owner.close()


def test_a_claim_that_meets_a_drop_gets_the_slot_anew(
    url: str, opened: Callable[[str], PostgresBooks]
) -> None:
    """The other way round: the claim waits for the drop, and is refused what it saw before."""
    former, owner = PostgresLedger(url), PostgresLedger(url)
    slot = make_slot(make_step(former), "a")
    claim(former, [slot])
    former.close()
    granted: list[Mapping[SlotHash, int]] = []
    asking = threading.Thread(target=lambda: granted.append(claim(owner, [slot]).attempts))
    counting = shared_books._count

    def slowly(*values: object) -> None:
        counting(*values)  # type: ignore[arg-type]  # handed on as it came
        asking.start()
        wait_until_blocked(url)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shared_books, "_count", slowly)
        assert opened(url).drop(Choice()) == 1
    asking.join()
    assert granted == [{}]
    assert claim(owner, [slot], Limit()).attempts == {slot.hash: 1}
    owner.settle([bought(slot)])
    owner.close()


def test_a_large_answer_is_not_swept_from_under_a_settlement(
    url: str, opened: Callable[[str], PostgresBooks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A settlement finds its large answer there already, and names it a moment later."""
    monkeypatch.setattr(shared_slots, "BLOB_BYTES", 10)
    owner = PostgresLedger(url)
    first, second = (make_slot(make_step(owner), key) for key in "ab")
    claim(owner, [first, second])
    owner.settle([bought(first, b"x" * 50)])
    books = opened(url)
    assert books.drop(Choice(key="a")) == 1
    sweeping = threading.Thread(target=books.sweep_blobs)
    columns = shared_slots._columns
    calls: list[int] = []

    def slowly(rows: Iterable[Sequence[object]]) -> tuple[list[object], ...]:
        calls.append(1)
        if len(calls) == 2:  # the large answer was inserted, the slot does not name it yet
            sweeping.start()
            wait_until_blocked(url)
        return columns(rows)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shared_slots, "_columns", slowly)
        owner.settle([bought(second, b"x" * 50)])
    sweeping.join()
    assert owner.lookup([second.hash]).outcomes[second.hash].answer == b"x" * 50
    owner.close()


def test_the_right_to_read_is_enough_and_nothing_more_is_used(
    postgres: PostgresServer, url: str, opened: Callable[[str], PostgresBooks]
) -> None:
    fill(url, 3)
    schema = url.rpartition("%3D")[2]
    reader = f"reader_{schema}"
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {reader} LOGIN PASSWORD '{PASSWORD}'")
        owner.execute(f"GRANT USAGE ON SCHEMA {schema} TO {reader}")
        owner.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {reader}")
    books = opened(url.replace("//holdfast:", f"//{reader}:"))
    assert len(list(books.slots(Choice()))) == 3
    assert [step.receipt.parked for step in books.steps()] == [3]
    with pytest.raises(LedgerRefused) as caught:
        books.drop(PARKED)
    assert PASSWORD not in str(caught.value) + caught.value.wire_text()
    with pytest.raises(StorageFailed, match="read-only"):
        opened(url)._server.ask(lambda sql: sql.rows("DELETE FROM holdfast_ledger_slot"))


def test_an_altered_answer_is_named(url: str, opened: Callable[[str], PostgresBooks]) -> None:
    fill(url, 2)
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("UPDATE holdfast_ledger_slot SET reason = 'another' WHERE key = '1'")
    with pytest.raises(Damaged):
        list(opened(url).slots(Choice()))


def test_an_older_format_is_renewed_by_a_job_only(
    url: str, opened: Callable[[str], PostgresBooks]
) -> None:
    fill(url, 2)
    made: list[Ledger] = [PostgresLedger(url)]
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("DROP TABLE holdfast_ledger_reuse")
        other.execute("DROP INDEX holdfast_ledger_slot_blob")
        other.execute("UPDATE holdfast_ledger_meta SET version = 1")
    with pytest.raises(StoreOlder):
        opened(url)
    made.append(PostgresLedger(url))
    assert made[0].id == made[1].id
    (step,) = opened(url).steps()
    assert (step.receipt.parked, step.receipt.reused) == (2, 0)
    for ledger in made:
        ledger.close()
