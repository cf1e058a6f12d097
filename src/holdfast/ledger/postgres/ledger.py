"""The ledger in PostgreSQL. Fulfils `holdfast.ledger.contract.Ledger`.

Transactions, takeover and their reasons: docs/internals/ledger-postgres.md. Invariants:

* Every write of an owner begins with an update of its own row, in the same transaction. Whoever
  took its slots over has removed that row, so a former owner changes nothing (`FENCED`).
* An owner's number is its epoch: numbers only grow and none is given twice.
* A claim or a settlement is carried out once, even if the connection is lost while it commits: the
  owner's row counts its turns, and the next try sees whether the last one was committed.
* At most two connections per process: one for work, one for beats, so that a slow statement does
  not look like death.

Crash points: `postgres.*`.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from holdfast._base.clock import Clock, SystemClock
from holdfast._base.crashpoint import crashpoint
from holdfast._base.files import os_errors
from holdfast._base.invariant import invariant
from holdfast.errors import (
    Damaged,
    Fenced,
    HoldfastError,
    LedgerMismatch,
    LedgerUnreachable,
    StorageFailed,
)
from holdfast.ledger.contract import (
    Claim,
    DeadLetter,
    Grant,
    Limit,
    Outcome,
    Reused,
    Slot,
    SlotHash,
    Step,
    Totals,
    View,
)
from holdfast.ledger.postgres import slots, tallies
from holdfast.ledger.postgres.address import address_of
from holdfast.ledger.postgres.connection import Server, Sql
from holdfast.ledger.postgres.schema import open_schema, read_meta
from holdfast.ledger.postgres.watch import Watch

T = TypeVar("T")

TAKEOVER_S = 15.0
"""An owner whose counter stands still for so long is taken for dead. Shorter: a process that stands
still for a moment loses its slots, and what it had asked is asked again. Longer: after a crash its
slots wait longer for their next owner."""

BEATS = 15
"""Beats in that time. Fewer: some lost ones look like death. More: idle owners keep the server
busy."""

_TURN = """UPDATE holdfast_ledger_owner SET turn = turn + 1, beat = beat + 1
  WHERE id = %s RETURNING turn"""
_BEAT = "UPDATE holdfast_ledger_owner SET beat = beat + 1 WHERE id = %s RETURNING beat"


class PostgresLedger:
    """A ledger that every machine sees. Opening changes nothing but a missing schema.

    The first claim makes this process an owner.
    """

    def __init__(
        self,
        url: str,
        *,
        create: bool = True,
        expected_id: str | None = None,
        clock: Clock | None = None,
        takeover_s: float = TAKEOVER_S,
    ) -> None:
        """Open the ledger; make its tables if they are missing and `create` allows.

        Every process of a ledger must use the same `takeover_s`.

        Raises:
            UsageInvalid, LedgerUnreachable, LedgerRefused: the URL or the server.
            LedgerMismatch: it is not the ledger `expected_id`.
            StoreNewer, DependencyMissing: see `holdfast.errors`.
        """
        address = address_of(url)
        self.label = address.label
        self._clock = clock or SystemClock()
        self._takeover_s = takeover_s
        self._server = Server(address, self._clock)
        try:
            meta = open_schema(self._server, self.label, create=create)
        except BaseException:  # whatever it is, nobody else can close the connection
            self._server.close()
            raise
        found = "none" if meta is None else meta.ledger
        if meta is None or expected_id not in (None, found):
            self._server.close()
            raise LedgerMismatch(path=self.label, found=found, wanted=str(expected_id))
        self._id = found
        self._beats = Server(address, self._clock, patience_s=0.0)
        self._writing = threading.RLock()
        self._watching = threading.Lock()
        self._watch = Watch(takeover_s)
        self._owner = 0
        self._turns = 0
        self._sure_at_s = 0.0
        self._abandoned = False
        self._ended = threading.Event()
        self._beater: threading.Thread | None = None

    @property
    def id(self) -> str:
        """The random id given when the ledger was made."""
        return self._id

    def step(self, name: str, fingerprint: Mapping[str, str], *, on_change: str) -> Step:
        """Register a step, or find it. See the contract."""
        return self._server.transact(
            lambda sql: tallies.register(sql, name, fingerprint, on_change)
        )

    def totals(self, step: int) -> Totals:
        """Return what a step has asked and spent."""
        return self._server.ask(lambda sql: tallies.totals(sql, step))

    def count_reused(self, step: int, added: Reused) -> None:
        """Add to how often recorded answers were given. A lost owner's task counts nothing.

        A connection lost at the very COMMIT may count a task twice: it serves receipts only.
        """
        if not self._abandoned:
            self._server.transact(lambda sql: tallies.add_reused(sql, step, added))

    def reused(self, step: int) -> Reused:
        """Return how often recorded answers were given, over the ledger's life."""
        return self._server.ask(lambda sql: tallies.reused(sql, step))

    def lookup(self, wanted: Sequence[SlotHash]) -> View:
        """Return what is known of slots. Every outcome returned is durable."""
        return self._server.transact(lambda sql: slots.read(sql, wanted, self.label))

    def dead_letters(self, step: int) -> Iterator[DeadLetter]:
        """Yield the rows refused for good under on_error="dead_letter"."""
        for key, reason, at in self._server.transact(lambda sql: tallies.dead_letters(sql, step)):
            yield DeadLetter(step, slots.from_text(key), slots.from_text(reason), at)

    # What an owner does

    def claim(self, claims: Sequence[Claim], *, generation: int, limit: Limit) -> Grant:
        """Take slots, durably, in one transaction. See the contract.

        1. The fence: this owner is still the owner of what it has.
        2. Slots in doubt and new ones are taken, each attempt counted, the budget asked.
        3. COMMIT. Crash before: nothing was claimed. Crash after: in doubt, though nobody was
           called.
        """
        if generation != slots.GENERATION:
            return Grant()

        def take(sql: Sql) -> Grant:
            grant = slots.claim(sql, self._owner, claims, limit)
            crashpoint("postgres.claim.before")
            return grant

        grant = self.as_owner(take)
        crashpoint("postgres.claim.after")
        return grant

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Make outcomes durable before returning. See the contract.

        One transaction for all of them: fence, large answers, outcomes, counters. Crash before its
        end: in doubt, resolved by policy. Crash after: others see them already.
        """
        if not outcomes:
            return
        stamped = [o if o.recorded_ms else self._stamped(o) for o in outcomes]

        def write(sql: Sql) -> None:
            slots.settle(sql, self._owner, stamped)
            crashpoint("postgres.outcome.before")

        self.as_owner(write)
        crashpoint("postgres.outcome.after")

    def _stamped(self, o: Outcome) -> Outcome:
        now = self._clock.wall_ms()
        return Outcome(
            o.slot, o.status, o.answer, o.reason, o.attempts, o.cost_micros, now, o.dead_letter
        )

    def flush(self) -> None:
        """Do nothing: what is settled here is seen by everybody."""

    def release(self, given: Sequence[Slot], *, in_doubt: bool = False) -> None:
        """Give back claimed slots. See the contract."""
        if not given:
            return
        hashes = [slot.hash for slot in given]

        def give(sql: Sql) -> None:
            slots.release(sql, self._owner, hashes, in_doubt=in_doubt)
            crashpoint("postgres.release.before")

        self.as_owner(give)
        crashpoint("postgres.release.after")

    def as_owner(self, work: Callable[[Sql], T]) -> T:
        """Run a transaction of this owner, once, or not at all if it was replaced.

        A lost connection leaves open whether the last try was committed. Its owner's row says so:
        each try adds one turn. The row is locked by a try that is still on its way, so the next
        one waits for its end.
        """
        with self._writing:
            self._own()
            done: list[T] = []

            def fenced(sql: Sql) -> T:
                row = sql.one(_TURN, (self._owner,))
                if row is None:
                    raise Fenced(resource=self.label, epoch=self._owner)
                if row[0] == self._turns + 2:
                    invariant(len(done) == 1, "a turn that nobody took")
                    sql.run(
                        "UPDATE holdfast_ledger_owner SET turn = %s WHERE id = %s",
                        (self._turns + 1, self._owner),
                    )
                    return done[0]
                done.clear()
                done.append(work(sql))
                return done[0]

            sent_s = self._clock.monotonic_s()
            try:
                result = self._server.transact(fenced)
            except LedgerUnreachable:
                # Nobody can say whether it was committed: this owner cannot go on from here.
                self.abandon()
                raise
            self._turns += 1
            self._sure_at_s = max(self._sure_at_s, sent_s)
            return result

    def _own(self) -> None:
        """Become an owner: a row of our own, and a thread that lets its counter grow."""
        if self._abandoned:
            raise StorageFailed(path=self.label, error="this owner was given up; open it again")
        if self._owner:
            return
        values = (socket.gethostname(), os.getpid(), self._clock.wall_ms())
        sent_s = self._clock.monotonic_s()
        row = self._server.transact(
            lambda sql: sql.one(
                "INSERT INTO holdfast_ledger_owner(host, pid, started_ms) VALUES (%s, %s, %s)"
                " RETURNING id",
                values,
            )
        )
        crashpoint("postgres.owner.after")
        self._owner, self._sure_at_s = (row or (0,))[0], sent_s
        self._beater = threading.Thread(target=self._beat_on, name="holdfast-beat", daemon=True)
        self._beater.start()

    # Life and death

    def _beat_on(self) -> None:
        """Say that we live, and see who does not. The edge of a thread."""
        while not self._ended.wait(self._takeover_s / BEATS):
            try:
                self._beat()
                self._reap(self._beats, None)
            except Fenced:
                return  # the next write is refused and says so
            except HoldfastError:  # the server is away: whoever needs it waits, or says so
                continue

    def _beat(self) -> None:
        """Let our counter grow. It need not survive a crash of the server: others then wait too."""
        sent_s = self._clock.monotonic_s()

        def grow(sql: Sql) -> None:
            sql.run("SET LOCAL synchronous_commit = off")
            if sql.one(_BEAT, (self._owner,)) is None:
                raise Fenced(resource=self.label, epoch=self._owner)

        self._beats.transact(grow)
        self._sure_at_s = max(self._sure_at_s, sent_s)

    @property
    def is_sure(self) -> bool:
        """Tell whether nobody can have taken this owner's slots yet."""
        silent_s = self._clock.monotonic_s() - self._sure_at_s
        return not self._abandoned and silent_s < self._takeover_s / 2

    def assure(self) -> None:
        """Make sure that this owner still has its slots, by asking the server.

        Raises:
            Fenced: it has not.
            LedgerUnreachable: nobody can tell.
        """
        self.as_owner(lambda _: None)

    def reap(self, suspected: Sequence[int]) -> bool:
        """Take the slots of owners that are dead. See the contract."""
        others = [owner for owner in suspected if owner != self._owner]
        return bool(others) and self._reap(self._server, others)

    def _reap(self, server: Server, suspected: Sequence[int] | None) -> bool:
        """Look at owners, all or some. Returns whether any is gone."""
        rows = server.transact(
            lambda sql: sql.rows("SELECT id, beat FROM holdfast_ledger_owner WHERE id <> 0")
        )
        beats = dict(rows)
        watched = list(beats) if suspected is None else suspected
        gone = [owner for owner in watched if owner not in beats]
        with self._watching:
            now_s = self._clock.monotonic_s()
            dead = [
                owner
                for owner in watched
                if owner in beats
                and owner != self._owner
                and self._watch.is_dead(owner, beats[owner], now_s)
            ]
        gone += [owner for owner in dead if self._take_over(server, owner, beats[owner])]
        with self._watching:
            self._watch.forget(gone)
        return bool(gone)

    def _take_over(self, server: Server, owner: int, beat: int) -> bool:
        """End an owner whose counter still stands where it stood. Returns whether it is gone.

        One transaction: its open slots are in doubt, its row is gone. A row that is locked belongs
        to somebody who writes at this moment, and is left alone.
        """

        def take(sql: Sql) -> bool:
            found = sql.one(
                "SELECT 1 FROM holdfast_ledger_owner WHERE id = %s AND beat = %s"
                " FOR UPDATE SKIP LOCKED",
                (owner, beat),
            )
            if found is None:
                query = "SELECT 1 FROM holdfast_ledger_owner WHERE id = %s"
                return sql.one(query, (owner,)) is None
            slots.end_owner(sql, owner)
            sql.rows("SELECT 1")  # every statement above has reached the server
            crashpoint("postgres.takeover.before")
            return True

        taken = server.transact(take)
        crashpoint("postgres.takeover.after")
        return taken

    def verify(self) -> None:
        """See that the tables are there. Outcomes are checked when they are read."""
        meta = self._server.transact(read_meta)
        if meta is None or meta.ledger != self._id:
            raise Damaged(path=self.label, what="its tables were removed or replaced")

    def tidy(self) -> None:
        """Do nothing: death is seen over time, by whoever works or waits."""

    def rate_file(self, step: int) -> Path:
        """Return the file by which the tasks of this host share a step's rate."""
        directory = Path(tempfile.gettempdir()) / f"holdfast-rate-{os.getuid()}"
        with os_errors(directory):
            directory.mkdir(mode=0o700, exist_ok=True)
            found = directory.lstat()
        if directory.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise StorageFailed(path=str(directory), error="others may write to it")
        return directory / f"{self._id}-{step}"

    # The end

    @property
    def is_usable(self) -> bool:
        """Tell whether this handle may still claim."""
        return not self._abandoned

    def abandon(self) -> None:
        """End this owner as a crash would, at once if the server can be told."""
        self._abandoned = True
        self._ended.set()
        try:
            if self._owner:
                self._beats.transact(lambda sql: slots.end_owner(sql, self._owner))
        except HoldfastError:  # it cannot be told: others see the silence
            pass
        finally:
            self._server.close()
            self._beats.close()

    def close(self) -> None:
        """End this owner. Slots still open are in doubt afterwards."""
        self._ended.set()
        if self._beater is not None:
            self._beater.join()
        try:
            with self._writing:
                if self._owner and not self._abandoned:
                    self._server.transact(lambda sql: slots.end_owner(sql, self._owner))
                    self._owner = 0
        finally:
            self._server.close()
            self._beats.close()
