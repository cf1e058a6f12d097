"""The state directory: where things are, and that only one process works in it.

holdfast.lock                   locked while a process works here; holds its pid
store.sqlite3                   the store
blobs/                          uploaded chunks
inputs/<run>/<table>/<epoch>/   DataFrame inputs, written once
runs/<run>/<segment>/<work>/<epoch>-<attempt>/<output>/   what attempts wrote
logs/                           Spark's own log
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast._base.crashpoint import crashpoint
from holdfast._base.files import FILE_MODE, make_directories, os_errors, refuse_pattern
from holdfast._base.ids import Epoch, RunId
from holdfast.config import DEFAULT, Config
from holdfast.errors import StateBusy, UsageInvalid
from holdfast.store.contract import Store
from holdfast.store.rows import Fence, Work
from holdfast.store.sqlite import SqliteStore

_LOCKS = Path("/proc/locks")
ENGINE_RESOURCE = "engine"
"""The lease under which everything that has an effect on runs is done."""


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
            crashpoint("lease.take.before")
            fence = store.take_lease(ENGINE_RESOURCE, f"pid {os.getpid()}")
            crashpoint("lease.take.after")
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
        descriptor = _lock(directory)
    try:
        yield
    finally:
        os.close(descriptor)


def owner_of(directory: StateDirectory) -> int | None:
    """Return the process that holds the lock now, or None.

    The kernel's own list is asked. Trying the lock would take it for a moment, and a run that
    starts in that moment would be refused.
    """
    with os_errors(directory.lock):
        if not directory.lock.is_file():
            return None
        number = directory.lock.stat().st_ino
        pid = directory.lock.read_text(encoding="ascii", errors="replace").strip()
        held = _LOCKS.read_text(encoding="ascii") if _LOCKS.is_file() else ""
    # 1: FLOCK  ADVISORY  WRITE 4711 fe:01:1234567 0 EOF
    is_held = re.search(rf"FLOCK +ADVISORY +WRITE +{re.escape(pid)} +\S+:{number} ", held)
    return int(pid) if pid.isdigit() and is_held else None


def _lock(directory: StateDirectory) -> int:
    descriptor = os.open(directory.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        pid = int(text) if text.isdigit() else 0
        raise StateBusy(state=str(directory.root), pid=pid) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def existing(root: Path) -> StateDirectory:
    """Return a state directory that is there.

    Raises:
        UsageInvalid: there is no state here.
    """
    directory = StateDirectory(root.resolve())
    if not directory.store.is_file():
        remedy = "Give the directory that `holdfast run --state` was given."
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
