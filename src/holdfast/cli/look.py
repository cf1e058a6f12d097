"""`holdfast status` and `holdfast verify`: questions, answered from the store alone."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from holdfast import queries
from holdfast.queries import RunView


def status_command(state: Path, *, as_json: bool) -> None:
    """Print every run of a state directory."""
    views = queries.describe(state.absolute())
    if as_json:
        sys.stdout.write(json.dumps([asdict(view) for view in views]) + "\n")
        return
    for view in views:
        for text in _lines(view):
            sys.stdout.write(text + "\n")
    if not views:
        sys.stdout.write("no run yet\nnext: holdfast run PIPELINE --state ...\n")
        return
    sys.stdout.write(f"next: {_next(views[-1], state)}\n")


def _lines(view: RunView) -> list[str]:
    lines = [f"run {view.run_id} of {view.pipeline}: {view.state}"]
    if view.error:
        lines.append(f"  error: {view.error}")
    lines.append(
        f"  batches {view.batches_committed} of {view.batches_planned} planned,"
        f" results {view.series_committed} of {view.series_planned} planned,"
        f" failed attempts {view.failures}"
    )
    lines.append(f"  rows {view.rows_read:,}, kept aside {view.bad_rows:,}")
    width = max((len(table.table) for table in view.tables), default=5)
    lines.append(f"  {'table':<{width}}  announced  received  applied  missing")
    for table in view.tables:
        announced = "-" if table.announced is None else str(table.announced)
        name = f"{table.table}/{table.sender}" if table.sender else table.table
        lines.append(
            f"  {name:<{width}}  {announced:>9}  {table.received:>8}  {table.applied:>7}"
            f"  {table.missing}"
        )
    return lines


def _next(view: RunView, state: Path) -> str:
    match view.state:
        case "DONE":
            return f"holdfast verify --state {state}"
        case "FAILED":
            return "correct the cause, then run with a new --state"
        case _:
            return f"the same `holdfast run ... --state {state}` as before resumes it"


def verify_command(state: Path, out: Path | None, *, as_json: bool) -> None:
    """Check everything; exit with 1 if anything is wrong."""
    found = queries.verify(state.absolute(), out.absolute() if out else None)
    if as_json:
        sys.stdout.write(json.dumps(asdict(found)) + "\n")
    else:
        for finding in found.findings:
            sys.stdout.write(f"run {finding.run_id}: {finding.what}\n")
        verdict = f"{len(found.findings)} problems" if found.findings else "all is well"
        sys.stdout.write(
            f"{found.runs} runs, {found.chunks} chunks, {found.files} files,"
            f" {found.orphans} orphans (not counted): {verdict}\n"
        )
        if found.findings:
            exports_only = all("run again" in finding.what for finding in found.findings)
            cure = "the same `holdfast run` as before restores the exports"
            worse = "restore what is damaged from a backup, or start a new run"
            sys.stdout.write(f"next: {cure if exports_only else worse}\n")
    if found.findings:
        sys.exit(1)
