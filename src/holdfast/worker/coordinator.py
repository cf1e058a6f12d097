"""The barrier between two groups of workers: a role for the worker that holds it.

Senders tell it how many chunks they sent to each shard, and send no END; shards tell it which
chunks they applied. When the chunks that a shard applied *equal* those that all its senders sent,
the shard is released, once: it gets the END of each of its senders, with that shard's own count.
So no shard publishes while a chunk for it is on its way, however the transport orders messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from holdfast._base.intervals import Intervals
from holdfast.errors import EndConflict, UsageInvalid
from holdfast.worker.messages import Chunk, End
from holdfast.worker.reports import read_report
from holdfast.worker.roles import Output, Part, Release

_Source = tuple[Output, str]
"""A shard's table and one of its senders."""


@dataclass
class Barriers:
    """What a coordinator knows of one client."""

    sent: dict[_Source, int] = field(default_factory=dict)
    applied: dict[_Source, Intervals] = field(default_factory=dict)
    released: set[Output] = field(default_factory=set)

    def to_bytes(self) -> bytes:
        """Return it as canonical JSON."""
        fields = {
            "sent": [[*output, sender, n] for (output, sender), n in sorted(self.sent.items())],
            "applied": [
                [*output, sender, found.ranges]
                for (output, sender), found in sorted(self.applied.items())
            ],
            "released": sorted(self.released),
        }
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return what `to_bytes` gave."""
        fields = json.loads(data)
        return cls(
            {(Output(to, table), sender): n for to, table, sender, n in fields["sent"]},
            {
                (Output(to, table), sender): Intervals.merged((low, high) for low, high in ranges)
                for to, table, sender, ranges in fields["applied"]
            },
            {Output(to, table) for to, table in fields["released"]},
        )


class Coordinator:
    """Releases each shard once. `shards` says who sends to each shard's table.

    The name of a shard is that of its worker, and of the coordinator's outbox that leads to it.
    """

    outputs: Sequence[Output] = ()
    first: Sequence[str] = ()

    def __init__(self, shards: Mapping[Output, Sequence[str]]) -> None:
        self._shards = {output: tuple(senders) for output, senders in shards.items()}

    def start(self) -> Barriers:
        """Return the state of a client of whom nothing is known."""
        return Barriers()

    def apply(self, state: Barriers, chunk: Chunk) -> Iterable[Release]:
        """Take one report in; release what it completes."""
        report = read_report(chunk)
        if isinstance(report, dict):
            for output, total in report.items():
                self._note_sent(state, output, chunk.sender, total)
            return [one for output in report for one in self._released(state, chunk, output)]
        (table_type, sender), ordinal = report
        output = Output(chunk.sender, table_type)
        if output not in self._shards:
            # What a worker applied that no coordinator holds back: for people's eyes only.
            return []
        self._refuse_stranger(output, sender)
        seen = state.applied.get((output, sender), Intervals())
        state.applied[output, sender] = seen.add(ordinal)
        return self._released(state, chunk, output)

    def results(self, state: Barriers) -> Iterable[Part]:
        """Return nothing: all was released before the last report came."""
        del state
        return []

    def _note_sent(self, state: Barriers, output: Output, sender: str, total: int) -> None:
        self._refuse_stranger(output, sender)
        known = state.sent.setdefault((output, sender), total)
        if known != total:
            what = f"{sender} told the coordinator of another count for {output.to}"
            raise EndConflict(
                table=output.table_type, sender=sender, what=what, known=known, sent=total
            )

    def _refuse_stranger(self, output: Output, sender: str) -> None:
        if sender not in self._shards.get(output, ()):
            what = f"{sender} sends {output.table_type} to {output.to}, which is not declared"
            raise UsageInvalid(what=what, remedy="Declare it in the coordinator's shards.")

    def _released(self, state: Barriers, chunk: Chunk, output: Output) -> Iterable[Release]:
        """Return the ENDs for a shard whose applied chunks equal the sent ones; only once."""
        sources = [(output, sender) for sender in self._shards[output]]
        if output in state.released or any(source not in state.sent for source in sources):
            return []
        complete = True
        for source in sources:
            applied, sent = state.applied.get(source, Intervals()), state.sent[source]
            if beyond := applied.minus(Intervals.first(sent)):
                what, known = f"{output.to} applied a chunk beyond it", beyond.ranges[-1][1]
                raise EndConflict(
                    table=output.table_type, sender=source[1], what=what, known=known, sent=sent
                )
            complete = complete and len(applied) == sent
        if not complete:
            return []
        state.released.add(output)
        return [
            Release(output.to, End(chunk.client, output.table_type, state.sent[source], source[1]))
            for source in sources
        ]
