"""The engine of a service without Spark: what `holdfast engine` is, but for its executor.

`python -m tests.service.plain_engine STATE [GATE]`. With GATE, a directory, each work waits at it:
it writes its own name there, and goes on when a file `open` is there.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from tests.service.floor import SMALL, make_pipeline

from holdfast._base.clock import SystemClock
from holdfast._base.crashpoint import arm_from_environment
from holdfast._base.processes import die_with_supervisor
from holdfast.cli.engine import on_signals, telling
from holdfast.cli.tell import TextTeller
from holdfast.engine.executor import BatchWork, SeriesWork
from holdfast.engine.serve import Halt, ServedEngine
from holdfast.engine.state import share
from holdfast.errors import StageFailed
from holdfast.testing.plain import PlainExecutor

HANG = "HOLDFAST_HANG_PATIENCE_S"


def main() -> None:
    state = Path(sys.argv[1])
    gate = Path(sys.argv[2]) if len(sys.argv) > 2 else None

    def before(work: BatchWork | SeriesWork) -> None:
        if (state / "fails").exists():
            _fail_once(state, work)
        if gate is not None:
            (gate / Path(work.directory).parent.name).write_text("")
            while not (gate / "open").exists():
                time.sleep(0.01)

    os.umask(0o077)  # as the process of Spark has it
    die_with_supervisor()
    arm_from_environment()
    halt, teller = Halt(), TextTeller(SystemClock())
    config = replace(SMALL, hang_patience_s=float(os.environ.get(HANG, SMALL.hang_patience_s)))
    pipeline = make_pipeline()
    with (
        share(state, config, part="engine", spec=pipeline.spec()) as shared,
        on_signals(halt, [], teller),
    ):
        ServedEngine(
            shared,
            pipeline.spec(),
            lambda: PlainExecutor(pipeline, before),
            config=config,
            telling=telling(teller),
            halt=halt,
        ).serve()
    teller.say("stopped", "stopped")


def _fail_once(state: Path, work: BatchWork | SeriesWork) -> None:
    """Make the first attempt at each work fail, as a passing fault would. Durable: a file."""
    mark = state / f"fails-{Path(work.directory).parent.name}"
    if not mark.exists():
        mark.write_text("")
        raise StageFailed(stage="floor", where="here", error="a passing fault")


if __name__ == "__main__":
    main()
