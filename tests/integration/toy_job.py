"""The toy pipeline over a log, as a process that can be killed: `toy_job ROOT URL`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from tests.crash.workloads import SMALL, run_files

from holdfast._base.crashpoint import arm_from_environment


def main() -> None:
    root, url = sys.argv[1:]
    arm_from_environment()
    run_files(Path(root), replace(SMALL, fetch_records=1, log=url))


if __name__ == "__main__":
    main()
