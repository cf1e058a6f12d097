"""What a failed attempt means for its run. Pure.

| what failed | then |
| --- | --- |
| the environment: disk, Java, a former owner, a changed input | the run stays; raise |
| Spark itself, in a process of ours | a failed attempt; a new process tries again, FAILED after
| | `spark_losses_max`: what kills Spark each time is the work |
| Spark itself, in the caller's session | the run stays; raise |
| a user's stage | a failed attempt; try again, FAILED after `attempts_max` |
| rows, columns or code that will fail again | FAILED at once |
| Holdfast's own reasoning | the run stays; raise |
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.config import Config
from holdfast.errors import (
    BadRows,
    HeaderWrong,
    HoldfastError,
    SparkLost,
    StageFailed,
    StageInvalid,
)
from holdfast.store.rows import Work


class Verdict(StrEnum):
    """What to do after a failed attempt."""

    RAISE = "raise"
    COUNT = "count"
    LOST = "lost"
    FAIL = "fail"


def judge(error: HoldfastError, *, replaceable: bool) -> Verdict:
    """Say what an error of an executor means: raise it, count it (as a failure, or as a Spark that
    was lost), or fail the run at once.
    """
    match error:
        case SparkLost():
            return Verdict.LOST if replaceable else Verdict.RAISE
        case StageFailed():
            return Verdict.COUNT
        case BadRows() | HeaderWrong() | StageInvalid():
            return Verdict.FAIL
        case _:
            return Verdict.RAISE


def is_exhausted(work: Work, config: Config) -> bool:
    """Tell whether a work has failed so often that its run fails.

    A lost Spark speaks less against the work than an error of its own: most often it is the machine
    or somebody's `kill -9`.
    """
    own = work.failures - work.losses
    return own >= config.attempts_max or work.losses >= config.spark_losses_max
