"""Which ENDs a router holds un-acked, and when each is let go. Pure: no clock, no queue, no store.

For a router that keeps no disk (delayed ack). An END is let go when everything that it announces
is committed and it was forwarded to every shard. Until then the broker keeps it: if this process
dies, every END that it held comes again and builds this up anew.

| an END | then |
| --- | --- |
| comes, and less than `prefetch - 1` tags of its link are held | it is held, with its own tag |
| comes, and so many are | it is committed in intake and acked at once: "spilled". Else the last free place of the window would be taken, no chunk could come, and nothing would ever complete |
| comes again on another tag, the same count | that tag is held too, and acked with the first |
| comes with another count | it is refused |
| is complete | it is committed, forwarded to each shard, recorded as forwarded, acked: in this order |
| waits for chunks that nobody takes any more | it is committed in intake, which refuses it with the run, or has it: then it is acked |
| dies with its channel | it is forgotten; it comes again, maybe to another router |

Every method returns what is to be done, in order. Whoever does it tells the outcome.
"""  # noqa: E501 - a table row cannot be broken

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast._base.intervals import Intervals

DONE_MAX = 10_000
"""ENDs that are remembered as forwarded: a copy of one is acked without forwarding it again."""


class Stream(NamedTuple):
    """One sender of one table of one client's run."""

    client: str
    run: str
    table: str
    sender: str


class HeldTag(NamedTuple):
    """One delivery of an END: its queue, its channel, its number."""

    link: str
    channel: int
    number: int


class Commit(NamedTuple):
    """Record this END in intake."""

    stream: Stream
    total: int


class Forward(NamedTuple):
    """Send this END to one shard."""

    stream: Stream
    total: int
    shard: int


class Ack(NamedTuple):
    """Tell the broker that this delivery need not come again."""

    tag: HeldTag


class Refuse(NamedTuple):
    """Send this delivery to the dead letters: another count was announced."""

    tag: HeldTag
    known: int


class Done(NamedTuple):
    """Record in intake that every shard has this END: it is owed no more."""

    stream: Stream


Effect = Commit | Forward | Done | Ack | Refuse


@dataclass(slots=True)
class _Held:
    count: int
    missing: Intervals
    tags: list[HeldTag] = field(default_factory=list)
    spilled: bool = False
    committed: bool = False
    waiting: set[int] = field(default_factory=set)
    """Shards that have not confirmed it."""


class HeldEnds:
    """All ENDs that this router knows and has not let go."""

    def __init__(self, *, shards: int, prefetch: int) -> None:
        self._shards, self._limit = shards, max(prefetch - 1, 0)
        self._held: dict[Stream, _Held] = {}
        self._done: OrderedDict[Stream, int] = OrderedDict()

    def receive(
        self, stream: Stream, count: int, tag: HeldTag, missing: Intervals
    ) -> tuple[Effect, ...]:
        """Take an END that came. `missing`: announced ordinals that are not committed yet."""
        known = self._held.get(stream)
        if known is None and (done := self._done.get(stream)) is not None:
            return (Ack(tag),) if done == count else (Refuse(tag, done),)
        if known is not None and known.count != count:
            return (Refuse(tag, known.count),)
        if known is None:
            known = self._held[stream] = _Held(count, missing, waiting=set(range(self._shards)))
        if self.tags_of(tag.link) >= self._limit:
            return self._spill(stream, known, tag)
        known.tags.append(tag)
        return self._advance(stream, known, missing)

    def _spill(self, stream: Stream, held: _Held, tag: HeldTag) -> tuple[Effect, ...]:
        if held.spilled and held.committed:
            return (Ack(tag),)
        held.spilled = True
        held.tags.append(tag)
        return (Commit(stream, held.count),)

    def recall(self, stream: Stream, count: int, missing: Intervals) -> tuple[Effect, ...]:
        """Take up an END that intake says is owed: spilled, by a router that may be dead."""
        if stream in self._held:
            return ()
        if stream in self._done:  # a copy of it was committed after it was forwarded
            return (Done(stream),)
        held = _Held(count, missing, spilled=True, committed=True, waiting=set(range(self._shards)))
        self._held[stream] = held
        return self._advance(stream, held, missing)

    def keep(self, owed: Collection[Stream]) -> None:
        """Forget what nobody holds and intake does not owe: another router forwarded it, or its
        run was swept.
        """
        for stream, held in list(self._held.items()):
            if held.committed and not held.tags and stream not in owed:
                del self._held[stream]

    def progress(self, stream: Stream, missing: Intervals) -> tuple[Effect, ...]:
        """Learn which announced ordinals of a stream are still not committed."""
        held = self._held.get(stream)
        if held is None or self._is_complete(held):
            return ()
        return self._advance(stream, held, missing)

    def given_up(self, stream: Stream) -> tuple[Effect, ...]:
        """Learn that its run takes nothing more: what is missing never comes."""
        held = self._held.get(stream)
        if held is None or self._is_complete(held):
            return ()
        if held.committed:
            return self._let_go(held)
        is_new, held.spilled = not held.spilled, True
        return (Commit(stream, held.count),) if is_new else ()

    def _advance(self, stream: Stream, held: _Held, missing: Intervals) -> tuple[Effect, ...]:
        held.missing = missing
        if not self._is_complete(held):
            return ()
        if not held.committed:
            return (Commit(stream, held.count),)
        return self._forwards(stream, held)

    def _is_complete(self, held: _Held) -> bool:
        return len(held.missing) == 0

    def _forwards(self, stream: Stream, held: _Held) -> tuple[Effect, ...]:
        if not held.waiting:
            return self._finish(stream, held)
        return tuple(Forward(stream, held.count, shard) for shard in sorted(held.waiting))

    def committed(self, stream: Stream) -> tuple[Effect, ...]:
        """Learn that an END is durable in intake."""
        held = self._held.get(stream)
        if held is None:
            return ()
        held.committed = True
        acks = self._let_go(held) if held.spilled else ()
        return (*acks, *(self._forwards(stream, held) if self._is_complete(held) else ()))

    def refused(self, stream: Stream) -> tuple[HeldTag, ...]:
        """Learn that intake refused an END: returns its tags, for the dead letters."""
        held = self._held.pop(stream, None)
        return tuple(held.tags) if held else ()

    def forwarded(self, stream: Stream, shard: int) -> tuple[Effect, ...]:
        """Learn that a shard confirmed an END."""
        held = self._held.get(stream)
        if held is None or shard not in held.waiting:
            return ()
        held.waiting.discard(shard)
        return () if held.waiting else self._finish(stream, held)

    def _finish(self, stream: Stream, held: _Held) -> tuple[Effect, ...]:
        del self._held[stream]
        self._done[stream] = held.count
        while len(self._done) > DONE_MAX:
            self._done.popitem(last=False)
        done = (Done(stream),) if self._shards else ()
        return (*done, *self._let_go(held))

    def _let_go(self, held: _Held) -> tuple[Effect, ...]:
        tags, held.tags = held.tags, []
        return tuple(Ack(tag) for tag in tags)

    def lost(self, link: str, channel: int) -> tuple[Stream, ...]:
        """Forget the tags of a dead channel; returns the streams that are forgotten with them.

        A spilled END has no tag any more and stays: intake owes it, nobody will send it again.
        """
        gone = []
        for stream, held in list(self._held.items()):
            before = len(held.tags)
            held.tags = [tag for tag in held.tags if (tag.link, tag.channel) != (link, channel)]
            if before and not held.tags:
                del self._held[stream]
                gone.append(stream)
        return tuple(gone)

    def tags_of(self, link: str) -> int:
        """Return how many tags of a queue are held."""
        return sum(tag.link == link for held in self._held.values() for tag in held.tags)

    def held_tags(self) -> Counter[str]:
        """Return how many tags are held, by queue."""
        return Counter(tag.link for held in self._held.values() for tag in held.tags)

    def streams(self) -> dict[Stream, Intervals]:
        """Return every stream that is not let go, with what is missing of it."""
        return {stream: held.missing for stream, held in self._held.items()}

    def incomplete(self) -> list[tuple[Stream, int]]:
        """Return the streams of which something is missing, with their counts."""
        return [(stream, held.count) for stream, held in self._held.items() if len(held.missing)]
