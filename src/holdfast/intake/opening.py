"""Runs that clients create: what may be declared, and what a second creation means. Pure.

The id of a run is a hash of its client and the client's own key, so creating it again finds it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from holdfast._base.ids import RunId, digest
from holdfast.errors import QuotaReached, RunConflict, RunGone, UsageInvalid
from holdfast.intake.tables import TableSpec
from holdfast.intake.tokens import check_name
from holdfast.store.client_rows import Opening, OpeningFacts, OpeningRule
from holdfast.store.rows import RunState, SenderDecl

KINDS = ("spark", "external")
"""Who computes the results of a run: the pipeline, or a producer outside that sends them in."""
SENDERS_MAX = 1000
"""Of all tables of a run. Each is a row, looked at whenever the barrier is."""


def run_id_for(client: str, key: str) -> RunId:
    """Return the id of the run that a client creates with `key`."""
    return RunId(digest("run", client, key))


def make_opening(client: str, key: str, kind: str, senders: Mapping[str, Sequence[str]]) -> Opening:
    """Return what a run is created with, so that equal declarations are equal text."""
    check_name(key, "key")
    if kind not in KINDS:
        raise UsageInvalid(what=f"kind {kind[:80]!r}", remedy=f"Use {' or '.join(KINDS)}.")
    declared = {table: list(names) for table, names in senders.items()}
    facts = {"kind": kind, "senders": declared}
    return Opening(client, key, json.dumps(facts, sort_keys=True, separators=(",", ":")))


def kind_of(opening: Opening) -> str:
    """Return what kind of run was created."""
    return str(json.loads(opening.declaration).get("kind", KINDS[0]))


def declare(
    tables: Sequence[TableSpec], senders: Mapping[str, Sequence[str]], *, external: bool = False
) -> tuple[SenderDecl, ...]:
    """Return the senders of a run. A table that `senders` does not name has its pipeline's own.

    `external`: nobody here plans its chunks. They are applied when they are bound, like those of
    whole tables, and no stage produces any.

    Raises:
        UsageInvalid: a table takes no uploads, or its senders are none, twice, or no names.
    """
    inputs = [table.name for table in tables if not table.produced]
    for name, given in senders.items():
        if name not in inputs:
            what = f"the pipeline has no input {name[:80]!r}"
            raise UsageInvalid(what=what, remedy=f"It has {', '.join(inputs)}.")
        for sender in given:
            check_name(sender, "sender")
        if not given or len(set(given)) != len(given):
            what = f"table {name} has senders {list(given)[:20]!r}"
            raise UsageInvalid(what=what, remedy="Name each sender once, at least one.")
    found = tuple(
        SenderDecl(table.name, sender, 1, whole=True)
        if external
        else SenderDecl(table.name, sender, table.segment, table.whole, table.produced)
        for table in tables
        for sender in senders.get(table.name, table.senders)
        if not (external and table.produced)
    )
    if len(found) > SENDERS_MAX:
        what = f"{len(found)} senders are declared"
        raise UsageInvalid(what=what, remedy=f"Declare at most {SENDERS_MAX}.")
    return found


def accept_opening(open_runs_max: int, run_id: RunId) -> OpeningRule:
    """Return the rule of creations: new within the quota, the same again, or refused."""

    def rule(opening: Opening, facts: OpeningFacts) -> bool:
        if facts.is_swept:
            raise RunGone(run=run_id, state=RunState.SWEPT)
        if facts.stored is not None:
            if facts.stored != opening:
                raise RunConflict(
                    run=run_id,
                    key=opening.key,
                    stored=facts.stored.declaration,
                    sent=opening.declaration,
                )
            return False
        if facts.open_runs >= open_runs_max:
            what = "runs that are not finished"
            raise QuotaReached(what=what, used=facts.open_runs, limit=open_runs_max)
        return True

    return rule
