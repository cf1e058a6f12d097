"""`holdfast up`: gateway, engine and delivery as child processes, watched and started again.

Each child is one of our own verbs, in a session of its own, so that Ctrl-C reaches only this
process; the kernel ends it with this process, however that ends. What a child writes is passed on
line by line behind its name. When to start again, and when to give up: `upkeep`.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

from holdfast._base.clock import Clock, SystemClock, pause
from holdfast._base.processes import SUPERVISOR_VARIABLE, adopt_orphans, end_children
from holdfast._base.tell import tell
from holdfast.amqp.address import refuse_password
from holdfast.cli.exits import STOPPED
from holdfast.cli.gateway import needing_server
from holdfast.cli.tell import JsonTeller, TextTeller
from holdfast.cli.turns import stop_on_signals
from holdfast.cli.upkeep import Pulse, Restarts, ending
from holdfast.config import Config
from holdfast.engine.parts import BEAT_S, beat_of, part_file
from holdfast.engine.spec import PipelineSpec
from holdfast.engine.state import StateDirectory, share
from holdfast.errors import DiskFull, StorageFailed, UsageInvalid

DRAIN_S = 9.0
"""How long children have to end after they are asked to: with the rest of the way it is 10 s, after
which other supervisors lose patience."""
_LOOK_S = 0.05
_LISTEN_WAIT_S = 5.0
"""How long an address may be taken by what is left of a service that was killed. Shorter: whoever
starts it again at once is refused. Longer: whoever chose a taken one waits to hear of it."""
_FULL_S = 1.0
"""How often it is tried whether a full disk has room. A signal waits for so long, too."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class Child:
    """One part of the service: how it is started, and the process that it is now."""

    name: str
    arguments: Sequence[str]
    restarts: Restarts = field(default_factory=Restarts)
    process: subprocess.Popen[str] | None = None
    started_s: float = 0.0
    due_s: float = 0.0
    pulse: Pulse | None = None
    last_words: str = ""
    readers: list[threading.Thread] = field(default_factory=list)


class Supervisor:
    """Keeps some commands running."""

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        directory: StateDirectory,
        teller: TextTeller | JsonTeller,
        *,
        stall_s: float,
        clock: Clock | None = None,
    ) -> None:
        """Begin. `commands`: the name of a part -> what is started for it."""
        self._children = [Child(name, arguments) for name, arguments in commands.items()]
        self._directory, self._teller, self._stall_s = directory, teller, stall_s
        self._clock = clock or SystemClock()
        self._width = max(len(name) for name in (*commands, "up"))
        self._asked = 0
        self._asked_s = 0.0
        self._gave_up: tuple[str, int] | None = None

    def run(self) -> int:
        """Keep the parts running until a signal; returns the exit code."""
        with self._on_signals():
            while not self._asked and self._gave_up is None:
                for child in self._children:
                    self._look_after(child)
                pause(_LOOK_S)
            return self._end()

    def _look_after(self, child: Child) -> None:
        now_s = self._clock.monotonic_s()
        if child.process is None:
            if now_s >= child.due_s:
                self._start(child)
            return
        code = child.process.poll()
        if code is not None:
            self._take_end(child, code, now_s)
        elif child.pulse is not None:
            path = part_file(self._directory.parts, child.name, child.process.pid)
            if child.pulse.is_stalled(beat_of(path), now_s):
                pid = child.process.pid
                self._say(f"{child.name}, process {pid}, stands still: it is killed")
                child.process.kill()
                # Its successor starts when it is gone, not before.
                child.pulse = None

    def _start(self, child: Child) -> None:
        environment = {**os.environ, SUPERVISOR_VARIABLE: str(os.getpid())}
        child.process = subprocess.Popen(  # noqa: S603 - our own interpreter and verbs
            child.arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
        )
        child.started_s, child.last_words = self._clock.monotonic_s(), ""
        child.pulse = Pulse(self._stall_s, begun_s=child.started_s)
        child.readers = []
        for stream in (child.process.stdout, child.process.stderr):
            if stream is not None:
                is_last = stream is child.process.stderr
                reader = threading.Thread(
                    target=self._pass_on, args=(child, stream, is_last), daemon=True
                )
                reader.start()
                child.readers.append(reader)
        self._say(f"started {child.name}, process {child.process.pid}")

    def _pass_on(self, child: Child, stream: IO[str], is_last: bool) -> None:
        with stream:
            for line in stream:
                text = line.rstrip("\n")
                if is_last and text.strip():
                    child.last_words = text.strip()
                self._write(child.name, text)

    def _take_end(self, child: Child, code: int, now_s: float) -> None:
        for reader in child.readers:
            reader.join(1.0)
        child.process = None
        after = child.restarts.ended(code, lived_s=now_s - child.started_s)
        how = f"{child.name} {ending(code)}"
        # Whoever is killed says nothing of it: its last words are of something else.
        why = f": {child.last_words}" if child.last_words and code > 0 else ""
        if after.wait_s is None:
            self._gave_up = (f"{how}{why}", code)
            return
        loop = "a crash loop: " if after.loops else ""
        self._say(f"{loop}{how}{why}; it is started again in {after.wait_s:g} s")
        child.due_s = now_s + after.wait_s

    def _end(self) -> int:
        """End all children: let them drain, then kill; a second signal kills at once."""
        if self._gave_up is not None:
            self._say(f"giving up: {self._gave_up[0]}")
        else:
            self._say("stopping; again (Ctrl-C) stops at once, which is safe too")
        adopt_orphans()
        self._signal_all(signal.SIGTERM)
        until_s = self._clock.monotonic_s() + DRAIN_S
        while self._living() and self._asked < 2 and self._clock.monotonic_s() < until_s:
            pause(_LOOK_S)
        for child in self._living():
            self._say(f"{child.name} has not ended: it is killed, which loses nothing")
        self._signal_all(signal.SIGKILL)
        for child in self._children:
            if child.process is not None:
                child.process.wait()
        # Spark's processes outlive a killed engine by a moment, in which nothing is stopped yet.
        # They hold what it wrote to open, so that before their end nobody has read all of it.
        end_children()
        for child in self._children:
            for reader in child.readers:
                reader.join(1.0)
        if self._gave_up is not None:
            return max(self._gave_up[1], 1)
        self._say(
            f"stopped, {self._clock.monotonic_s() - self._asked_s:.1f} s after it was asked to"
        )
        return STOPPED if self._asked > 1 else 0

    def _living(self) -> list[Child]:
        return [
            child
            for child in self._children
            if child.process is not None and child.process.poll() is None
        ]

    def _signal_all(self, number: signal.Signals) -> None:
        for child in self._living():
            if child.process is not None:
                with suppress(ProcessLookupError):
                    child.process.send_signal(number)

    def _say(self, message: str) -> None:
        if isinstance(self._teller, JsonTeller):
            self._teller.say("up", message)
        else:
            self._write("up", self._teller.line(message))

    def _write(self, name: str, text: str) -> None:
        if isinstance(self._teller, JsonTeller):
            self._teller.say("output", text, part=name)
            return
        # One write for one line: several threads write.
        tell(f"{name:<{self._width}} | {text}\n")

    @contextmanager
    def _on_signals(self) -> Iterator[None]:
        def take(number: int, frame: FrameType | None) -> None:
            del number, frame
            self._asked += 1
            self._asked_s = self._asked_s or self._clock.monotonic_s()

        before = {number: signal.signal(number, take) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, known in before.items():
                signal.signal(number, known)


@dataclass(frozen=True, slots=True)
class UpRequest:
    """What was asked for on the command line."""

    pipeline: str
    state: Path
    listen: str
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure_listen: bool = False
    metrics_client: str | None = None
    producer: str | None = None
    amqp: str | None = None
    config_file: Path | None = None
    engine_options: tuple[str, ...] = ()
    as_json: bool = False


def commands_of(request: UpRequest) -> dict[str, list[str]]:
    """Return the verb and options of each part."""
    program = [sys.executable, "-m", "holdfast.cli"]
    state = ["--state", str(request.state)]
    pipeline = ["--pipeline", request.pipeline]
    config = ["--config", str(request.config_file)] if request.config_file else []
    listen = ["--listen", request.listen]
    listen += [f"--tls-cert={request.tls_cert}"] if request.tls_cert else []
    listen += [f"--tls-key={request.tls_key}"] if request.tls_key else []
    listen += ["--insecure-listen"] if request.insecure_listen else []
    told = [f"--metrics-client={request.metrics_client}"] if request.metrics_client else []
    told += [f"--producer={request.producer}"] if request.producer else []
    amqp = [f"--amqp={request.amqp}"] if request.amqp else []
    return {
        "gateway": [*program, "gateway", *pipeline, *state, *listen, *told, *config],
        "engine": [*program, "engine", *pipeline, *state, *request.engine_options, *config],
        "delivery": [*program, "delivery", *state, *amqp, *config],
    }


def check_listen(request: UpRequest, stop: Callable[[], bool]) -> None:
    """Refuse an address that the gateway could not listen on. A taken one may become free, while
    nobody asks to stop.

    Raises:
        UsageInvalid: it is none, it is taken, or it needs TLS.
        DependencyMissing: there is no gateway here.
    """
    with needing_server():
        from holdfast.gateway.serve import bind, parse_listen

    place = parse_listen(
        request.listen,
        tls_cert=request.tls_cert,
        tls_key=request.tls_key,
        insecure=request.insecure_listen,
    )
    clock = SystemClock()
    until_s = clock.monotonic_s() + _LISTEN_WAIT_S
    while True:
        try:
            bind(place).close()
            return
        except StorageFailed as error:
            cause = error.__cause__
            passes = isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
            if not passes or clock.monotonic_s() > until_s:
                what = f"--listen {request.listen}: {error.error}"
                remedy = "Choose another address, or end whoever listens there."
                raise UsageInvalid(what=what, remedy=remedy) from error
            if stop():
                return
            pause(_LOOK_S)


def check_state(
    state: Path,
    config: Config,
    spec: PipelineSpec,
    stop: Callable[[], bool],
    teller: TextTeller | JsonTeller,
) -> None:
    """Open the state once, and refuse what no part could work on. On a full disk wait for room,
    while nobody asks to stop: after a reboot there is nobody who would start this again.
    """
    is_told = False
    while not stop():
        try:
            with share(state, config, part="up", spec=spec):
                return
        except DiskFull as error:
            if not is_told:
                teller.say("waiting", f"nothing is started yet: {error}")
            is_told = True
            pause(_FULL_S)


def up_command(request: UpRequest) -> None:
    """Keep a service running until a signal."""
    # Whatever is made here is for its owner only.
    os.umask(0o077)
    with stop_on_signals() as stop:
        supervisor = _prepare(request, stop)
    # Nothing was started. A signal from here on ends this process, or is the supervisor's.
    sys.exit(0 if stop() else supervisor.run())


def _prepare(request: UpRequest, stop: Callable[[], bool]) -> Supervisor:
    """Say what can never work here, once, and not by three children."""
    from holdfast.cli.settings import load_settings
    from holdfast.spark.load import load_pipeline

    if request.amqp is not None:
        refuse_password(request.amqp)
    config = load_settings(request.config_file, {}).config
    spec = load_pipeline(request.pipeline).with_stages(config.stages).spec()
    check_listen(request, stop)
    teller = JsonTeller(SystemClock()) if request.as_json else TextTeller(SystemClock())
    check_state(request.state, config, spec, stop, teller)
    return Supervisor(
        commands_of(request),
        StateDirectory(request.state.resolve()),
        teller,
        stall_s=max(config.lease_patience_s, 3 * BEAT_S),
    )
