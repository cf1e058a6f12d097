"""`holdfast notices`: what webhooks have not taken, and how it is sent again."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from holdfast.cli.words import counted
from holdfast.engine.state import existing, look, share
from holdfast.store.contract import Store
from holdfast.store.result_rows import Notice, NoticeState


def notices_command(state: Path, *, revive: bool, as_json: bool) -> None:
    """List notices that are not sent; with `revive`, make those that were given up wait again."""
    existing(state)
    if revive:
        with share(state, part="notices") as shared:
            dead = shared.store.list_notices(state=NoticeState.DEAD)
            revived = [one for one in dead if shared.store.revive_notice(one.notice_id)]
            found = _unsent(shared.store)
    else:
        with look(state) as (_, store):
            revived, found = [], _unsent(store)
    if as_json:
        facts = {"revived": len(revived), "notices": [_facts(one) for one in found]}
        sys.stdout.write(json.dumps(facts) + "\n")
        return
    lines = [_line(one) for one in found] or ["every notice was taken"]
    if revive:
        lines.insert(0, f"revived {counted(len(revived), 'dead letter')}")
    sys.stdout.write("\n".join(lines) + "\n")


def _unsent(store: Store) -> list[Notice]:
    return [
        notice
        for state in (NoticeState.WAITING, NoticeState.DEAD)
        for notice in store.list_notices(state=state)
    ]


def _facts(notice: Notice) -> dict[str, object]:
    """Return a notice without its body, which may be long, and is the client's."""
    facts = asdict(notice)
    del facts["body"]
    return facts


def _line(notice: Notice) -> str:
    last = f", the last: {notice.error}" if notice.error else ""
    return (
        f"{notice.state}: {notice.notice_id}, {notice.kind} of run {notice.run_id} of client"
        f" {notice.client}, {counted(notice.failures, 'failure')}{last}"
    )
