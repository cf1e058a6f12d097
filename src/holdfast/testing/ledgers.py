"""The contract suite of ledgers. A new kind of ledger passes it with one fixture.

    @pytest.mark.parametrize("check", LEDGER_CHECKS)
    def test_my_ledger(check, tmp_path):
        check(lambda: MyLedger(tmp_path))

Each check is given a function that opens the same ledger anew: every handle is an owner of its
own, as two processes would be. No check needs pytest, Spark or a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from holdfast._base.ids import digest
from holdfast.errors import StepChanged
from holdfast.ledger.contract import (
    Claim,
    Grant,
    Ledger,
    Limit,
    Outcome,
    Slot,
    SlotHash,
    Status,
    Step,
    inputs_hash,
    slot_hash,
)
from holdfast.testing.expect import run_threads

OpenLedger = Callable[[], Ledger]


def make_step(ledger: Ledger, name: str = "step") -> Step:
    """Register a step with a fingerprint of one field."""
    return ledger.step(name, {"model": "1"}, on_change="refuse")


def make_slot(step: Step, key: str, sent: bytes = b"in") -> Slot:
    """Return the slot of a key."""
    return Slot(slot_hash(step.id, key), step.id, key, inputs_hash(sent))


def claim(ledger: Ledger, slots: Sequence[Slot], limit: Limit | None = None) -> Grant:
    """Look slots up and claim what is absent or in doubt."""
    view = ledger.lookup([slot.hash for slot in slots])
    wishes = [
        Claim(slot, view.open.get(slot.hash)) for slot in slots if slot.hash not in view.outcomes
    ]
    return ledger.claim(wishes, generation=view.generation, limit=limit or Limit())


def bought(slot: Slot, answer: bytes = b"answer", cost_micros: int = 0) -> Outcome:
    """Return the outcome of a bought slot."""
    return Outcome(slot, Status.BOUGHT, answer, cost_micros=cost_micros, recorded_ms=1)


def settle_as(
    ledger: Ledger, step: Step, statuses: Mapping[str, Status], limit: Limit | None = None
) -> dict[str, Slot]:
    """Claim slots and settle each as it is told, by key."""
    slots = {key: make_slot(step, key) for key in statuses}
    claim(ledger, list(slots.values()), limit)
    ledger.settle([_settled_as(slots[key], status) for key, status in statuses.items()])
    return slots


def _settled_as(slot: Slot, status: Status) -> Outcome:
    if status is Status.BOUGHT:
        return bought(slot, b'["yes"]', cost_micros=7)
    return Outcome(slot, status, reason="why", recorded_ms=5, dead_letter=status is Status.FAILED)


def check_claim_is_exclusive(open_ledger: OpenLedger) -> None:
    """Of two askers one gets a slot; the other sees whose it is."""
    first, second = open_ledger(), open_ledger()
    step = make_step(first)
    slots = [make_slot(step, key) for key in "abc"]
    assert len(claim(first, slots[:2]).attempts) == 2
    assert set(claim(second, slots).attempts) == {slots[2].hash}
    assert set(second.lookup([s.hash for s in slots]).open) == {s.hash for s in slots}
    first.close()
    second.close()


def check_settled_is_seen(open_ledger: OpenLedger) -> None:
    """A settled outcome is what every handle reads, now and after opening again."""
    first, second = open_ledger(), open_ledger()
    step = make_step(first)
    slot = make_slot(step, "k")
    claim(first, [slot])
    first.settle([])
    first.settle([bought(slot, b"\x00 bytes \xff")])
    first.flush()
    for ledger in (first, second):
        assert ledger.lookup([slot.hash]).outcomes[slot.hash] == bought(slot, b"\x00 bytes \xff")
        assert not claim(ledger, [slot]).attempts
    first.close()
    second.close()
    again = open_ledger()
    assert again.lookup([slot.hash]).outcomes[slot.hash].answer == b"\x00 bytes \xff"
    again.close()


def check_dead_owner_is_read_out(open_ledger: OpenLedger) -> None:
    """What a dead owner settled stands, even if it never flushed; the rest is in doubt."""
    first, second = open_ledger(), open_ledger()
    step = make_step(first)
    told, silent = make_slot(step, "told"), make_slot(step, "silent")
    claim(first, [told, silent])
    first.settle([bought(told)])
    owner = second.lookup([silent.hash]).open[silent.hash].owner
    assert owner is not None
    assert not second.reap([owner]), "a live owner is left alone"
    first.abandon()
    assert second.reap([owner])
    view = second.lookup([told.hash, silent.hash])
    assert view.outcomes[told.hash].answer == b"answer"
    assert view.open[silent.hash].owner is None
    assert claim(second, [silent]).attempts == {silent.hash: 2}
    second.close()


def check_release(open_ledger: OpenLedger) -> None:
    """A released slot was never asked; one released in doubt is counted."""
    ledger = open_ledger()
    step = make_step(ledger)
    free, doubtful = make_slot(step, "free"), make_slot(step, "doubtful")
    claim(ledger, [free, doubtful])
    ledger.release([free])
    ledger.release([doubtful], in_doubt=True)
    view = ledger.lookup([free.hash, doubtful.hash])
    assert free.hash not in view.open
    assert view.open[doubtful.hash].owner is None
    assert claim(ledger, [free, doubtful]).attempts == {free.hash: 1, doubtful.hash: 2}
    ledger.close()


def check_stale_generation_grants_nothing(open_ledger: OpenLedger) -> None:
    """A claim against settled files that its asker has not searched is refused."""
    ledger = open_ledger()
    slot = make_slot(make_step(ledger), "k")
    seen = ledger.lookup([slot.hash]).generation
    grant = ledger.claim([Claim(slot)], generation=seen - 1, limit=Limit())
    assert not grant.attempts
    assert not grant.over_budget
    ledger.close()


def check_budget_calls(open_ledger: OpenLedger) -> None:
    """No call beyond the cap is granted, over handles and over openings."""
    first, second = open_ledger(), open_ledger()
    step = make_step(first)
    slots = [make_slot(step, str(n)) for n in range(6)]
    assert len(claim(first, slots[:2], Limit(calls=3)).attempts) == 2
    grant = claim(second, slots[2:], Limit(calls=3))
    assert len(grant.attempts) == 1
    assert len(grant.over_budget) == 3
    assert first.totals(step.id).calls == 3
    first.close()
    second.close()


def check_budget_cost(open_ledger: OpenLedger) -> None:
    """What open calls may cost is reserved; what they did cost is counted."""
    ledger = open_ledger()
    step = make_step(ledger)
    slots = [make_slot(step, str(n)) for n in range(5)]
    limit = Limit(cost_micros=30, each_micros=10)
    assert len(claim(ledger, slots, limit).attempts) == 3
    ledger.settle([bought(slot, cost_micros=5) for slot in slots[:3]])
    ledger.flush()
    assert ledger.totals(step.id).spent_micros == 15
    assert len(claim(ledger, slots[3:], limit).attempts) == 1
    ledger.close()


def check_change_guard(open_ledger: OpenLedger) -> None:
    """A changed fingerprint is refused by the name of its field, renewed, or kept."""
    ledger = open_ledger()
    old = make_step(ledger)
    claim(ledger, [make_slot(old, "a")])
    refused = ""
    try:
        ledger.step("step", {"model": "2"}, on_change="refuse")
    except StepChanged as error:
        refused = error.fields
    assert refused == "model", "a changed step is refused, and the field is named"
    new = ledger.step("step", {"model": "2"}, on_change="new")
    assert new.id != old.id
    assert ledger.step("step", {"model": "2"}, on_change="new") == new
    assert ledger.step("step", {"model": "3"}, on_change="keep") == new
    assert ledger.step("step", {"model": "3"}, on_change="refuse") == new
    ledger.close()


def check_a_step_that_never_asked_may_change(open_ledger: OpenLedger) -> None:
    """There is nothing to protect; but its calls count, and a job of the old one cannot mix in."""
    ledger = open_ledger()
    old = make_step(ledger)
    slot = make_slot(old, "a")
    claim(ledger, [slot], Limit(calls=2))
    ledger.release([slot])
    changed = ledger.step("step", {"model": "2"}, on_change="refuse")
    assert changed.id != old.id, "a job of the old step goes on under the old number"
    assert ledger.totals(changed.id).calls == 1, "a failed call counts in the budget"
    slots = [make_slot(changed, key) for key in "ab"]
    assert len(claim(ledger, slots, Limit(calls=2)).over_budget) == 1
    ledger.close()


def check_dead_letters(open_ledger: OpenLedger) -> None:
    """A row refused for good is an outcome like any other, and is listed."""
    ledger = open_ledger()
    step = make_step(ledger)
    slot = make_slot(step, "bad")
    claim(ledger, [slot])
    failed = Outcome(slot, Status.FAILED, reason="no", recorded_ms=7, dead_letter=True)
    ledger.settle([failed])
    ledger.flush()
    assert ledger.lookup([slot.hash]).outcomes[slot.hash] == failed
    assert [(d.key, d.reason) for d in ledger.dead_letters(step.id)] == [("bad", "no")]
    assert ledger.totals(step.id).settled[Status.FAILED] == 1
    ledger.close()


def check_any_text_and_size(open_ledger: OpenLedger) -> None:
    """Keys, reasons and answers come back as they were, whatever is in them."""
    ledger = open_ledger()
    step = make_step(ledger)
    texts = ["", "\0", "a\\0b\\", "\u00e9 \U0001f600\n'\"%s", "x" * 5000]
    slots = [make_slot(step, text) for text in texts]
    claim(ledger, slots)
    answers = [b"", b"\0", b"\\x00", bytes(range(256)), bytes(3 << 20)]
    settled = [bought(slot, answer) for slot, answer in zip(slots, answers, strict=True)]
    ledger.settle(settled)
    failed = make_slot(step, "failed")
    claim(ledger, [failed])
    ledger.settle([Outcome(failed, Status.FAILED, reason=texts[2] + "\0", recorded_ms=1)])
    ledger.flush()
    outcomes = ledger.lookup([slot.hash for slot in [*slots, failed]]).outcomes
    assert [outcomes[slot.hash] for slot in slots] == settled
    assert outcomes[failed.hash].reason == texts[2] + "\0"
    ledger.close()


def check_many_askers_at_once(open_ledger: OpenLedger) -> None:
    """Of many askers at one moment, in different orders, each slot goes to one; nobody hangs."""
    ledgers = [open_ledger() for _ in range(4)]
    step = make_step(ledgers[0])
    slots = [make_slot(step, str(n)) for n in range(60)]
    grants: list[list[SlotHash]] = [[] for _ in ledgers]

    def ask(number: int) -> None:
        order = sorted(slots, key=lambda slot: digest(number, slot.key))
        for start in range(0, len(order), 20):
            part = order[start : start + 20]
            # Every second asker has a budget: those lock more.
            limit = Limit(calls=1000) if number % 2 else Limit()
            grants[number] += claim(ledgers[number], part, limit).attempts
            mine = [slot for slot in part if slot.hash in grants[number]]
            ledgers[number].settle([bought(slot) for slot in mine[::2]])
            ledgers[number].release(mine[1::2], in_doubt=True)

    run_threads([partial(ask, number) for number in range(len(ledgers))])
    for ledger in ledgers:
        ledger.flush()
    view = ledgers[0].lookup([slot.hash for slot in slots])
    assert set(view.outcomes) | set(view.open) == {slot.hash for slot in slots}
    assert all(known.owner is None for known in view.open.values())
    totals = ledgers[0].totals(step.id)
    assert totals.calls == sum(map(len, grants))
    assert totals.settled[Status.BOUGHT] == len(view.outcomes)
    assert totals.in_doubt == len(view.open)
    for ledger in ledgers:
        ledger.close()


LEDGER_CHECKS = (
    check_claim_is_exclusive,
    check_settled_is_seen,
    check_dead_owner_is_read_out,
    check_release,
    check_stale_generation_grants_nothing,
    check_budget_calls,
    check_budget_cost,
    check_change_guard,
    check_a_step_that_never_asked_may_change,
    check_dead_letters,
    check_any_text_and_size,
    check_many_askers_at_once,
)
