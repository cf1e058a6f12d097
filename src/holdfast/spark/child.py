"""Spark in a process of its own, which does works for the engine's process and dies with it.

Started as `python -m holdfast.spark.child FD PID`: the socket to talk over, and the parent.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import asdict
from json import loads
from pathlib import Path
from typing import Any

from holdfast._base.crashpoint import arm_from_environment
from holdfast._base.processes import die_with
from holdfast.config import StageOptions
from holdfast.engine.executor import Outcome
from holdfast.errors import HoldfastError, InvariantViolated, SparkLost, SparkNotStarted
from holdfast.spark.receipts import Mark, collecting
from holdfast.spark.wire import Start, line, pack_result, unpack_batch, unpack_series


class Child:
    """Answers requests until the socket closes: one at a time, or as many as the start says."""

    def __init__(self, channel: socket.socket) -> None:
        """Talk over `channel`."""
        self._channel = channel
        self._executor: Any = None
        self._pool: ThreadPoolExecutor | None = None
        self._sending = threading.Lock()
        self._marks: dict[tuple[str, int], Mark] = {}

    def serve(self) -> None:
        """Answer until the parent closes the socket."""
        with self._channel.makefile("rb") as requests, collecting() as self._marks:
            for text in requests:
                request = loads(text)
                if self._pool is None:
                    self._reply(request)
                else:
                    # What paid steps note is collected wherever they are used.
                    self._pool.submit(copy_context().run, self._reply, request)

    def _reply(self, request: dict[str, Any]) -> None:
        answer = line(id=request["id"], **self._answer(request))
        with self._sending:
            self._channel.sendall(answer)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            if "start" in request:
                self._start(Start(**request["start"]))
                return {"ready": True}
            if "series" in request:
                results = [pack_result(one) for one in self._series(request)]
                return {"outcomes": results, "paid": self._paid()}
            outcome = asdict(self._work(request))
            return {"outcome": outcome, "paid": self._paid()}
        except HoldfastError as error:
            return {"error": error.wire_text()}
        except Exception as error:  # the parent must hear of our own bugs too
            found = InvariantViolated(what=f"{type(error).__name__} in the Spark process: {error}")
            return {"error": found.wire_text()}

    def _paid(self) -> list[dict[str, Any]]:
        return [mark.to_wire() for mark in list(self._marks.values())]

    def _start(self, start: Start) -> None:
        from holdfast.spark.execute import SparkExecutor
        from holdfast.spark.load import load_pipeline
        from holdfast.spark.session import build_session

        stages = {name: StageOptions(durable=value) for name, value in start.durable.items()}
        pipeline = load_pipeline(start.pipeline).with_stages(stages)
        try:
            spark = build_session(
                master=start.master,
                app_name=f"holdfast {pipeline.name}",
                conf=start.conf,
                log_file=Path(start.log),
                short=start.short,
                fair=start.at_once > 1,
            )
        except SparkLost as error:
            raise SparkNotStarted(error=error.error, log=start.log) from error
        self._executor = SparkExecutor(spark, pipeline)
        if start.at_once > 1:
            # Users' functions may ask for the active session, which Spark keeps by thread; making a
            # frame is what sets it.
            self._pool = ThreadPoolExecutor(
                start.at_once, "work", lambda: spark.createDataFrame([], "nothing int")
            )

    def _work(self, request: dict[str, Any]) -> Outcome:
        if "check" in request:
            self._executor.check()
            return Outcome()
        outcome: Outcome = self._executor.run_batch(unpack_batch(request["batch"]))
        return outcome

    def _series(self, request: dict[str, Any]) -> list[Outcome | HoldfastError]:
        works = [unpack_series(one) for one in request["series"]]
        outcomes: list[Outcome | HoldfastError] = self._executor.run_series(works)
        return outcomes


def main() -> None:
    """Serve until the parent goes away."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    die_with(parent)
    # What Spark writes below the state is for its owner's eyes only.
    os.umask(0o077)
    arm_from_environment()
    Child(socket.socket(fileno=descriptor)).serve()
    # Not through Python's exit handlers: they wait for a JVM that has nothing left to say.
    os._exit(0)


if __name__ == "__main__":
    main()
