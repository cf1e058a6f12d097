"""`holdfast status`, `barrier` and `verify`: questions, answered from the store alone."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

from holdfast import queries
from holdfast.cli.words import batches, counted, moment
from holdfast.engine.lag import TopicLag
from holdfast.queries import (
    BarrierView,
    PartView,
    RunView,
    StateView,
    TableView,
    Verification,
    WaitView,
)
from holdfast.store.rows import CLOSED_STATES


def status_command(state: Path, run: str | None, *, as_json: bool) -> None:
    """Print the runs of a state directory, and who works in it."""
    view = queries.survey(state.absolute(), run)
    if as_json:
        _print(json.dumps(asdict(view)))
        return
    _print(f"{state}: {_who(view)}", *(f"  {_part_line(part)}" for part in view.parts))
    for one in view.runs:
        _print(*_run_lines(one))
    _print(*_topic_lines(view.topics))
    _print(*_waiting_lines(view, shlex.quote(str(state))))
    if not view.runs:
        submit = "holdfast submit DIR --url URL --token-file FILE"
        _print(
            "no run yet", f"next: {submit if view.parts else 'holdfast run PIPELINE --state ...'}"
        )
        return
    if not view.parts:
        _print(f"next: {_next(view.runs[-1], state, view.owner_pid)}")


def _waiting_lines(view: StateView, state: str) -> list[str]:
    """Return what needs somebody outside: runs that wait, and notices that nobody took."""
    lines = [
        f"waiting: run {one.run_id} of client {one.client} for {one.idle_s:,.0f} s:"
        f" {'; '.join(one.lacks)}"
        for one in view.waiting
    ]
    for one in view.dead_letters:
        failed = f"{one.type} of run {one.run_id}, {counted(one.failures, 'failure')}"
        lines.append(f"dead letter {one.notice_id}: {failed}, the last: {one.error}")
    if view.dead_letters:
        lines.append(f"  send them again: holdfast notices --state {state} --revive")
    return lines


def _who(view: StateView) -> str:
    if view.owner_pid:
        return f"process {view.owner_pid} works here now"
    if view.parts:
        return f"a service works here now, {counted(len(view.parts), 'process', 'processes')}"
    return "no process works here"


def _part_line(part: PartView) -> str:
    role = f"active, epoch {part.epoch}" if part.epoch is not None else part.role
    return f"{part.name}: process {part.pid}, {role}"


def _run_lines(view: RunView) -> list[str]:
    times = f"created {moment(view.created_ms)}, {view.state} since {moment(view.updated_ms)}"
    whose = f" of client {view.client}" if view.client else ""
    open_still = "" if view.state in CLOSED_STATES else ", not finished"
    head = f"run {view.run_id}{whose} of {view.pipeline}: {view.state}{open_still}"
    lines = [head, f"  {times}"]
    if view.error:
        lines.append(f"  error: {' '.join(view.error.split())}")
    elif view.last_failure:
        lines.append(f"  last failed attempt: {' '.join(view.last_failure.split())}")
    lines.append(
        f"  {batches(view.batches_committed)} committed, {_applied(view.tables)},"
        f" {_results(view)}, {counted(view.failures, 'failed attempt')}"
    )
    for work in view.current:
        what = f" of {counted(work.chunks, 'chunk')}" if work.chunks else ""
        lines.append(f"  not committed: {work.name}{what}, {counted(work.attempts, 'attempt')}")
    lines.append(f"  {counted(view.rows_read, 'row')} read, {view.bad_rows:,} kept aside")
    topics = [f"  {line}" for line in _topic_lines(view.topics)]
    return [*lines, *_table_lines(view.tables), *topics]


def _topic_lines(topics: tuple[TopicLag, ...]) -> list[str]:
    """Return how far each group is behind each topic, as a table; nothing if there is none."""
    if not topics:
        return []
    names = [_partition(one) for one in topics]
    width, wide = max(map(len, names)), max(len("group"), *(len(one.group) for one in topics))
    lines = [f"{'topic':<{width}}  {'group':<{wide}}  announced  planned  committed  lag"]
    for name, one in zip(names, topics, strict=True):
        planned = "-" if one.planned is None else str(one.planned)
        lines.append(
            f"{name:<{width}}  {one.group:<{wide}}  {one.announced:>9}  {planned:>7}"
            f"  {one.committed:>9}  {one.lag:>3}"
        )
    return lines


def _partition(one: TopicLag) -> str:
    return f"{one.topic}/{one.partition}" if one.partition else one.topic


def _applied(tables: tuple[TableView, ...]) -> str:
    """Return how far the input is: of planned batches all may be committed in a run just begun."""
    known = [table.received if table.announced is None else table.announced for table in tables]
    least = "at least " if any(table.announced is None for table in tables) else ""
    applied = sum(table.applied for table in tables)
    return f"{applied:,} of {least}{counted(sum(known), 'chunk')} applied"


def _results(view: RunView) -> str:
    if not view.series_planned:
        return "no result yet"
    return f"{view.series_committed} of {counted(view.series_planned, 'result')}"


def _table_lines(tables: tuple[TableView, ...]) -> list[str]:
    width = max((len(_sender(table)) for table in tables), default=5)
    lines = [f"  {'table':<{width}}  announced  received  applied  missing"]
    for table in tables:
        announced = "-" if table.announced is None else str(table.announced)
        lines.append(
            f"  {_sender(table):<{width}}  {announced:>9}  {table.received:>8}"
            f"  {table.applied:>7}  {table.missing}"
        )
    return lines


def _sender(one: TableView | WaitView) -> str:
    return f"{one.table}/{one.sender}" if one.sender else one.table


def _next(view: RunView, state: Path, owner: int | None) -> str:
    quoted = shlex.quote(str(state))
    match view.state:
        case _ if view.client and view.state not in CLOSED_STATES:
            return f"holdfast up --pipeline {view.pipeline} --state {quoted}"
        case "DONE":
            return f"holdfast verify --state {quoted}"
        case "FAILED":
            return "correct the cause, then run with a new --state"
        case _ if owner:
            return f"wait for process {owner}, or stop it: kill -INT {owner}"
        case _:
            return f"the same `holdfast run ... --state {quoted}` as before resumes it"


def barrier_command(state: Path, run: str | None, *, as_json: bool) -> None:
    """Print what the barrier of a run waits for."""
    view = queries.barrier(state.absolute(), run)
    if as_json:
        _print(json.dumps(asdict(view)))
        return
    since = f"open since {moment(view.created_ms)}"
    _print(f"run {view.run_id} of {view.pipeline}: {view.state}, {since}")
    _print(*_barrier_lines(view, shlex.quote(str(state))))


def _barrier_lines(view: BarrierView, state: str) -> list[str]:
    if view.state in CLOSED_STATES:
        return ["the run is over: no barrier waits", f"next: holdfast status --state {state}"]
    if len(view.passed) == view.segments:
        done = f"passed at {moment(view.updated_ms)} or before: all input is in"
        return [f"barrier: {done}", f"next: holdfast status --state {state}"]
    lines = [f"barrier of segment {segment}: passed" for segment in view.passed]
    for segment in range(len(view.passed) + 1, view.segments + 1):
        lines.append(f"barrier of segment {segment}: waits")
        lines += [f"  {_wait(one)}" for one in view.waits if one.segment == segment]
    first = [one for one in view.waits if one.segment == len(view.passed) + 1]
    silent = any(not one.said_end or one.missing != "none" for one in first)
    act = "senders send what is missing" if silent else "run it: what is received is to be applied"
    return [*lines, f"next: {act}; then holdfast barrier --state {state}"]


def _wait(one: WaitView) -> str:
    if one.announced is None:
        said = f"has not said END, {one.received} received"
    else:
        said = f"announced {one.announced}, missing {one.missing}"
    return f"{_sender(one)}: {said}, received and not applied {one.unapplied}"


def verify_command(state: Path, out: Path | None, *, as_json: bool) -> None:
    """Check everything; exit with 1 if anything is wrong."""
    found = queries.verify(state.absolute(), out.absolute() if out else None)
    if as_json:
        _print(json.dumps(asdict(found)))
    else:
        _print(*_verify_lines(found, state))
    if found.findings:
        sys.exit(1)


def _verify_lines(found: Verification, state: Path) -> list[str]:
    lines = [f"run {finding.run_id}: {finding.what}" for finding in found.findings]
    verdict = counted(len(found.findings), "problem") if found.findings else "all is well"
    if found.unfinished:
        verdict += f" so far; {counted(found.unfinished, 'run')} not finished"
    looked = [counted(found.runs, "run"), counted(found.chunks, "chunk")]
    looked += [counted(found.files, "file"), counted(found.orphans, "orphan")]
    lines.append(f"{', '.join(looked)}: {verdict}")
    if found.findings:
        exports_only = all("run again" in finding.what for finding in found.findings)
        cure = "the same `holdfast run` as before restores the exports"
        worse = "restore what is damaged from a backup, or start a new run"
        return [*lines, f"next: {cure if exports_only else worse}"]
    if found.unfinished:
        return [*lines, f"next: holdfast status --state {shlex.quote(str(state))}"]
    return [*lines, "next: nothing: what is here is whole"]


def _print(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")
