"""What an operator watches of delivery, computed from the store when somebody asks.

Nothing is counted in memory: the figures are the same whoever asks, and with everything dead.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.delivery.ports import RELAY_GROUP
from holdfast.delivery.waiting import awaited
from holdfast.store.contract import Store, notice_topic
from holdfast.store.result_rows import NoticeState
from holdfast.store.rows import CLOSED_STATES, RunKind, RunState


@dataclass(frozen=True, slots=True)
class Figure:
    """One gauge: its name, what it is, and its values by label."""

    name: str
    help: str
    values: tuple[tuple[tuple[tuple[str, str], ...], float], ...]


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """A run that waits for its client or producer: for what, and for how long nothing came."""

    run_id: str
    client: str
    state: str
    lacks: tuple[str, ...]
    idle_s: float
    since_ms: int
    """When its state last changed, by the wall clock, for people."""


def waiting_runs(store: Store) -> list[WaitingRun]:
    """Return the runs that wait for somebody outside, oldest first."""
    idle = store.read_idle()
    found = []
    for run in store.list_runs_in(*(state for state in RunState if state not in CLOSED_STATES)):
        if lacks := awaited(store, run):
            idle_s = idle.get(run.run_id, 0) / 1000
            found.append(
                WaitingRun(run.run_id, run.client, run.state, tuple(lacks), idle_s, run.updated_ms)
            )
    return found


def _held_up(store: Store) -> dict[str, float]:
    """Return how many runs wait for delivery's own next step. Trouble with one keeps it here."""
    forwarding = store.list_runs_in(RunState.FORWARDING)
    asking = sum(run.kind is RunKind.EXTERNAL for run in forwarding)
    return {"ask the producer": float(asking), "clean up": float(store.count_uncleared())}


def _not_relayed(store: Store) -> int:
    """Return how many notices wait to be sent on to clients' queues, where such are served."""
    count = 0
    for topic in store.list_topics():
        if topic.startswith(notice_topic("")):
            position = store.list_offsets(topic, 0).get(RELAY_GROUP)
            if position is not None:
                count += store.topic_bounds(topic, 0)[1] - position
    return count


def figures(store: Store) -> list[Figure]:
    """Return the gauges of delivery."""
    waiting = waiting_runs(store)
    notices = store.count_notices()
    states = {str(state): float(notices.get(state, 0)) for state in NoticeState}
    longest = max((one.idle_s for one in waiting), default=0.0)
    return [
        Figure(
            "holdfast_runs_waiting",
            "Runs that wait for their client's chunks or ENDs, or for their producer.",
            (((), float(len(waiting))),),
        ),
        Figure(
            "holdfast_waiting_idle_seconds",
            "Longest time for which nothing came to a run that waits.",
            (((), longest),),
        ),
        Figure(
            "holdfast_notices",
            "Notices to webhooks: waiting to be sent, sent, or given up (dead).",
            tuple(((("state", state),), count) for state, count in states.items()),
        ),
        Figure(
            "holdfast_runs_held_up",
            "Runs that delivery has yet to do a step for: trouble with a queue or a file keeps it.",
            tuple(((("step", step),), count) for step, count in _held_up(store).items()),
        ),
        Figure(
            "holdfast_notices_not_relayed",
            "Notices that clients' queues have not taken yet.",
            (((), float(_not_relayed(store))),),
        ),
    ]
