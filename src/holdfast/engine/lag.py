"""How far the readers of each topic are behind it. Reads the store only, so any time and any log.

Two positions of the engine: *planned* moves with the plan, before anything has an effect, so that
a reference is in one plan; *committed* moves in the transaction that makes the outputs of those
plans durable. What lies between is done again after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast._base.ids import START
from holdfast.store.contract import ENGINE_GROUP, Store, ingress_topic
from holdfast.store.rows import Run, Work, WorkKind


@dataclass(frozen=True, slots=True)
class TopicLag:
    """How far one group is in one partition of a topic."""

    topic: str
    partition: int
    group: str
    announced: int
    """References that were appended so far."""
    planned: int | None
    """Those that are in a plan; None for groups other than the engine's."""
    committed: int
    """Those whose effect is durable."""
    lag: int


def lags_of_run(store: Store, run: Run, works: Sequence[Work]) -> tuple[TopicLag, ...]:
    """Return the lag of every group on the topics of a run that are still there."""
    known = store.list_topics()
    topics = {n: ingress_topic(run.run_id, n) for n in range(1, run.segments + 1)}
    found: list[TopicLag] = []
    for segment, topic in topics.items():
        if topic in known:
            positions = {ENGINE_GROUP: START, **store.list_offsets(topic, 0)}
            _, announced = store.topic_bounds(topic, 0)
            planned = positions.pop(ENGINE_GROUP)
            done = committed_offset(works, segment)
            lag = TopicLag(topic, 0, ENGINE_GROUP, announced, planned, done, announced - done)
            found += [lag, *_others(topic, 0, announced, positions)]
    return tuple(found)


def committed_offset(works: Sequence[Work], segment: int) -> int:
    """Return up to where a segment's topic has durable effects: no open plan lies before it."""
    done: int = START
    for work in sorted(works, key=lambda one: one.number):
        if work.plan.kind is WorkKind.BATCH and work.plan.segment == segment:
            if not work.committed:
                break
            done = work.plan.offset
    return done


def lags_of_others(store: Store, runs: Sequence[Run]) -> tuple[TopicLag, ...]:
    """Return the lag of every group on topics that belong to no run's segments."""
    mine = {ingress_topic(run.run_id, n) for run in runs for n in range(1, run.segments + 1)}
    found: list[TopicLag] = []
    for topic, partitions in sorted(store.list_topics().items()):
        for partition in range(partitions if topic not in mine else 0):
            _, announced = store.topic_bounds(topic, partition)
            found += _others(topic, partition, announced, store.list_offsets(topic, partition))
    return tuple(found)


def _others(
    topic: str, partition: int, announced: int, positions: Mapping[str, int]
) -> list[TopicLag]:
    return [
        TopicLag(topic, partition, group, announced, None, offset, announced - offset)
        for group, offset in sorted(positions.items())
    ]
