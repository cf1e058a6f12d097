"""The driver of paid calls, against a provider in this process that keeps its own books."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast._base.clock import SystemClock
from holdfast.errors import (
    BudgetSpent,
    CallFailed,
    CallInputChanged,
    FailureRecorded,
    InvariantViolated,
    ProviderBusy,
    StorageFailed,
)
from holdfast.ledger import rules
from holdfast.ledger.asking import Answered, Asker, Pending, Work
from holdfast.ledger.caller import Caller, Limits
from holdfast.ledger.contract import MICROS, Limit, Slot, Status, inputs_hash, slot_hash
from holdfast.ledger.desk import Desk
from holdfast.ledger.file_ledger import FileLedger
from holdfast.ledger.rate import RateGate
from holdfast.ledger.rules import Policy
from holdfast.ledger.runners import Hold, LoopRunner, ReadyQueue
from holdfast.ledger.segment import read_segment
from holdfast.ledger.window import Answer
from holdfast.testing.clock import VirtualClock
from holdfast.testing.ledgers import bought, claim, make_step


class Books:
    """What the provider saw."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.most_at_once = 0
        self._now = 0
        self._guard = threading.Lock()

    def __call__(self, key: str) -> str:
        with self._guard:
            self.calls[key] += 1
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        with self._guard:
            self._now -= 1
        return key.upper()


class Turns(SystemClock):
    """A wall clock that shows how many callers there were: what is recorded later is later."""

    def __init__(self) -> None:
        self.turn = 0

    def wall_ms(self) -> int:
        return self.turn


TURNS = Turns()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "BACKOFF_FIRST_S", 0.0)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[FileLedger]:
    opened = FileLedger(f"file://{tmp_path}/ledger")
    yield opened
    opened.close()


def pending(ledger: FileLedger, key: str, sent: str | None = None) -> Pending:
    step = make_step(ledger)
    inputs = inputs_hash((sent or key).encode())
    return Pending(Slot(slot_hash(step.id, key), step.id, key, inputs), key)


def caller(
    ledger: FileLedger,
    function: Callable[..., Any],
    *,
    policy: Policy | None = None,
    limits: Limits | None = None,
    budget: Limit | None = None,
    **options: Any,
) -> Caller:
    asker = Asker(
        function,
        lambda value: str(value).encode(),
        "step",
        ledger.id,
        policy or Policy(),
        clock=TURNS,
        **options,
    )
    TURNS.turn += 1
    limits = limits or Limits(max_in_flight=4, intent_ahead=4)
    return Caller(ledger, asker, limits=limits, budget=budget or Limit(), since_ms=TURNS.turn)


def run(ledger: FileLedger, function: Callable[..., Any], keys: str, **options: Any) -> list[str]:
    """Ask for each letter of `keys`; return `status:answer` of each."""
    asked = [pending(ledger, key) for key in keys]
    slices = list(caller(ledger, function, **options).answers([asked]))
    return [said(answer) for taken in slices for answer in taken]


def said(answer: Answer) -> str:
    text = "-" if answer.outcome.answer is None else answer.outcome.answer.decode()
    return f"{answer.status.value}:{text}"


def test_answers_come_in_order_and_equal_keys_are_merged(ledger: FileLedger) -> None:
    books = Books()
    got = run(ledger, books, "abcab")
    assert got == ["bought:A", "bought:B", "bought:C", "bought:A", "bought:B"]
    assert run(ledger, books, "cba") == ["reused:C", "reused:B", "reused:A"]
    assert books.calls == Counter("abc")


def test_async_functions(ledger: FileLedger) -> None:
    books = Books()

    async def function(key: str) -> str:
        await asyncio.sleep(0)
        return books(key)

    got = run(ledger, function, "abcdefghij", is_async=True)
    assert [text[-1] for text in got] == list("ABCDEFGHIJ")
    assert books.calls == Counter("abcdefghij")


def test_an_intent_is_durable_before_the_call(ledger: FileLedger) -> None:
    """While the provider works, another process sees the slot as taken."""
    open_then: list[bool] = []

    def function(key: str) -> str:
        other = FileLedger(f"file://{ledger.path}", create=False, expected_id=ledger.id)
        hash_ = pending(other, key).slot.hash
        open_then.append(hash_ in other.lookup([hash_]).open)
        other.close()
        return key

    run(ledger, function, "ab")
    assert open_then == [True, True]


def test_an_outcome_is_durable_before_it_is_seen(ledger: FileLedger) -> None:
    asked = [pending(ledger, key) for key in "abcdef"]
    seen = 0
    for taken in caller(ledger, Books()).answers([asked]):
        recorded = {
            placed.entry.outcome.slot.key
            for path in (ledger.path / "segments").iterdir()
            for placed in read_segment(path, ledger_id=ledger.id)
        }
        assert {answer.outcome.slot.key for answer in taken} <= recorded
        seen += len(taken)
    assert seen == 6


def test_two_askers_at_once_buy_once(tmp_path: Path) -> None:
    """Two handles are two owners, as two processes would be; opposite orders must not hang."""
    books = Books()
    results: dict[str, list[str]] = {}

    def work(name: str, keys: str) -> None:
        opened = FileLedger(f"file://{tmp_path}/ledger")
        results[name] = run(opened, books, keys)
        opened.close()

    keys = "abcdefghijklmnopqrst"
    threads = [
        threading.Thread(target=work, args=("up", keys)),
        threading.Thread(target=work, args=("down", keys[::-1])),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert books.calls == Counter(keys)
    for name, order in (("up", keys), ("down", keys[::-1])):
        assert [text[-1] for text in results[name]] == list(order.upper())


def test_in_flight_is_bounded_and_reached(ledger: FileLedger) -> None:
    gate = threading.Barrier(3)
    books = Books()

    def function(key: str) -> str:
        gate.wait(5)  # three calls must be on their way at once
        return books(key)

    limits = Limits(max_in_flight=3, intent_ahead=2)
    assert len(run(ledger, function, "abcdefghi", limits=limits)) == 9
    assert books.most_at_once <= 3


def test_retry_until_it_works(ledger: FileLedger) -> None:
    books = Books()

    def function(key: str) -> str:
        answer = books(key)
        if books.calls[key] < 3:
            raise ProviderBusy(reason="429")
        return answer

    assert run(ledger, function, "ab") == ["bought:A", "bought:B"]
    view = ledger.lookup([pending(ledger, "a").slot.hash])
    assert [outcome.attempts for outcome in view.outcomes.values()] == [3]


def refuse_b(key: str) -> str:
    if key == "b":
        raise ValueError("no b")
    return key.upper()


def test_raise_keeps_the_others_and_forgets_the_failed(ledger: FileLedger) -> None:
    asked = [pending(ledger, key) for key in "abc"]
    taken: list[str] = []
    slices = caller(ledger, refuse_b).answers([asked])
    with pytest.raises(CallFailed) as caught:
        taken.extend(said(answer) for some in slices for answer in some)
    assert (caught.value.key, taken) == ("b", ["bought:A"])
    books = Books()
    assert run(ledger, books, "abc") == ["reused:A", "bought:B", "reused:C"]


def test_null_and_dead_letter_are_outcomes(ledger: FileLedger) -> None:
    policy = Policy(error="dead_letter")
    assert run(ledger, refuse_b, "abc", policy=policy) == ["bought:A", "failed:-", "bought:C"]
    assert run(ledger, Books(), "b", policy=policy) == ["failed:-"]
    assert [letter.key for letter in ledger.dead_letters(1)] == ["b"]
    assert run(ledger, lambda key: 1 / 0, "n", policy=Policy(error="null")) == ["failed:-"]
    assert [letter.key for letter in ledger.dead_letters(1)] == ["b"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_time_out_is_an_unknown_outcome(ledger: FileLedger, is_async: bool) -> None:
    stuck = threading.Event()

    def plain(key: str) -> str:
        stuck.wait(5)
        return key

    async def coroutine(key: str) -> str:
        await asyncio.sleep(5)
        return key

    got = run(
        ledger,
        coroutine if is_async else plain,
        "a",
        is_async=is_async,
        policy=Policy(unknown="park"),
        limits=Limits(max_in_flight=2, timeout_s=0.03),
    )
    stuck.set()
    assert got == ["parked:-"]


def test_an_answer_given_in_spite_of_a_time_out_is_kept(ledger: FileLedger) -> None:
    """It was paid. And the time-out of one call must not end another of the same worker."""

    async def stubborn(key: str) -> str:
        try:
            await asyncio.sleep(5 if key == "a" else 0)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return key

    limits = Limits(max_in_flight=1, intent_ahead=1, timeout_s=0.03)
    policy = Policy(unknown="park")
    got = run(ledger, stubborn, "abc", is_async=True, policy=policy, limits=limits)
    assert got == ["bought:a", "bought:b", "bought:c"]


def test_time_outs_of_calls_that_began_at_different_moments(ledger: FileLedger) -> None:
    """One timer serves all calls: it must go on for those that began later."""

    async def never(key: str) -> str:
        await asyncio.sleep(0.02 if key == "b" else 5)
        return key

    limits = Limits(max_in_flight=2, intent_ahead=2, timeout_s=0.05)
    policy = Policy(unknown="park")
    got = run(ledger, never, "abcd", is_async=True, policy=policy, limits=limits)
    assert got == ["parked:-", "bought:b", "parked:-", "parked:-"]


def test_what_is_settled_during_a_claim_is_shown_without_another(ledger: FileLedger) -> None:
    """Others may wait for it, and the task for them: no further claim need come."""
    rows = [pending(ledger, key) for key in "ab"]
    asker = Asker(Books(), str.encode, "step", ledger.id, Policy())
    desk = Desk(ledger, asker, Limit(), 2)

    class During(FileLedger):
        """Settles the first row while the second is being claimed."""

        def claim(self, claims: Any, **options: Any) -> Any:
            grant = super().claim(claims, **options)
            if claims[0].slot.key == "b":
                desk.settled([Answered(rows[0], bought(rows[0].slot))])
            return grant

    desk._ledger = During(f"file://{ledger.path}")
    for row in rows:
        desk.enter([(row, ledger.lookup([row.slot.hash]), None)])
        desk.claim()
    assert not desk.must_show(100.0)
    assert 0 < desk.due_s(100.0, 1.0) < 0.1
    assert desk.must_show(100.1)
    desk._ledger.close()


def test_leaving_after_a_time_out_leaves_it_in_doubt(
    ledger: FileLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider may have charged: it must not look as if nobody had asked."""
    monkeypatch.setattr(rules, "BACKOFF_FIRST_S", 60.0)
    stuck, called = threading.Event(), threading.Event()

    def function(key: str) -> str:
        if key == "b":
            called.set()
            stuck.wait(5)
        return key

    limits = Limits(max_in_flight=2, intent_ahead=0, timeout_s=0.03)
    answers = caller(ledger, function, limits=limits).answers(
        [[pending(ledger, key) for key in "abcd"]]
    )
    assert said(next(answers)[0]) == "bought:a"
    called.wait(5)
    answers.close()  # type: ignore[attr-defined]  # it is a generator
    stuck.set()
    assert ledger.lookup([pending(ledger, "b").slot.hash]).open.popitem()[1].owner is None  # type: ignore[attr-defined]


def die_with(ledger: FileLedger, keys: str, times: int = 1) -> None:
    """Leave the slots of `keys` in doubt, as so many deaths would."""
    for _ in range(times):
        dying = FileLedger(f"file://{ledger.path}")
        assert claim(dying, [pending(dying, key).slot for key in keys]).attempts
        dying.abandon()
        ledger.tidy()


def test_in_doubt_retry_counts(ledger: FileLedger) -> None:
    die_with(ledger, "a")
    books = Books()
    assert run(ledger, books, "ab") == ["bought:A", "bought:B"]
    outcome = ledger.lookup([pending(ledger, "a").slot.hash]).outcomes.popitem()[1]  # type: ignore[attr-defined]
    assert outcome.attempts == 2


def test_in_doubt_park(ledger: FileLedger) -> None:
    die_with(ledger, "a")
    books = Books()
    assert run(ledger, books, "ab", policy=Policy(unknown="park")) == ["parked:-", "bought:B"]
    assert books.calls == Counter("b")


def test_in_doubt_reconcile(ledger: FileLedger) -> None:
    die_with(ledger, "ab")
    books = Books()
    got = run(
        ledger,
        books,
        "ab",
        policy=Policy(unknown="reconcile"),
        reconcile=lambda key, _: "known" if key == "a" else None,
    )
    assert got == ["bought:known", "bought:B"]
    assert books.calls == Counter("b")


def test_a_killer_is_parked_and_called_alone_before(ledger: FileLedger) -> None:
    """After two deaths the suspects are called one at a time; at the limit they are parked."""
    die_with(ledger, "abc", times=2)
    books = Books()
    assert run(ledger, books, "abcd") == ["bought:A", "bought:B", "bought:C", "bought:D"]
    die_with(ledger, "k", times=5)
    assert run(ledger, books, "k") == ["parked:-"]
    assert books.calls["k"] == 0


def test_batches_fall_apart_when_they_fail(ledger: FileLedger) -> None:
    sizes: list[int] = []

    def function(keys: list[str]) -> list[str]:
        sizes.append(len(keys))
        if "b" in keys:
            raise ValueError("no b")
        return [key.upper() for key in keys]

    got = run(ledger, function, "abcd", batch=4, policy=Policy(error="null"))
    assert got == ["bought:A", "failed:-", "bought:C", "bought:D"]
    assert max(sizes) > 1


def test_a_batch_of_the_wrong_size_is_a_failure(ledger: FileLedger) -> None:
    with pytest.raises(FailureRecorded):
        run(ledger, lambda keys: ["x"] * 9, "ab", batch=2)


@pytest.mark.parametrize("cost", [None, 0.25])
def test_an_answer_that_cannot_be_kept_is_not_bought_twice(
    ledger: FileLedger, cost: float | None
) -> None:
    """It was paid. With error="raise" the job ends, and so does the next one, without a call."""
    books = Books()
    price = None if cost is None else lambda value: cost

    def unreadable(value: str) -> bytes:
        if value == "B":
            raise TypeError("'B' is no int")
        return value.encode()

    def buy(policy: Policy) -> list[str]:
        one = caller(ledger, books, policy=policy, cost=price)
        one._asker = one._desk._asker = replace(one._asker, encode=unreadable)
        asked = [pending(ledger, key) for key in "abc"]
        return [said(answer) for taken in one.answers([asked]) for answer in taken]

    for _ in range(2):
        with pytest.raises(FailureRecorded) as caught:
            buy(Policy())
        assert (caught.value.key, caught.value.error) == ("b", "TypeError: 'B' is no int")
    assert books.calls == Counter("abc")
    assert buy(Policy(error="null")) == ["reused:A", "failed:-", "reused:C"]
    totals = ledger.totals(make_step(ledger).id)
    assert totals.settled[Status.FAILED] == 1
    assert totals.spent_micros == round(3 * (cost or 0) * MICROS)


def test_a_failure_recorded_under_another_policy_is_raised(ledger: FileLedger) -> None:
    assert run(ledger, refuse_b, "b", policy=Policy(error="null")) == ["failed:-"]
    with pytest.raises(FailureRecorded):
        run(ledger, Books(), "b")


def test_the_key_is_the_same_at_every_attempt(ledger: FileLedger) -> None:
    sent: list[str] = []

    def function(key: str, idempotency_key: str) -> str:
        sent.append(idempotency_key)
        if len(sent) < 3:
            raise ProviderBusy(reason="busy")
        return key

    run(ledger, function, "a", takes_key=True)
    assert len(set(sent)) == 1
    assert len(sent) == 3


def test_leaving_early_settles_what_was_called(ledger: FileLedger) -> None:
    """`limit(5)`: one slice is taken. Nothing stays open, nothing is bought twice later."""
    books = Books()
    asked = [pending(ledger, key) for key in "abcdefghijklmnop"]
    answers = caller(ledger, books, limits=Limits(max_in_flight=2, intent_ahead=2)).answers([asked])
    assert len(next(answers)) <= 2
    answers.close()  # type: ignore[attr-defined]  # it is a generator
    assert sum(books.calls.values()) <= 6
    view = ledger.lookup([one.slot.hash for one in asked])
    assert not view.open
    assert {outcome.slot.key for outcome in view.outcomes.values()} == set(books.calls)
    run(ledger, books, "abcdefghijklmnop")
    assert books.calls == Counter("abcdefghijklmnop")


def test_budget(ledger: FileLedger) -> None:
    books = Books()
    with pytest.raises(BudgetSpent) as caught:
        run(ledger, books, "abcdef", budget=Limit(calls=4))
    assert caught.value.calls == 4
    assert sum(books.calls.values()) == 4
    assert len(run(ledger, books, "abcdef")) == 6


def leave(key: str) -> str:
    sys.exit(3)


async def leave_async(key: str) -> str:
    sys.exit(3)


async def cancelled(key: str) -> str:
    raise asyncio.CancelledError


@pytest.mark.parametrize("function", [leave, leave_async, cancelled])
def test_a_function_that_leaves_is_a_failed_call(
    ledger: FileLedger, function: Callable[..., Any]
) -> None:
    is_async = asyncio.iscoroutinefunction(function)
    with pytest.raises(CallFailed):
        run(ledger, function, "a", is_async=is_async, policy=Policy(attempts=2))


def test_a_coroutine_that_python_ends_makes_no_further_attempt(ledger: FileLedger) -> None:
    """Its loop is gone while it waits for its answer: nothing is asked, and nobody is told."""
    ended: list[BaseException] = []

    async def waits(key: str) -> str:
        await asyncio.Event().wait()
        return key

    asker = Asker(waits, str.encode, "step", ledger.id, Policy(), is_async=True)
    queue, sure = ReadyQueue(), Hold(lambda: True, lambda: True)
    runner = LoopRunner(
        asker,
        queue,
        lambda answers: None,
        ended.append,
        capacity=1,
        timeout_s=60.0,
        gate=None,
        hold=sure,
    )
    work = Work((pending(ledger, "a"),))
    queue.put([work])
    queue.hire(1)
    step = runner._work()
    loop = asyncio.new_event_loop()
    task = loop.create_task(step)
    loop.run_until_complete(asyncio.sleep(0))
    runner.close()
    step.close()
    task.cancel()
    loop.close()
    assert (work.tries, ended) == (1, [])


@pytest.mark.parametrize("is_async", [False, True])
def test_what_breaks_beside_the_calls_ends_the_task(
    ledger: FileLedger, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    async def slowly(key: str) -> str:
        return key

    def broken(self: Asker, work: Any, value: Any) -> Any:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(Asker, "answered", broken)
    with pytest.raises(InvariantViolated):
        run(ledger, slowly if is_async else str.upper, "ab", is_async=is_async)


@pytest.mark.parametrize("cost", [-1.0, 1e300, float("nan"), float("inf")])
def test_a_cost_that_no_call_has_is_a_failure(ledger: FileLedger, cost: float) -> None:
    policy = Policy(error="null")
    assert run(ledger, Books(), "a", policy=policy, cost=lambda value: cost) == ["failed:-"]
    assert ledger.totals(make_step(ledger).id).spent_micros == 0


def test_a_text_that_cannot_be_stored_loses_no_answer(ledger: FileLedger) -> None:
    def fails(key: str) -> str:
        if key == "b":
            raise OSError("no file \udc80")
        return key.upper()

    policy = Policy(error="dead_letter")
    assert run(ledger, fails, "abc", policy=policy) == ["bought:A", "failed:-", "bought:C"]


def test_a_row_computed_again_tells_the_same(ledger: FileLedger) -> None:
    """Spark stops a job whose recomputed rows differ: a retried task must not say "reused"."""
    asked = [[pending(ledger, key) for key in "abab"] for _ in range(2)]
    first = caller(ledger, Books())
    again = Caller(ledger, first._asker, limits=Limits(), budget=Limit(), since_ms=TURNS.turn)
    given = [
        [answer for taken in one.answers([rows]) for answer in taken]
        for one, rows in zip((first, again), asked, strict=True)
    ]
    assert [said(answer) for answer in given[0]] == ["bought:A", "bought:B"] * 2
    assert [said(answer) for answer in given[1]] == ["bought:A", "bought:B"] * 2
    called = [[answer.called for answer in some] for some in given]
    assert called == [[True, True, False, False], [False] * 4], "the receipt counts calls"


def test_changed_inputs(ledger: FileLedger) -> None:
    books = Books()
    run(ledger, books, "a")

    def ask(policy: Policy) -> list[str]:
        changed = [pending(ledger, "a", "other"), pending(ledger, "a", "other")]
        slices = list(caller(ledger, books, policy=policy).answers([changed]))
        return [said(answer) for taken in slices for answer in taken]

    with pytest.raises(CallInputChanged):
        ask(Policy())
    assert ask(Policy(input_change="keep")) == ["reused:A", "reused:A"]
    assert books.calls == Counter("a")
    assert ask(Policy(input_change="new")) == ["bought:A", "bought:A"]
    assert ask(Policy(input_change="new")) == ["reused:A", "reused:A"]
    assert books.calls == Counter("aa")


def test_a_failing_disk_ends_the_task(
    ledger: FileLedger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The task hears of it, and nobody waits for slots that will never be settled."""

    def fail(outcomes: object) -> None:
        raise StorageFailed(path="x", error="EIO")

    monkeypatch.setattr(ledger, "settle", fail)
    with pytest.raises(StorageFailed):
        run(ledger, Books(), "ab")
    assert not ledger.is_usable
    other = FileLedger(f"file://{tmp_path}/ledger")
    assert [text[-1] for text in run(other, Books(), "ab")] == ["A", "B"]
    other.close()


def test_rate_is_shared_by_gates(tmp_path: Path) -> None:
    clock = VirtualClock(monotonic_s=1000.0)
    gates = [RateGate(tmp_path / "rate", 10.0, clock) for _ in range(2)]
    waits = [gates[n % 2].reserve_s() for n in range(4)]
    assert waits == pytest.approx([0.0, 0.0, 0.1, 0.2])
    clock.advance(10.0)
    assert gates[0].reserve_s() == 0.0
    for gate in gates:
        gate.close()


def test_rate_forgets_the_time_before_a_boot(tmp_path: Path) -> None:
    old = RateGate(tmp_path / "rate", 1.0, VirtualClock(monotonic_s=1e9))
    old.reserve_s()
    old.close()
    young = RateGate(tmp_path / "rate", 1.0, VirtualClock(monotonic_s=5.0))
    assert young.reserve_s() == 0.0
    young.close()


def test_statuses_have_their_texts() -> None:
    assert [status.value for status in Status] == ["bought", "reused", "parked", "failed"]
