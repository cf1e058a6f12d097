"""The driver's desk: which slots are to be claimed, which are claimed, which others own.

The task's thread enters slots, the driver claims them and looks at others', the settler says what
is durable. It decides by `rules`, and asks the ledger.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from holdfast.errors import BudgetSpent, CallInputChanged
from holdfast.ledger.asking import Answered, Asker, Pending, Work
from holdfast.ledger.contract import (
    MICROS,
    Claim,
    Ledger,
    Limit,
    OpenSlot,
    Outcome,
    Slot,
    View,
    slot_hash,
)
from holdfast.ledger.rules import Move, next_move

_POLL_FIRST_S, _POLL_MOST_S = 0.002, 0.1
"""How often a slot of another owner is looked at: soon at first, then less. Shorter: idle waiting
costs a core. Longer: the last answer of another task comes late."""

_SHOW_WAIT_S = 0.01
"""How long outcomes wait for a claim on whose way others get to see them. Shorter: transactions of
their own, which with quick calls are in the way of the next claim. Longer: other askers wait."""


Entered = tuple[Pending, View, Pending | None]
"""A slot asked for, what was known of it, and who asked before it with other inputs."""


@dataclass(slots=True, eq=False)
class _Wish:
    """A slot to be claimed, and what for."""

    pending: Pending
    move: Move
    after: OpenSlot | None
    generation: int


class Desk:
    """The slots of one task between asking and settlement."""

    def __init__(self, ledger: Ledger, asker: Asker, budget: Limit, window: int) -> None:
        self._ledger, self._asker, self._budget, self._window = ledger, asker, budget, window
        self._guard = threading.RLock()
        self._wishes: deque[_Wish] = deque()
        self._alone: deque[_Wish] = deque()
        self._others: list[Pending] = []
        self._look_at_s = 0.0
        self._poll_s = _POLL_FIRST_S
        self._alone_open = False
        self._unseen = 0
        self._show_at_s = math.inf
        self.open = 0

    def enter(self, entered: Iterable[Entered]) -> None:
        """Take in slots that the task asks for."""
        with self._guard:
            for pending, view, behind in entered:
                hash_ = pending.slot.hash
                known: Outcome | OpenSlot | None
                if behind is not None:
                    known = OpenSlot(0, 1, behind.slot.inputs)
                else:
                    known = view.outcomes.get(hash_) or view.open.get(hash_)
                self._place(pending, known, view.generation)

    def _place(self, pending: Pending, known: Outcome | OpenSlot | None, generation: int) -> None:
        move = next_move(pending.slot, known, self._asker.policy)
        after = known if isinstance(known, OpenSlot) else None
        if move is Move.REUSE and isinstance(known, Outcome):
            pending.outcome = known
        elif move is Move.RAISE and isinstance(known, Outcome):
            pending.error = self._asker.failed_before(known)
        elif move is Move.WAIT:
            self._others.append(pending)
        elif move is Move.OTHER_SLOT:
            pending.slot = _other_slot(pending.slot)
            self._others.append(pending)
            self._look_at_s = 0.0
        elif move is Move.INPUT_CHANGED:
            pending.error = CallInputChanged(step=self._asker.step, key=pending.slot.key)
        elif move is Move.CLAIM_ALONE:
            self._alone.append(_Wish(pending, move, after, generation))
        else:
            self._wishes.append(_Wish(pending, move, after, generation))

    def unresolved(self) -> int:
        """Return how many slots have no answer yet, claimed or not."""
        return self.open + len(self._wishes) + len(self._alone) + len(self._others)

    def due_s(self, now_s: float, most_s: float) -> float:
        """Return how long the driver may sleep before it must look or show."""
        due_at_s = min(self._show_at_s, self._look_at_s if self._others else math.inf)
        return min(most_s, max(0.0, due_at_s - now_s))

    def can_claim(self) -> bool:
        """Tell whether a claim is wanted and there is room for it."""
        if self._alone_open:
            return False
        if self._alone:
            return self.open == 0
        return bool(self._wishes) and self.open < self._window

    def claim(self) -> list[Work]:
        """Claim as many slots as there is room for, in one transaction. Returns what to call."""
        with self._guard:
            wishes = self._next_wishes()
        if not wishes:
            return []
        # A wish is good for the settled files it was looked up in, and for no others.
        generation = max(wish.generation for wish in wishes)
        for stale in [wish for wish in wishes if wish.generation != generation]:
            self._see_again(stale.pending)
        wishes = [wish for wish in wishes if wish.generation == generation]
        claims = [Claim(w.pending.slot, w.after, w.move is not Move.PARK) for w in wishes]
        # Before the claim: what is settled while it is made does not travel with it.
        self.shown()
        grant = self._ledger.claim(claims, generation=generation, limit=self._budget)
        over = set(grant.over_budget)
        granted: list[_Wish] = []
        for wish in wishes:
            slot = wish.pending.slot
            if slot.hash in grant.attempts:
                wish.pending.attempts = grant.attempts[slot.hash]
                granted.append(wish)
            elif slot.hash in over:
                wish.pending.error = self._budget_spent(slot)
            else:
                self._see_again(wish.pending)
        with self._guard:
            self.open += len(granted)
            self._alone_open = bool(granted) and granted[0].move is Move.CLAIM_ALONE
        self._park([wish for wish in granted if wish.move is Move.PARK])
        return self._works([wish for wish in granted if wish.move is not Move.PARK])

    def _next_wishes(self) -> list[_Wish]:
        if not self.can_claim():
            return []
        if self._alone:
            return [self._alone.popleft()]
        room = min(self._window - self.open, len(self._wishes))
        return [self._wishes.popleft() for _ in range(room)]

    def _see_again(self, pending: Pending) -> None:
        """Somebody else took the slot, or settled files changed: what is known is out of date."""
        with self._guard:
            self._others.append(pending)
            self._look_at_s = 0.0
            self._poll_s = _POLL_FIRST_S

    def _budget_spent(self, slot: Slot) -> BudgetSpent:
        totals = self._ledger.totals(slot.step)
        usd = f"{(totals.spent_micros + totals.reserved_micros) / MICROS:.6f}"
        return BudgetSpent(step=self._asker.step, calls=totals.calls, usd=usd)

    def _park(self, wishes: Sequence[_Wish]) -> None:
        if not wishes:
            return
        parked = [Answered(wish.pending, self._parked(wish)) for wish in wishes]
        self._ledger.settle([answer.outcome for answer in parked if answer.outcome is not None])
        self.settled(parked)

    def _parked(self, wish: _Wish) -> Outcome:
        attempts = wish.after.attempts if wish.after is not None else 1
        reason = f"unknown outcome after {attempts} attempt(s)"
        return self._asker.parked(wish.pending, attempts, reason)

    def _works(self, wishes: Sequence[_Wish]) -> list[Work]:
        works = [Work((w.pending,), reconcile=True) for w in wishes if w.move is Move.RECONCILE]
        plain = [wish.pending for wish in wishes if wish.move is not Move.RECONCILE]
        size = self._asker.batch or 1
        works += [Work(tuple(plain[i : i + size])) for i in range(0, len(plain), size)]
        return works

    def settled(self, answers: Sequence[Answered]) -> None:
        """Let rows see what is durable, and give back what is not to be kept."""
        free = [a.pending.slot for a in answers if a.outcome is None and not a.in_doubt]
        self._ledger.release(free)
        doubtful = [a.pending.slot for a in answers if a.outcome is None and a.in_doubt]
        self._ledger.release(doubtful, in_doubt=True)
        for answer in answers:
            answer.pending.bought_here = answer.outcome is not None
            answer.pending.outcome = answer.outcome
            answer.pending.error = answer.error
        with self._guard:
            self.open -= len(answers)
            self._unseen += len(answers)
            self._alone_open = self._alone_open and self.open > 0

    def look_again(self, now_s: float) -> None:
        """Look up slots that others owned; read out owners that died."""
        with self._guard:
            if not self._others or now_s < self._look_at_s:
                return
            others, self._others = self._others, []
        view = self._ledger.lookup([pending.slot.hash for pending in others])
        owners = {known.owner for known in view.open.values() if known.owner is not None}
        if owners and self._ledger.reap(sorted(owners)):
            view = self._ledger.lookup([pending.slot.hash for pending in others])
        with self._guard:
            for pending in others:
                hash_ = pending.slot.hash
                known = view.outcomes.get(hash_) or view.open.get(hash_)
                self._place(pending, known, view.generation)
            moved = len(self._others) < len(others)
            self._poll_s = _POLL_FIRST_S if moved else min(_POLL_MOST_S, 2 * self._poll_s)
            self._look_at_s = now_s + self._poll_s

    def must_show(self, now_s: float) -> bool:
        """Tell whether others should see outcomes now, for no claim came to take them along."""
        if self._unseen == 0 or self.can_claim():
            return False
        self._show_at_s = min(self._show_at_s, now_s + _SHOW_WAIT_S)
        return now_s >= self._show_at_s

    def shown(self) -> None:
        """Say that others see all outcomes that were settled until now."""
        self._unseen, self._show_at_s = 0, math.inf

    def forget(self) -> None:
        """Drop what was not claimed: the task wants no more."""
        with self._guard:
            self._wishes.clear()
            self._alone.clear()
            self._others.clear()


def _other_slot(slot: Slot) -> Slot:
    return replace(slot, hash=slot_hash(slot.step, slot.key, inputs=slot.inputs))
