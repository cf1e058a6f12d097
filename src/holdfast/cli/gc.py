"""`holdfast gc`: removes what no committed row refers to, and says what and how much."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from holdfast.cli.settings import load_settings
from holdfast.cli.words import counted, size_of
from holdfast.config import Config
from holdfast.delivery.sweep import Coming, Duty, coming, due_for_sweep
from holdfast.engine.garbage import Garbage, find_garbage, remove_garbage, weigh
from holdfast.engine.parts import parts_in
from holdfast.engine.state import StateDirectory, existing, hold, locked, look


def gc_command(
    state: Path, *, dry_run: bool, as_json: bool, config_file: Path | None = None
) -> None:
    """Remove garbage, or only say what would go. Refused while a process works in the state."""
    directory = existing(state)
    config = load_settings(config_file, {}).config
    soon: list[Coming] = []
    if dry_run:
        garbage = _look(state, directory, config)
        facts = _facts(garbage)
        with look(state) as (_, store):
            soon = coming(store, config)
    else:
        with hold(state) as held:
            garbage = find_garbage(directory, held.store, config)
            facts = _facts(garbage)
            remove_garbage(held, garbage, config)
    if as_json:
        told = {"coming": [_coming_facts(one) for one in soon]} if dry_run else {}
        sys.stdout.write(json.dumps({"dry_run": dry_run, **facts, **told}) + "\n")
        return
    for text in [*_lines(garbage, facts, dry_run=dry_run), *map(_coming_line, soon)]:
        sys.stdout.write(text + "\n")
    is_left = dry_run and any(facts.values())
    again = " without --dry-run removes it" if is_left else ""
    quoted = shlex.quote(str(state))
    verb = "gc" if is_left else "verify"
    sys.stdout.write(f"next: holdfast {verb} --state {quoted}{again}\n")


def _look(state: Path, directory: StateDirectory, config: Config) -> Garbage:
    """Return what would go. Beside a service only what its delivery will sweep can be told: what
    else looks like garbage may be somebody's work of this moment.
    """
    if parts_in(directory.parts):
        with look(state) as (_, store):
            return Garbage((), (), (), tuple(due_for_sweep(store, config)), ())
    with locked(directory), look(state) as (_, store):
        return find_garbage(directory, store, config)


def _facts(garbage: Garbage) -> dict[str, int]:
    """Weigh it, before it is gone."""
    orphans, temporary = weigh(garbage.orphans), weigh(garbage.temporary)
    uploads = weigh(garbage.uploads)
    return {
        "orphans": orphans.count,
        "temporary": temporary.count,
        "uploads": uploads.count,
        "runs": len(garbage.swept),
        "records": sum(count for _, count in garbage.records),
        "bytes": orphans.size + temporary.size + uploads.size,
    }


def _coming_facts(one: Coming) -> dict[str, str | float]:
    return {
        "run": one.run.run_id,
        "state": one.run.state,
        "duty": one.duty,
        "idle_s": round(one.idle_s, 1),
        "limit_s": one.limit_s,
        "left_s": round(one.left_s, 1),
    }


def _coming_line(one: Coming) -> str:
    what = "swept" if one.duty is Duty.SWEEP else "abandoned, unless what it waits for comes,"
    return (
        f"coming: run {one.run.run_id}, which is {one.run.state}, is {what} in {one.left_s:,.0f} s"
        f" of an active delivery (idle for {one.idle_s:,.0f} of {one.limit_s:,.0f} s)"
    )


def _lines(garbage: Garbage, facts: dict[str, int], *, dry_run: bool) -> list[str]:
    verb = "would remove" if dry_run else "removed"
    paths = (*garbage.orphans, *garbage.temporary, *garbage.uploads)
    lines = [f"{verb} {path}" for path in paths]
    swept = "would sweep" if dry_run else "swept"
    lines += [f"{swept} run {run.run_id}, which is {run.state}" for run in garbage.swept]
    leave = "would leave" if dry_run else "left"
    lines += [
        f"{leave} the queues of run {run.run_id} to delivery: they may be on a broker"
        for run in garbage.left
    ]
    lines += [
        f"{verb} {counted(count, 'record')} of topic {name}" for name, count in garbage.records
    ]
    parts = [
        counted(facts["orphans"], "orphan directory", "orphan directories"),
        counted(facts["temporary"], "half-written upload"),
        counted(facts["uploads"], "unbound upload"),
        counted(facts["runs"], "run"),
        counted(facts["records"], "log record"),
    ]
    return [*lines, f"{verb} {', '.join(parts)}: {size_of(facts['bytes'])} of files"]
