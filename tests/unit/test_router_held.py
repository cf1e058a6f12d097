"""Delayed ack as a machine: chunks, ENDs, crashes, dead channels and shards in any order."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast._base.intervals import Intervals
from holdfast.router.held import (
    Ack,
    Commit,
    Done,
    Effect,
    Forward,
    HeldEnds,
    HeldTag,
    Refuse,
    Stream,
)

ADA = Stream("ada", "r1", "sales", "north")
BOB = Stream("bob", "r2", "sales", "")
NONE = Intervals()


def tag(number: int, link: str = "ada", channel: int = 1) -> HeldTag:
    return HeldTag(link, channel, number)


def test_an_end_is_held_until_all_is_committed_and_forwarded() -> None:
    held = HeldEnds(shards=2, prefetch=10)
    assert held.receive(ADA, 3, tag(1), Intervals.of([2, 3])) == ()
    assert held.progress(ADA, Intervals.of([3])) == ()
    assert held.progress(ADA, NONE) == (Commit(ADA, 3),)
    assert held.committed(ADA) == (Forward(ADA, 3, 0), Forward(ADA, 3, 1))
    assert held.forwarded(ADA, 1) == ()
    assert held.tags_of("ada") == 1
    assert held.forwarded(ADA, 0) == (Done(ADA), Ack(tag(1)))
    assert held.tags_of("ada") == 0


def test_an_end_of_nothing_goes_on_at_once_and_without_shards_too() -> None:
    held = HeldEnds(shards=0, prefetch=10)
    assert held.receive(ADA, 0, tag(1), NONE) == (Commit(ADA, 0),)
    assert held.committed(ADA) == (Ack(tag(1)),)


def test_each_senders_end_keeps_its_own_tag() -> None:
    held = HeldEnds(shards=1, prefetch=10)
    south = ADA._replace(sender="south")
    held.receive(ADA, 1, tag(1), Intervals.of([1]))
    held.receive(south, 1, tag(2), Intervals.of([1]))
    held.progress(south, NONE)
    held.committed(south)
    assert held.forwarded(south, 0) == (Done(south), Ack(tag(2)))
    assert held.tags_of("ada") == 1


def test_the_same_end_again_is_held_too_and_another_count_is_refused() -> None:
    held = HeldEnds(shards=1, prefetch=10)
    held.receive(ADA, 1, tag(1), Intervals.of([1]))
    assert held.receive(ADA, 1, tag(2), Intervals.of([1])) == ()
    assert held.receive(ADA, 2, tag(3), Intervals.of([1, 2])) == (Refuse(tag(3), 1),)
    held.progress(ADA, NONE)
    held.committed(ADA)
    assert held.forwarded(ADA, 0) == (Done(ADA), Ack(tag(1)), Ack(tag(2)))
    assert held.receive(ADA, 1, tag(4), NONE) == (Ack(tag(4)),)
    assert held.receive(ADA, 9, tag(5), NONE) == (Refuse(tag(5), 1),)


def test_at_prefetch_minus_one_the_next_end_goes_to_intake() -> None:
    """And a free place is kept in the window, or no chunk could ever come."""
    held = HeldEnds(shards=1, prefetch=3)
    streams = [ADA._replace(sender=str(n)) for n in range(4)]
    for number, stream in enumerate(streams[:2]):
        assert held.receive(stream, 1, tag(number), Intervals.of([1])) == ()
    assert held.receive(streams[2], 1, tag(2), Intervals.of([1])) == (Commit(streams[2], 1),)
    assert held.committed(streams[2]) == (Ack(tag(2)),)
    assert held.tags_of("ada") == 2
    # A complete one too: a shard that is away must not close the window either.
    assert held.receive(streams[3], 1, tag(3), NONE) == (Commit(streams[3], 1),)
    assert held.committed(streams[3]) == (Ack(tag(3)), Forward(streams[3], 1, 0))
    # Another client's window is its own.
    assert held.receive(BOB, 1, tag(1, "bob"), Intervals.of([1])) == ()
    # The spilled one is forwarded when it is complete, though nobody holds it.
    assert held.progress(streams[2], NONE) == (Forward(streams[2], 1, 0),)
    assert held.forwarded(streams[2], 0) == (Done(streams[2]),)
    assert streams[2] not in held.streams()


def test_a_dead_channel_takes_its_tags_along_and_spilled_ends_stay() -> None:
    held = HeldEnds(shards=2, prefetch=2)
    held.receive(ADA, 1, tag(1), Intervals.of([1]))
    spilled = ADA._replace(sender="spilled")
    held.receive(spilled, 1, tag(2), Intervals.of([1]))
    held.committed(spilled)
    assert held.lost("ada", 1) == (ADA,)
    assert list(held.streams()) == [spilled]
    assert held.progress(ADA, NONE) == ()
    # A late word about the forgotten one changes nothing.
    assert held.committed(ADA) == held.forwarded(ADA, 0) == ()
    assert held.receive(ADA, 1, tag(1, channel=2), NONE) == (Commit(ADA, 1),)


def test_ends_that_intake_has_are_taken_up_after_a_restart() -> None:
    held = HeldEnds(shards=1, prefetch=2)
    assert held.recall(ADA, 2, Intervals.of([2])) == ()
    assert held.recall(ADA, 2, NONE) == ()
    assert held.progress(ADA, NONE) == (Forward(ADA, 2, 0),)
    assert held.recall(BOB, 0, NONE) == (Forward(BOB, 0, 0),)


def test_what_another_router_forwarded_is_forgotten_and_what_is_held_stays() -> None:
    held = HeldEnds(shards=1, prefetch=3)
    held.recall(ADA, 2, Intervals.of([2]))
    held.receive(BOB, 1, tag(1, "bob"), Intervals.of([1]))
    held.keep({ADA})
    assert list(held.streams()) == [ADA, BOB]
    held.keep(())
    assert list(held.streams()) == [BOB]


def test_an_end_that_is_owed_again_after_it_was_forwarded_is_recorded_again() -> None:
    """A copy of it was spilled by a router that then died."""
    held = HeldEnds(shards=1, prefetch=3)
    held.recall(ADA, 0, NONE)
    held.forwarded(ADA, 0)
    assert held.recall(ADA, 0, NONE) == (Done(ADA),)


def test_an_end_whose_run_takes_nothing_more_goes_to_intake_once() -> None:
    """It refuses the END with its run, or has it already: another door was told the same."""
    held = HeldEnds(shards=1, prefetch=10)
    for stream in (ADA, BOB):
        held.receive(stream, 2, tag(1, stream.client), Intervals.of([2]))
        assert held.given_up(stream) == (Commit(stream, 2),)
        assert held.given_up(stream) == ()
    assert held.refused(ADA) == (tag(1),)
    assert held.given_up(ADA) == ()
    assert held.committed(BOB) == (Ack(tag(1, "bob")),)
    held.receive(BOB, 2, tag(2, "bob"), Intervals.of([2]))
    assert held.given_up(BOB) == (Ack(tag(2, "bob")),)
    # What is complete is forwarded, whatever became of the run.
    held.receive(ADA, 2, tag(3), NONE)
    assert held.given_up(ADA) == ()


class Delayed(RuleBasedStateMachine):
    """A broker, an intake and shards around the machine; it is killed, and channels die.

    The broker keeps what is not acked. Intake and shards keep what they were given.
    """

    SHARDS, PREFETCH = 2, 3
    COUNTS = {Stream("c", "r", "t", str(n)): n % 3 for n in range(6)}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.queue = [(stream, count, 0) for stream, count in self.COUNTS.items()]
        self.queue += [self.queue[1]]  # one END is sent twice
        self.out: dict[HeldTag, tuple[Stream, int, int]] = {}
        self.chunks: set[tuple[Stream, int]] = set()
        self.intake: dict[Stream, int] = {}
        self.owed: set[Stream] = set()
        self.shards: Counter[tuple[Stream, int]] = Counter()
        self.todo: list[Effect] = []
        self.channel, self.number = 1, 0
        self.held = HeldEnds(shards=self.SHARDS, prefetch=self.PREFETCH)

    def missing(self, stream: Stream) -> Intervals:
        here = Intervals.of(n for s, n in self.chunks if s == stream)
        return Intervals.first(self.COUNTS[stream]).minus(here)

    @precondition(lambda self: self.queue and len(self.out) < self.PREFETCH)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.queue) - 1))
        stream, count, seen = self.queue.pop(place)
        self.number += 1
        tag = HeldTag("c", self.channel, self.number)
        self.out[tag] = (stream, count, seen)
        self.todo += self.held.receive(stream, count, tag, self.missing(stream))

    @rule(data=st.data())
    def commit_chunk(self, data: st.DataObject) -> None:
        every = [(s, n) for s, count in self.COUNTS.items() for n in range(1, count + 1)]
        left = [one for one in every if one not in self.chunks]
        if left:
            stream, ordinal = data.draw(st.sampled_from(left))
            self.chunks.add((stream, ordinal))
            if data.draw(st.booleans()):  # else another router did, and only a look tells
                self.todo += self.held.progress(stream, self.missing(stream))

    @rule()
    def look(self) -> None:
        for stream in self.held.streams():
            self.todo += self.held.progress(stream, self.missing(stream))

    @precondition(lambda self: self.todo)
    @rule()
    def act(self) -> None:
        effect = self.todo.pop(0)
        match effect:
            case Commit(stream, count):
                self.intake[stream] = count
                self.owed.add(stream)
                self.todo += self.held.committed(stream)
            case Forward(stream, count, shard):
                assert not self.missing(stream), "forwarded before it was complete"
                assert stream in self.intake, "forwarded before it was committed"
                self.shards[stream, shard] += 1
                self.todo += self.held.forwarded(stream, shard)
            case Done(stream):
                assert self.is_everywhere(stream)
                self.owed.discard(stream)
            case Ack(tag):
                if tag in self.out:  # else the channel died meanwhile, and nobody hears it
                    stream, _, _ = self.out.pop(tag)
                    assert self.may_be_acked(stream)
            case Refuse():
                raise AssertionError("all counts are the same")

    def may_be_acked(self, stream: Stream) -> bool:
        return stream in self.intake and (self.is_everywhere(stream) or stream in self.owed)

    def is_everywhere(self, stream: Stream) -> bool:
        return all(self.shards[stream, shard] for shard in range(self.SHARDS))

    @rule()
    def recall(self) -> None:
        self.held.keep(self.owed)
        for stream in sorted(self.owed):
            self.todo += self.held.recall(stream, self.COUNTS[stream], self.missing(stream))

    @precondition(lambda self: self.queue)
    @rule(data=st.data())
    def another_router_spills_and_dies(self, data: st.DataObject) -> None:
        stream, count, _ = self.queue.pop(data.draw(st.integers(0, len(self.queue) - 1)))
        self.intake[stream] = count
        self.owed.add(stream)

    @precondition(lambda self: any(not self.missing(stream) for stream in self.owed))
    @rule()
    def another_router_forwards(self) -> None:
        stream = min(one for one in self.owed if not self.missing(one))
        self.shards.update((stream, shard) for shard in range(self.SHARDS))
        self.owed.discard(stream)

    @rule()
    def lose_channel(self) -> None:
        self.queue += [(stream, count, seen + 1) for stream, count, seen in self.out.values()]
        self.out.clear()
        self.held.lost("c", self.channel)
        self.channel += 1

    @rule()
    def kill(self) -> None:
        """A new process: nothing in memory, ENDs that are owed are found in intake."""
        self.lose_channel()
        self.todo.clear()
        self.held = HeldEnds(shards=self.SHARDS, prefetch=self.PREFETCH)

    @invariant()
    def a_place_is_free_or_soon_will_be(self) -> None:
        waiting = list(self.out)
        leaving = {effect.tag for effect in self.todo if isinstance(effect, Ack)}
        committing = {e.stream for e in self.todo if isinstance(e, Commit)}
        stuck = [t for t in waiting if t not in leaving and self.out[t][0] not in committing]
        assert len(stuck) <= self.PREFETCH - 1

    def teardown(self) -> None:
        """Faults stop, all chunks come: every END leaves the broker and is at every shard."""
        self.chunks = {(s, n) for s, count in self.COUNTS.items() for n in range(1, count + 1)}
        for _ in range(200):
            self.look()
            self.recall()
            while self.todo:
                self.act()
            if not (self.queue or self.out or self.held.streams() or self.owed):
                break
            if self.queue and len(self.out) < self.PREFETCH:
                stream, count, _ = self.queue.pop(0)
                self.number += 1
                tag = HeldTag("c", self.channel, self.number)
                self.out[tag] = (stream, count, 0)
                self.todo += self.held.receive(stream, count, tag, self.missing(stream))
        assert (self.queue, self.out, self.held.streams()) == ([], {}, {})
        assert (self.intake, self.owed) == (self.COUNTS, set())
        every = {(s, shard) for s in self.COUNTS for shard in range(self.SHARDS)}
        assert {key for key, times in self.shards.items() if times} == every


TestDelayed = Delayed.TestCase
TestDelayed.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
