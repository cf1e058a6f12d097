"""`holdfast engine`: works on the runs of clients, or stands by for the one that does."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from holdfast._base.clock import SystemClock
from holdfast.cli.exits import STOPPED, one_line
from holdfast.cli.run import refuse_cluster
from holdfast.cli.settings import load_settings
from holdfast.cli.tell import JsonTeller, Teller, TextTeller
from holdfast.cli.words import words
from holdfast.config import Config
from holdfast.engine.events import Event, EventKind
from holdfast.engine.executor import Executor
from holdfast.engine.serve import Halt, ServedEngine, Telling
from holdfast.engine.state import Shared, share
from holdfast.errors import HoldfastError
from holdfast.spark.load import load_pipeline
from holdfast.spark.supervise import ChildExecutor
from holdfast.spark.wire import Start, durable_of
from holdfast.store.rows import ReadyRun

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What was asked for on the command line."""

    pipeline: str
    state: Path
    config_file: Path | None = None
    master: str | None = None
    spark_conf: tuple[str, ...] = ()
    shared_state: bool = False
    as_json: bool = False


def engine_command(request: EngineRequest) -> None:
    """Serve until a signal asks for the end: the first drains, the second ends at once."""
    # Whatever is made here is for its owner only: Spark's log, too.
    os.umask(0o077)
    flags = {"master": request.master}
    config = load_settings(request.config_file, flags, request.spark_conf).config
    spec = load_pipeline(request.pipeline).with_stages(config.stages).spec()
    refuse_cluster(config.master, request.state, shared_state=request.shared_state)
    teller = JsonTeller(SystemClock()) if request.as_json else TextTeller(SystemClock())
    halt = Halt()
    made: list[ChildExecutor] = []
    with (
        share(request.state.resolve(), config, part="engine", spec=spec) as shared,
        on_signals(halt, made, teller),
    ):

        def executor() -> Executor:
            made[:] = [_start_spark(request, shared, config, teller)]
            return made[0]

        ServedEngine(
            shared, spec, executor, config=config, telling=telling(teller), halt=halt
        ).serve()
    teller.say("stopped", "stopped")


def _start_spark(
    request: EngineRequest, shared: Shared, config: Config, teller: Teller
) -> ChildExecutor:
    log = shared.directory.spark_log
    teller.say("starting", f"starting Spark; its log is {log}", spark_log=str(log))
    start = Start(
        request.pipeline,
        str(log),
        config.master,
        dict(config.spark),
        durable_of(config.stages),
        at_once=config.works_at_once,
    )
    return ChildExecutor(start, teller.output())


def telling(teller: Teller) -> Telling:
    """Return how an engine tells what happens: a line each, with the run and its client."""

    def watch(run: ReadyRun, event: Event) -> None:
        # Of a service only what lasts: each batch is told once, when it is committed.
        if event.kind is not EventKind.STARTED:
            facts = {"run": run.run_id, "client": run.client, "name": event.name}
            teller.say(event.kind, f"{_name(run)}: {words(event)}", **facts)

    def trouble(run: ReadyRun, error: HoldfastError) -> None:
        text = one_line(error).removeprefix("holdfast: ")
        facts = {"run": run.run_id, "client": run.client, "code": error.code}
        teller.say("trouble", f"{_name(run)}: {text}", **facts)

    return Telling(lambda message: teller.say("engine", message), watch, trouble)


def _name(run: ReadyRun) -> str:
    return f"run {run.run_id} of {run.client}"


@contextmanager
def on_signals(halt: Halt, made: list[ChildExecutor], teller: Teller) -> Iterator[None]:
    """Drain on Ctrl-C and SIGTERM while the block runs; at the second one end at once.

    The handler waits for nothing. What it ends without unwinding is one of the crashes that
    everything here is made for.
    """

    def take(number: int, frame: FrameType | None) -> None:
        del number, frame
        if halt():
            for executor in made:
                executor.kill()
            os._exit(STOPPED)
        teller.stopping()
        halt.ask()

    before = {number: signal.signal(number, take) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)
