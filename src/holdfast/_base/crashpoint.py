"""Named places between two effects where a crash is tried on purpose.

`crashpoint(name)` does nothing in production. A crash test arms one (name, hit) pair, in this
process by `arm` or in a child process by the environment variable `HOLDFAST_CRASH=name:hit`, and
the process then ends itself with SIGKILL there: no handler, no flush, no clean-up.
With `HOLDFAST_CRASH_RECORD=FILE` each hit is appended to FILE instead, which lists what to try.

`POINTS` is the registry. Each name is declared once, used once, and tested.
"""

from __future__ import annotations

import difflib
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from holdfast.errors import UsageInvalid

ARM_VARIABLE = "HOLDFAST_CRASH"
RECORD_VARIABLE = "HOLDFAST_CRASH_RECORD"

POINTS: dict[str, str] = {
    "lease.take.before": "The state is locked, the epoch is still the old owner's.",
    "lease.take.after": "The new epoch is durable, nothing has been done under it.",
    "intake.create.after": "The run exists, no input is bound.",
    "intake.frame.written": "A DataFrame input is in files, none of them is bound.",
    "intake.frame.synced": "The files of a DataFrame input are durable, none of them is bound.",
    "intake.bind.before": "Inputs are listed and hashed, nothing of it is durable.",
    "intake.bind.after": "All chunks and ENDs of the inputs are durable, nothing is planned.",
    "intake.blob.after": "The bytes of a chunk are durable, no row binds them.",
    "intake.chunk.after": "The chunk is bound and in the log, the sender has not heard of it.",
    "intake.end.after": "END is durable, the sender has not heard of it.",
    "gateway.create.after": "A client's run exists, the client has not heard of it.",
    "gateway.cancel.after": "A run is cancelled, its client has not heard of it.",
    "engine.plan.before": "A plan was computed, nothing of it is durable.",
    "engine.plan.after": "The plan and the topic's offset are durable, nothing has an effect.",
    "engine.attempt.after": "The attempt is counted, the job has not begun.",
    "engine.job.after": "The job wrote its files, none of them is durable.",
    "engine.series.after": "All results are computed, none of their files is durable.",
    "engine.sync.after": "The files are durable, nobody may see them.",
    "engine.commit.after": "The batch is committed, its successor is not planned.",
    "engine.fail.before": "An attempt failed, the failure is not recorded.",
    "engine.fail.after": "The failure of an attempt is recorded, nothing was done about it.",
    "engine.sweep.before": "Orphans are known, none is removed.",
    "engine.sweep.each": "One orphan is removed, others remain.",
    "relay.send.before": "References are in the outbox, the log elsewhere has not heard of them.",
    "relay.send.after": "The log elsewhere confirmed references, they have not come back.",
    "relay.read.after": "References came back from the log elsewhere, no plan holds them.",
    "relay.note.after": "The log elsewhere knows how far it was read, nothing else changed.",
    "gc.orphan.each": "One orphan directory is removed, others remain.",
    "gc.temporary.after": "Half-written uploads are removed, unbound ones remain.",
    "gc.upload.each": "The unbound uploads of one run are removed, others remain.",
    "gc.record.each": "The records of one closed topic are removed, others remain.",
    "delivery.move.after": "A state move is durable, it has not been acted on.",
    "delivery.export.written": "One export is durable under its temporary name.",
    "parts.replace.aside": "What a directory of parts replaces is aside, nothing is in its place.",
    "delivery.export.renamed": "One export has its final name, the run is not DONE.",
    "delivery.done.before": "All exports stand, the run is not DONE.",
    "delivery.done.after": "The run is DONE, the caller has not heard of it.",
    "closing.done.before": "A run is COMPLETING, all its pieces are there.",
    "closing.done.after": "The run is DONE and its notice in the outbox, nothing is sent.",
    "external.forward.before": "An external run is FORWARDING, its producer was not asked.",
    "external.forward.sent": "The producer was asked, the run is still FORWARDING.",
    "external.forward.after": "The run is RECEIVING, nothing was received.",
    "external.header.after": "A header is durable, its message is not acked.",
    "external.upload.after": "The bytes of a piece are durable, no row binds them.",
    "external.piece.after": "A piece is bound, its message is not acked.",
    "external.ack.after": "A message is acked, the next one is not looked at.",
    "external.fail.after": "A run whose producer contradicts itself is FAILED.",
    "notice.attempt.after": "An attempt at a notice is counted, nothing is sent.",
    "notice.send.after": "The receiver has answered, the outbox does not know it.",
    "notice.record.after": "What came of a notice is recorded.",
    "sweep.abandon.after": "An idle run is ABANDONED, nothing of it is removed.",
    "sweep.mark.after": "A run is SWEPT, all its bytes are there.",
    "sweep.queues.after": "The queues of an external run are gone, no row says so.",
    "sweep.topics.after": "The topics of a run are gone, its bytes may be there.",
    "sweep.files.each": "One directory of a swept run is gone, others remain.",
    "sweep.blob.each": "One blob of a swept run is gone, others remain.",
    "sweep.clear.after": "The rows of a swept run are gone, the tombstone stays.",
    "blobs.create.written": "A blob is durable under its temporary name.",
    "blobs.create.linked": "A blob has its name, the directory entry may not be durable.",
    "router.postpone.after": "A copy of a message waits for its next turn; it is not acked.",
    "router.chunk.forwarded": "A chunk is committed and at its shard, it is not acked.",
    "router.end.forwarded": "One shard has an END, other shards may not; it is not acked.",
    "router.end.recorded": "Every shard has an END, intake owes it no more; it is not acked.",
    "queue.notice.sent": "A client's queue has its notices, it is not recorded that it has.",
    "queue.bury.after": "A dead letter is confirmed, the message it copies is not acked.",
    "store.transaction.before": "A store transaction is complete in memory, not committed.",
    "store.transaction.after": "A store transaction is durable, its caller has not heard of it.",
    "ledger.owner.before": "An owner's lock is held, no row names it.",
    "ledger.owner.after": "An owner is registered, it has claimed nothing.",
    "ledger.segment.before": "A segment's header is durable, no row names it.",
    "ledger.segment.after": "A segment is registered, it holds no outcome.",
    "ledger.claim.before": "A claim is complete in memory, not committed.",
    "ledger.claim.after": "Intents are durable, the provider has not heard of them.",
    "ledger.call.before": "A call is about to be made, its intent is durable.",
    "ledger.call.after": "The provider has answered, the outcome is not durable.",
    "ledger.outcome.before": "Outcomes are written to the segment, not durable.",
    "ledger.outcome.after": "Outcomes are durable, nobody has seen them.",
    "ledger.blob.after": "A large answer is durable, no outcome names it.",
    "ledger.index.before": "Rows of durable outcomes are complete in memory, not committed.",
    "ledger.index.after": "Others can see the outcomes.",
    "ledger.release.before": "Slots are given back in memory, not committed.",
    "ledger.release.after": "Slots are given back.",
    "ledger.seal.after": "A segment is sealed, it is not compacted.",
    "ledger.reap.before": "A dead owner was read out, nothing of it is committed.",
    "ledger.reap.after": "A dead owner's open slots are in doubt, its lock file is still there.",
    "ledger.parquet.after": "A settled file is durable, no row names it.",
    "ledger.switch.before": "The switch to a settled file is complete in memory, not committed.",
    "ledger.switch.after": "The settled file counts, what it replaces is still there.",
    "ledger.delete.after": "One replaced file is removed, others remain.",
    "postgres.schema.before": "The tables of a shared ledger are complete, not committed.",
    "postgres.schema.after": "A shared ledger exists, it is empty.",
    "postgres.owner.after": "An owner's row is durable, it has claimed nothing and not beaten.",
    "postgres.claim.before": "A claim is complete on the server, not committed.",
    "postgres.claim.after": "Intents are durable, the provider has not heard of them.",
    "postgres.outcome.before": "Outcomes are complete on the server, not committed.",
    "postgres.outcome.after": "Outcomes are durable and visible, the task has not heard of it.",
    "postgres.release.before": "Slots are given back on the server, not committed.",
    "postgres.release.after": "Slots are given back.",
    "postgres.takeover.before": "A silent owner's end is complete on the server, not committed.",
    "postgres.takeover.after": "A silent owner's slots are in doubt, nobody has claimed them.",
    "calls.rewrite.after": "Settled files without the dropped outcomes are durable, none counts.",
    "calls.drop.before": "Dropping outcomes is complete in memory, not committed.",
    "calls.drop.after": "The outcomes are out of the ledger, the old files are still there.",
    "calls.delete.after": "One file with dropped outcomes is removed, others remain.",
    "calls.shared.before": "Dropping outcomes is complete on the server, not committed.",
    "calls.shared.after": "The outcomes are out of a shared ledger, the person was not told.",
    "worker.journal.written": "A record is at the end of the journal, not durable.",
    "worker.compact.written": "A new journal is durable under its temporary name.",
    "worker.compact.renamed": "A new journal has its name, which may not be durable.",
    "worker.data.before": "Messages were received, the journal does not know them.",
    "worker.data.after": "Messages are committed, their senders have not heard of it.",
    "worker.ack.after": "Messages are acked, no chunk of them is applied.",
    "worker.apply.before": "A chunk is about to be applied.",
    "worker.apply.after": "A chunk is applied in memory, no state commit holds it.",
    "worker.state.after": "A state commit is durable, nothing followed from it.",
    "worker.end.after": "An END is committed and acked, what it completes is not looked at.",
    "worker.check.before": "Messages are dealt with, what they complete is not looked at.",
    "worker.buffer.applied": "Waiting chunks are applied in memory, no state commit holds them.",
    "worker.publish.before": "A client's last chunk is in a state commit, no result is sent.",
    "worker.send.before": "Messages are about to be sent to one destination.",
    "worker.send.after": "Messages are sent, no send commit says so.",
    "worker.results.before": "All results are sent, no commit says so.",
    "worker.results.after": "All results are committed as sent, no END is sent.",
    "worker.finish.before": "The ENDs are sent, no commit says so.",
    "worker.finish.after": "The ENDs are committed as sent, the client's state is still there.",
    "worker.clear.after": "All of a client but its name is deleted.",
    "worker.inherit.before": "A partition is taken, its journal is still its former owner's.",
    "worker.inherit.after": "The journal of a partition is copied, the former one is still there.",
    "worker.recover.each": "What a crash left of one client is applied, others remain.",
    "client.create.after": "A submission's run exists, no chunk of it was sent.",
    "client.chunk.after": "A chunk of a submission is acknowledged, others are not sent.",
    "client.end.after": "One END of a submission is acknowledged, others are not said.",
    "client.piece.after": "One piece of a result is fetched, others are not.",
    "client.result.written": "A fetched result is durable under its temporary name.",
    "client.result.renamed": "A fetched result has its name, others are not fetched.",
}
"""Every crash point, with what a crash there leaves behind."""


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class _Armed:
    """Counts hits of one name and dies at the chosen one."""

    def __init__(self, name: str, hit: int, die: Callable[[], None]) -> None:
        self._name, self._left, self._die = name, hit, die

    def __call__(self, name: str) -> None:
        if name == self._name:
            self._left -= 1
            if self._left == 0:
                self._die()


class _Recording:
    """Appends every hit to a file, one line each, flushed at once: the process may be killed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, name: str) -> None:
        with self._path.open("a", encoding="ascii") as file:
            file.write(name + "\n")


_hook: Callable[[str], None] | None = None


def crashpoint(name: str) -> None:
    """Mark the boundary between two effects. Does nothing unless a test armed it."""
    if _hook is not None:
        _hook(name)


def arm(name: str, hit: int, die: Callable[[], None] = _die) -> None:
    """Make this process die at the `hit`-th pass of `name` (counted from 1)."""
    global _hook
    if name not in POINTS:
        raise ValueError(f"no crash point is named {name}; see holdfast._base.crashpoint.POINTS")
    _hook = _Armed(name, hit, die)


def record(path: Path) -> None:
    """Append every pass of a crash point to `path`."""
    global _hook
    _hook = _Recording(path)


def disarm() -> None:
    """Make every crash point do nothing again."""
    global _hook
    _hook = None


def recorded(path: Path) -> Counter[str]:
    """Return how often each point was passed, in order of first pass."""
    return Counter(in_order(path))


def in_order(path: Path) -> list[str]:
    """Return the point of each pass, as they were recorded."""
    return path.read_text(encoding="ascii").split() if path.exists() else []


def arm_from_environment() -> None:
    """Arm or record as the environment says. Each process of Holdfast calls it when it starts."""
    if value := os.environ.get(ARM_VARIABLE):
        name, _, hit = value.partition(":")
        if name not in POINTS or not (hit or "1").isdigit():
            near = difflib.get_close_matches(name, POINTS, n=1)
            remedy = f"Did you mean {near[0]}?" if near else "Write it as POINT or POINT:HIT."
            raise UsageInvalid(what=f"{ARM_VARIABLE}={value} names no crash point", remedy=remedy)
        arm(name, int(hit or "1"))
    elif value := os.environ.get(RECORD_VARIABLE):
        record(Path(value))
