"""The cases in which the driver dies: four jobs at once in one process, which the judge kills.

A batch job and a stream, each as plain Spark and with pay_once. The witness answers some calls of
each and holds the rest, so that all four are in their middle when SIGKILL comes.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
from pyspark.sql import SparkSession
from tests.proof.books import Plan
from tests.proof.cases import NARROW, WINDOW, Case, one_action, stream
from tests.proof.trial import ROWS, Trial, Witness, label_of

ALL = frozenset(map(str, range(ROWS)))
HELD_AFTER = 40
"""How many calls of each job are answered before the driver dies."""


def batch(t: Trial) -> None:
    t.limits = NARROW
    t.see(t.buy(t.ids()))


def streaming(t: Trial) -> None:
    t.limits = NARROW
    stream(t, one_action(t))


DRIVER = [
    Case(Plan("driver SIGKILL, batch", ROWS, ALL, again="in doubt", most=2 * WINDOW), batch),
    Case(Plan("driver SIGKILL, stream", ROWS, ALL, again="in doubt", most=4 * WINDOW), streaming),
]


def run(
    spark: SparkSession,
    directory: Path,
    provider: Witness,
    write: Callable[[Path, Trial], None],
) -> None:
    """Run the four jobs at once."""
    trials = [
        (case, Trial(spark, case.plan.case, directory, provider, paid=paid))
        for case in DRIVER
        for paid in (False, True)
    ]
    jobs = [trial.beside(partial(case.run, trial), trial.label) for case, trial in trials]
    for job in jobs:
        job.join()
    for _, trial in trials:
        write(directory, trial)


def kill_in_the_middle(start: Callable[[], subprocess.Popen[bytes]], provider: Witness) -> None:
    """Start the jobs, let each come half way, and kill the driver with all that it started."""
    labels = [label_of(case.plan.case, paid=paid) for case in DRIVER for paid in (False, True)]
    for label in labels:
        provider.rules(label, hold_after=HELD_AFTER)
    process = start()
    for label in labels:
        provider.wait(label, lambda s: s["begun"] > HELD_AFTER and s["answered"] == HELD_AFTER)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for member in family:
        try:
            os.kill(member.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()
    psutil.wait_procs(family, timeout=30)
    for label in labels:
        provider.rules(label)
