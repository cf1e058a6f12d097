"""The state directory: where things are, and who works in it: one `run`, or the parts of a
service.

holdfast.lock                   locked while somebody works here: by one `run`, or shared by parts
engine.lock, delivery.lock      locked by the part that is active (`holdfast.store.leases`)
parts/                          which parts live, and their beats (`holdfast.engine.parts`)
store.sqlite3                   the store
blobs/                          uploaded chunks
inputs/<run>/<table>/<epoch>/   DataFrame inputs, written once
runs/<run>/<segment>/<work>/<epoch>-<attempt>/<output>/   what attempts wrote
logs/                           Spark's own log
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast._base.clock import SystemClock, pause
from holdfast._base.files import make_directories, os_errors, refuse_pattern
from holdfast._base.ids import Epoch, RunId
from holdfast._base.locks import busy, holders, lock_alone, open_lock, try_lock
from holdfast.config import DEFAULT, Config
from holdfast.engine.belonging import refuse_stranger
from holdfast.engine.parts import Life, living
from holdfast.engine.spec import PipelineSpec
from holdfast.errors import UsageInvalid
from holdfast.store.contract import Store
from holdfast.store.leases import ENGINE_RESOURCE, granted
from holdfast.store.rows import Fence, KeptPipeline, Work
from holdfast.store.sqlite import SqliteStore

_SHARE_WAIT_S = 5.0
"""How long a part waits for another one that is just opening the state alone. Shorter: parts that
start together refuse each other. Longer: one that meets a `run` waits before it says so."""
_SHARE_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """Paths below a state directory."""

    root: Path

    @property
    def lock(self) -> Path:
        """The file whose lock says that somebody works here."""
        return self.root / "holdfast.lock"

    @property
    def store(self) -> Path:
        """The store's file."""
        return self.root / "store.sqlite3"

    @property
    def blobs(self) -> Path:
        """The directory of uploaded chunks."""
        return self.root / "blobs"

    @property
    def inputs(self) -> Path:
        """The directory of the DataFrame inputs of all runs."""
        return self.root / "inputs"

    @property
    def runs(self) -> Path:
        """The directory of what the attempts of all runs wrote."""
        return self.root / "runs"

    @property
    def parts(self) -> Path:
        """The directory in which each living part of a service has a file."""
        return self.root / "parts"

    @property
    def spark_log(self) -> Path:
        """Spark's own log."""
        return self.root / "logs" / "spark.log"

    def inputs_of(self, run_id: RunId) -> Path:
        """Return where the DataFrame inputs of a run are written."""
        return self.inputs / run_id

    def runs_of(self, run_id: RunId) -> Path:
        """Return where the attempts of a run write."""
        return self.runs / run_id

    def attempt(self, work: Work, fence: Fence, attempt: int) -> Path:
        """Return the directory of one attempt: no two attempts ever share one."""
        place = "results" if work.plan.segment == 0 else f"segment-{work.plan.segment}"
        runs = self.runs_of(work.plan.run_id)
        return runs / place / work.plan.work_id / f"{fence.epoch}-{attempt}"


def epoch_of(attempt: Path) -> Epoch:
    """Return under which grant of the lease an attempt's directory was made."""
    return Epoch(int(attempt.name.partition("-")[0]))


@dataclass(frozen=True, slots=True)
class Held:
    """A state directory that this process may change."""

    directory: StateDirectory
    store: Store
    fence: Fence


@contextmanager
def hold(root: Path, config: Config = DEFAULT) -> Iterator[Held]:
    """Lock a state directory, making it if it is missing, and take its lease.

    1. `flock` on the lock file. The kernel drops it with the process, so a restart after SIGKILL
       never waits, and a second process stops here, before any effect.
    2. The next epoch is taken at once. Crash before: the old epoch's owner is dead anyway.
       From here on, whatever still carries an older epoch changes nothing.

    Raises:
        StateBusy: another process holds it; its pid is named.
    """
    directory = StateDirectory(root.resolve())
    refuse_pattern(directory.root)
    with os_errors(root):
        make_directories(directory.root)
    with locked(directory):
        store = SqliteStore.open(directory.store, config)
        try:
            owner = f"pid {os.getpid()}"
            fence = granted(lambda: store.take_lease(ENGINE_RESOURCE, owner))
            yield Held(directory, store, fence)
        finally:
            store.close()


@contextmanager
def locked(directory: StateDirectory) -> Iterator[None]:
    """Keep every other process from working in a state directory. Changes nothing in it.

    Raises:
        StateBusy: another process holds it; its pid is named.
    """
    with os_errors(directory.root):
        descriptor = lock_alone(directory.lock, of=directory.root)
    try:
        yield
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Shared:
    """A state directory that this process shares with the other parts of a service.

    What it may change without a lease stands with each transaction of the store.
    """

    directory: StateDirectory
    store: Store
    life: Life


@contextmanager
def share(
    root: Path, config: Config = DEFAULT, *, part: str, spec: PipelineSpec | None = None
) -> Iterator[Shared]:
    """Open a state directory, making it if it is missing, as one part of a service among others.

    `part` is its name (gateway, engine, delivery), for `holdfast status`. With `spec` the state
    belongs to that pipeline from now on, or refuses it.

    1. `flock`, alone if nobody else is here, else shared: a `run` and a service keep each other
       off, parts do not.
    2. The store is opened, and migrated; the pipeline is kept in it, or refused. One that changed
       is taken only by a part that is alone: the others would go on with the old one.
    3. The lock becomes a shared one, and the part shows that it lives.

    Raises:
        StateBusy: a `run` holds it; its pid is named.
        StateMismatch: it belongs to another pipeline, or to one that has changed.
    """
    directory = StateDirectory(root.resolve())
    refuse_pattern(directory.root)
    with os_errors(root):
        make_directories(directory.root)
        descriptor, alone = _lock_shared(directory)
    try:
        store = SqliteStore.open(directory.store, config)
        try:
            if spec is not None:
                rule = refuse_stranger(spec, str(directory.root), alone=alone)
                store.keep_pipeline(KeptPipeline(spec.name, spec.fingerprint), rule)
            if alone and not try_lock(descriptor, fcntl.LOCK_SH):
                raise busy(directory.lock, descriptor, of=directory.root)
            with living(directory.parts, part, config.hang_patience_s) as life:
                yield Shared(directory, store, life)
        finally:
            store.close()
    finally:
        os.close(descriptor)


def owner_of(directory: StateDirectory) -> int | None:
    """Return the `run` that holds the lock now, or None."""
    return next(iter(holders(directory.lock, "WRITE")), None)


def _lock_shared(directory: StateDirectory) -> tuple[int, bool]:
    """Return the descriptor that holds the lock, and whether it holds it alone."""
    descriptor = open_lock(directory.lock)
    clock = SystemClock()
    until_s = clock.monotonic_s() + _SHARE_WAIT_S
    while True:
        for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH):
            if try_lock(descriptor, kind):
                return descriptor, kind == fcntl.LOCK_EX
        if clock.monotonic_s() >= until_s:
            error = busy(directory.lock, descriptor, of=directory.root)
            os.close(descriptor)
            raise error
        pause(_SHARE_PAUSE_S)


def existing(root: Path) -> StateDirectory:
    """Return a state directory that is there.

    Raises:
        UsageInvalid: there is no state here.
    """
    directory = StateDirectory(root.resolve())
    if not directory.store.is_file():
        remedy = "Give the directory that `holdfast run` or `holdfast up` was given."
        raise UsageInvalid(what=f"{root} holds no Holdfast state", remedy=remedy)
    return directory


@contextmanager
def look(root: Path, config: Config = DEFAULT) -> Iterator[tuple[StateDirectory, Store]]:
    """Open a state directory for questions only: no lock, no lease, no migration, whoever works
    in it.

    Raises:
        UsageInvalid: there is no state here.
        StoreOlder: an older Holdfast made it.
    """
    directory = existing(root)
    store = SqliteStore.look(directory.store, config)
    try:
        yield directory, store
    finally:
        store.close()
