"""Whose turn is it? Weighted fairness between clients, and between the runs of one. Pure.

Each client has an account of what was done for it: bytes divided by its weight. The client with the
least is next, and of its runs the one with the least. So whoever wants little gets it soon, however
much others want, and whoever wants much gets all that nobody else wants.

* Who comes, or comes back, starts at the least account of those who are here: time spent away
  earns nothing.
* A turn costs at least `TURN_BYTES_MIN`, and what is under way counts already: many tiny runs are
  no way around fairness, and one client does not take all places while others wait.
* Results cannot be divided. Those of runs that were handed in more than a short turn's bytes never
  have all places: the one that is left is for batches and for the results of small runs. So nobody
  who wants little waits for the size of somebody else's.
* A run that had nothing to do rests, a little longer each time. Until a turn of it gives something
  again it counts as away, though it is looked at now and then: the store lists a run that has
  chunks, also while they wait for the END of another table, or while something is wrong with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast._base.ids import RunId
from holdfast.store.rows import ReadyRun

TURN_BYTES_MIN = 4 << 20
"""About what Spark reads in the 0.2 s that the smallest job costs. Smaller: a client of many tiny
runs gets more than its share of time. Larger: it gets less."""

_REST_FIRST_S = 0.02
_REST_LAST_S = 0.25
"""How long a run rests that had nothing to do. Shorter: idle runs cost time. Longer: a chunk that
comes waits so long."""


@dataclass(slots=True)
class _Rest:
    until_s: float
    length_s: float


class Turns:
    """The accounts, and who is under way. Used by one thread, with time handed in."""

    def __init__(self, *, places: int, short_bytes: int) -> None:
        """Begin with empty accounts. `places`: how many turns may be under way together;
        `short_bytes`: the size of a turn that nobody minds waiting for.
        """
        # One place is all there is: then whoever is next has it.
        self._large_max, self._short_bytes = max(1, places - 1), short_bytes
        self._weights: dict[str, int] = {}
        self._clients: dict[str, float] = {}
        self._runs: dict[RunId, float] = {}
        self._under_way: dict[RunId, ReadyRun] = {}
        self._rests: dict[RunId, _Rest] = {}
        self._was_rested = False
        """The last choice was a run that rests when it is not looked at."""

    @property
    def under_way(self) -> int:
        """How many turns have begun and not ended."""
        return len(self._under_way)

    def choose(self, candidates: Sequence[ReadyRun], now_s: float) -> ReadyRun | None:
        """Begin the turn of the run that is next. None: nobody can have one now."""
        waiting = [one for one in candidates if one.run_id not in self._under_way]
        self._admit(candidates)
        is_room = sum(map(self._is_large, self._under_way.values())) < self._large_max
        awake = [
            one
            for one in waiting
            if self._is_awake(one.run_id, now_s) and (is_room or not self._is_large(one))
        ]
        if not awake:
            return None
        busy = Counter(one.client for one in self._under_way.values())
        next_one = min(awake, key=lambda one: self._rank(one, busy))
        self._was_rested = next_one.run_id in self._rests
        self._under_way[next_one.run_id] = next_one
        return next_one

    def is_contended(self, candidates: Sequence[ReadyRun], chosen: ReadyRun) -> bool:
        """Tell whether others wait, so that this turn should be a short one. A run that had nothing
        to do when last asked does not wait: it would shorten everybody's turns for nothing.
        """
        busy = {*self._under_way, *self._rests, chosen.run_id}
        return any(one.run_id not in busy for one in candidates)

    def end(self, run_id: RunId, size: int | None, now_s: float) -> None:
        """End a turn that worked on `size` bytes; None: there was nothing to do."""
        client = self._under_way.pop(run_id).client
        if size is None:
            before = self._rests.get(run_id)
            length_s = min(2 * before.length_s, _REST_LAST_S) if before else _REST_FIRST_S
            self._rests[run_id] = _Rest(now_s + length_s, length_s)
            return
        self._rests.pop(run_id, None)
        cost = max(size, TURN_BYTES_MIN)
        self._clients[client] += cost / self._weights.get(client, 1)
        self._runs[run_id] = self._runs.get(run_id, 0.0) + cost

    def rest(self, run_id: RunId, seconds: float, now_s: float) -> None:
        """Leave a run alone for some time: something is wrong that time may cure."""
        self._rests[run_id] = _Rest(now_s + seconds, _REST_LAST_S)

    def _rank(self, run: ReadyRun, busy: Counter[str]) -> tuple[float, bool, float]:
        """Return what the run with the least of has the next turn. Among equals those that rested
        and the others take turns: the former are lifted with the least all the time, so that they
        would never be ahead of it; and of many, one is awake at any time.
        """
        expected = busy[run.client] * TURN_BYTES_MIN
        account = self._clients[run.client] + expected / self._weights.get(run.client, 1)
        return account, (run.run_id in self._rests) == self._was_rested, self._runs[run.run_id]

    def _is_large(self, run: ReadyRun) -> bool:
        return run.undivided_bytes > self._short_bytes

    def _is_awake(self, run_id: RunId, now_s: float) -> bool:
        rest = self._rests.get(run_id)
        return rest is None or now_s >= rest.until_s

    def _admit(self, candidates: Sequence[ReadyRun]) -> None:
        """Let those in who were not here before, at the least account; forget who has left. Whose
        runs all rest does not hold the least back, and is lifted with it; what it owes stays.
        """
        clients = {one.run_id: one.client for one in (*candidates, *self._under_way.values())}
        here = set(clients.values()) & self._clients.keys()
        working = {one for run_id, one in clients.items() if run_id not in self._rests}
        # While all rest, whoever comes begins where they are.
        least = min((self._clients[one] for one in (here & working) or here), default=0.0)
        self._clients = {one: max(self._clients.get(one, least), least) for one in clients.values()}
        self._weights.update((one.client, one.weight) for one in candidates)
        self._runs = {run_id: self._runs.get(run_id, 0.0) for run_id in clients}
        self._rests = {run: rest for run, rest in self._rests.items() if run in clients}
