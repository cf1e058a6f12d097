"""The judge's part: the witness's log, the ledger's attempts, and what they say together.

Nothing here takes pay_once's word: calls are counted in the witness's log. The ledger is asked for
one thing only, how often it meant to call a slot; what the witness saw beyond that was bought
again behind the policy's back.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.ledger.contract import slot_hash
from holdfast.ledger.file_ledger import FileLedger


@dataclass(frozen=True)
class Plan:
    """What is expected of a case run with pay_once.

    `again`: which slots the policy may ask more than once: "none", those "in doubt" after a crash
    or a lost reply (at most `most` of them), or those the provider "refused". `keys`: the slots
    that the provider treats badly. `partial`: the job wants only some of its rows. `empty`: the
    slots that end without an answer.
    """

    case: str
    rows: int
    slots: frozenset[str]
    again: str = "none"
    most: int = 0
    keys: frozenset[str] = frozenset()
    partial: bool = False
    empty: frozenset[str] = frozenset()


@dataclass
class Seen:
    """What a run gave: how it ended, the answers of each key, and what stood before a resume."""

    outcome: str = "ok"
    answers: dict[str, list[str | None]] = field(default_factory=dict)
    recorded: dict[str, int] = field(default_factory=dict)

    def add(self, rows: Iterable[Any], answer: str = "answer", prefix: str = "") -> None:
        for row in rows:
            values = self.answers.setdefault(f"{prefix}{row['id']}", [])
            if row[answer] not in values:
                values.append(row[answer])


@dataclass(frozen=True)
class Verdict:
    """One line of the table."""

    plan: Plan
    plain_calls: int
    plain_outcome: str
    calls: int
    bought_again: int
    asked_again: Mapping[str, int]
    in_doubt: int
    outcome: str
    wrong: tuple[str, ...]


def calls_in(log: Path) -> dict[str, Counter[str]]:
    """Return the calls of each case by key, from the witness's log."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "start":
            found[event["case"]][event["key"]] += 1
    return found


def attempts_in(url: str, slots: Iterable[str]) -> tuple[dict[str, int], set[str]]:
    """Return how often the ledger meant to call each slot, and which have a settled outcome.

    A slot's name is its key, with the step's number before it if that is not the first.
    """
    ledger = FileLedger(url, create=False)
    try:
        ledger.tidy()
        names = {_hash_of(slot): slot for slot in slots}
        view = ledger.lookup(list(names))
        attempts = {names[h]: known.attempts for h, known in view.open.items()}
        attempts |= {names[h]: known.attempts for h, known in view.outcomes.items()}
        return attempts, {names[h] for h in view.outcomes}
    finally:
        ledger.close()


def _hash_of(slot: str) -> Any:
    step, _, key = slot.rpartition(":")
    return slot_hash(int(step or 1), key)


def judge(
    plan: Plan,
    plain: Seen,
    plain_calls: Counter[str],
    paid: Seen,
    calls: Counter[str],
    attempts: Mapping[str, int],
) -> Verdict:
    """Compare what the witness saw with what was promised."""
    repeated = {key: count - 1 for key, count in calls.items() if count > 1}
    behind = {key: more for key, more in repeated.items() if calls[key] > attempts.get(key, 1)}
    wrong = [f"{key} was called {calls[key]} times, meant {attempts.get(key)}" for key in behind]
    wrong += _calls_wrong(plan, paid, calls, repeated)
    wrong += _answers_wrong(plan, paid)
    doubtful = [k for k in plan.slots if attempts.get(k, 1) > 1 or k in plan.keys]
    return Verdict(
        plan=plan,
        plain_calls=sum(plain_calls.values()),
        plain_outcome=plain.outcome,
        calls=sum(calls.values()),
        bought_again=sum(behind.values()),
        asked_again={key: more for key, more in repeated.items() if key not in behind},
        in_doubt=len(doubtful) if plan.again == "in doubt" else 0,
        outcome=paid.outcome,
        wrong=tuple(wrong),
    )


def _calls_wrong(
    plan: Plan, paid: Seen, calls: Counter[str], repeated: Mapping[str, int]
) -> list[str]:
    wrong = []
    if strange := set(calls) - plan.slots:
        wrong.append(f"calls for keys that nobody has: {sorted(strange)[:3]}")
    if not plan.partial and (missing := plan.slots - set(calls)):
        wrong.append(f"{len(missing)} slots were never called")
    if plan.again == "none" and repeated:
        wrong.append(f"asked again without a policy: {sorted(repeated)[:3]}")
    if plan.again == "in doubt" and len(repeated) > plan.most:
        wrong.append(f"{len(repeated)} slots asked again, at most {plan.most} can be in doubt")
    if plan.again == "refused" and not set(repeated) <= plan.keys:
        wrong.append(f"asked again though not refused: {sorted(set(repeated) - plan.keys)[:3]}")
    for key, count in paid.recorded.items():
        if calls[key] != count:
            wrong.append(f"{key} was recorded, and bought again")
    return wrong


def _answers_wrong(plan: Plan, paid: Seen) -> list[str]:
    wrong = [] if paid.outcome == "ok" else [f"the job ended: {paid.outcome}"]
    for key, values in paid.answers.items():
        if len(values) != 1 or (values[0] is None) != (key in plan.empty):
            wrong.append(f"{key} has the answers {values}")
    if not plan.partial and (missing := plan.slots - set(paid.answers)):
        wrong.append(f"{len(missing)} slots have no answer")
    return wrong
