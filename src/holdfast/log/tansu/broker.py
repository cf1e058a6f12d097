"""One broker process: started, watched, started again when it dies, ended by its pid.

A thread owns the child from its birth to its end: the kernel ends a child with the *thread* that
made it, and only its maker is told when it ended. So no broker outlives this process, and none is
left as a zombie.
"""

from __future__ import annotations

import copy
import errno
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast._base.clock import Clock
from holdfast._base.files import FILE_MODE, make_directories, os_errors
from holdfast._base.locks import lock_alone
from holdfast._base.processes import listens
from holdfast.errors import HoldfastError
from holdfast.log.tansu.settings import TansuSettings, environment_of, find_binary
from holdfast.log.tansu.trouble import diagnose, not_spawned, port_taken

DEATHS_MAX = 3
"""Deaths of a broker that never served, after which it is not started again: it cannot."""
QUICK_S = 2.0
PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 2.0
"""Between a death and the next birth; doubled while it dies within QUICK_S of its birth: a broker
that cannot live must not spin."""
HINDERED_S = 5.0
"""How long somebody else may hold the port, or the system refuse us a process, before it is said.
Shorter: what is left of a process that was killed, or a connection that was given this port by
chance, is taken for a server. Longer: so much later it is said."""
PORTS_MAX = 3
"""How many free ports are tried. Each may be taken by somebody before the broker listens there."""
LOOK_S = 0.05
STOP_S = 5.0
"""How long it may take to end when it is asked to."""
TAIL_BYTES = 16 << 10


class Broker:
    """A broker on a port of this machine: of its loopback, unless told otherwise."""

    def __init__(
        self, settings: TansuSettings, clock: Clock, environment: Mapping[str, str]
    ) -> None:
        self._settings, self._clock, self._environment = settings, clock, environment
        self.port = 0
        self.restarts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._served, self._gave_up = threading.Event(), threading.Event()
        self._hindrance: HoldfastError | None = None
        self._ports = 0
        self._guard = threading.Lock()
        self.output = Path()
        self._made: Path | None = None
        self._lock: int | None = None

    @property
    def is_running(self) -> bool:
        """Whether it was started and not stopped: dead or alive, it is being kept."""
        return self._thread is not None

    @property
    def pid(self) -> int | None:
        """The process that runs now; None: there is none at this moment."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def has_given_up(self) -> bool:
        """Whether it cannot be started again: as long as somebody else holds its port, or the
        system refuses us what it takes.
        """
        return self._gave_up.is_set()

    def start(self, is_ready: Callable[[int], bool]) -> None:
        """Start it, and return when `is_ready(port)` says that it serves.

        Raises:
            DependencyMissing: there is no binary.
            StateBusy: another process runs a broker on the same file; its pid is named.
            LogNotStarted: it ended, or does not serve in time; its output says why.
            HoldfastError: what it takes to start it cannot be read.
        """
        binary = find_binary(self._environment)
        folder = self._folder()
        try:
            self._hold_file()
            self.output = folder / "tansu.log"
            with os_errors(self.output):
                _set_aside(self.output)
            self._run(binary, folder, is_ready)
        except BaseException:  # whatever it was, no half-started broker stays behind
            self.stop(keep_output=True)
            raise

    def _run(self, binary: str, folder: Path, is_ready: Callable[[int], bool]) -> None:
        self.port, self._ports = self._settings.port, 0
        self._stopping.clear()
        self._served.clear()
        self._gave_up.clear()
        self._hindrance = None
        self.restarts = 0
        command = [sys.executable, "-m", "holdfast.log.tansu.child", str(os.getpid()), binary]
        thread = threading.Thread(
            target=self._keep, args=(command, folder), name="holdfast-broker", daemon=True
        )
        thread.start()
        self._thread = thread
        deadline_s = self._clock.monotonic_s() + self._settings.startup_timeout_s
        # Asked before ours listens, somebody else might answer.
        while not (self._has_port() and is_ready(self.port)):
            self._gave_up.wait(LOOK_S)
            if self._gave_up.is_set() or self._clock.monotonic_s() > deadline_s:
                raise self.trouble()
        self._served.set()

    def _hold_file(self) -> None:
        """Keep other brokers off our file: nothing says that two of them agree on offsets."""
        if self._settings.engine == "sqlite":
            file = Path(self._settings.place).resolve()
            with os_errors(file):
                self._lock = lock_alone(file.with_name(f"{file.name}.lock"), of=file)

    def _has_port(self) -> bool:
        pid = self.pid
        return pid is not None and listens(pid, self.port)

    def _folder(self) -> Path:
        """Return the directory it runs in: of its file, the one that is named, or a new one."""
        if self._settings.engine == "sqlite":
            folder = Path(self._settings.place).parent
        elif self._settings.data_dir:
            folder = Path(self._settings.data_dir)
        else:
            self._made = Path(tempfile.mkdtemp(prefix="holdfast-tansu-"))
            return self._made
        with os_errors(folder):
            make_directories(folder.absolute())
        return folder.absolute()

    def _keep(self, command: list[str], folder: Path) -> None:
        """Run it, again and again, until it is to stop, or turns out not to start at all."""
        pause_s = PAUSE_MIN_S
        while (process := self._birth(command, folder)) is not None:
            born_s = self._clock.monotonic_s()
            process.wait()
            self.restarts += 1
            if self.restarts == DEATHS_MAX and not self._served.is_set():
                self._gave_up.set()
                return
            is_quick = self._clock.monotonic_s() - born_s < QUICK_S
            pause_s = min(pause_s * 2, PAUSE_MAX_S) if is_quick else PAUSE_MIN_S
            self._stopping.wait(pause_s)

    def _birth(self, command: list[str], folder: Path) -> subprocess.Popen[bytes] | None:
        """Start it; None: it is to stop, or cannot be started.

        One that has served is tried again and again, and gives up meanwhile: when what hinders it
        is gone, it is back.
        """
        give_up_s = self._clock.monotonic_s() + HINDERED_S
        while not self._stopping.is_set():
            try:
                if self._takes_port():
                    process = self._spawn(command, folder)
                    self._hindrance = None
                    self._gave_up.clear()
                    return process
                is_hopeless = False
            except HoldfastError as error:
                self._hindrance, is_hopeless = error, not self._served.is_set()
            except (OSError, ValueError) as error:
                self._hindrance = not_spawned(error, str(self.output))
                is_hopeless = not self._served.is_set()
            if is_hopeless or self._clock.monotonic_s() > give_up_s:
                self._gave_up.set()
                if not self._served.is_set():
                    return None
            self._stopping.wait(LOOK_S)
        return None

    def _takes_port(self) -> bool:
        """Tell whether its port is to be had. Until it has served, a taken one is exchanged, unless
        it was named.
        """
        if not self.port:
            self.port, self._ports = _free_port(self._settings.host), self._ports + 1
        if _is_free(self._settings.host, self.port):
            return True
        self._hindrance = port_taken(f"{self._settings.host}:{self.port}", str(self.output))
        if not (self._settings.port or self._served.is_set()) and self._ports < PORTS_MAX:
            self.port = 0
        return False

    def _spawn(self, command: list[str], folder: Path) -> subprocess.Popen[bytes] | None:
        environment = environment_of(self._settings, self.port, self._environment)
        output = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
        try:
            with self._guard:
                if self._stopping.is_set():
                    return None
                self._process = subprocess.Popen(  # noqa: S603 - our module, the user's binary
                    command,
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
                return self._process
        finally:
            os.close(output)

    def trouble(self, otherwise: str = "it did not answer in time") -> HoldfastError:
        """Return why it does not serve: what keeps us from starting it, or what its output says."""
        if (hindrance := self._hindrance) is not None:
            return copy.copy(hindrance)  # raised many times, in several threads
        data = self.output.read_bytes()[-TAIL_BYTES:] if self.output.exists() else b""
        return diagnose(data.decode("utf-8", "replace"), str(self.output), otherwise)

    def stop(self, *, keep_output: bool = False) -> None:
        """End it, and return when it is gone. Again: no effect."""
        with self._guard:
            self._stopping.set()
            process, thread = self._process, self._thread
            if process is not None and process.poll() is None:
                process.terminate()
        if thread is not None:
            thread.join(STOP_S)
            if thread.is_alive() and process is not None:
                process.kill()
                thread.join()
        self._process = self._thread = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._made is not None and not keep_output:
            shutil.rmtree(self._made, ignore_errors=True)
            self._made = None


def _set_aside(output: Path) -> None:
    """Begin a new output; that of the last time is kept, those before it are not."""
    if output.exists():
        os.replace(output, output.with_name(f"{output.name}.1"))


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError:  # no address of this machine, of which the broker's output tells
            probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _is_free(host: str, port: int) -> bool:
    """Tell whether the broker could listen there, which asks as it does."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE  # of anything else its output tells
        return True
