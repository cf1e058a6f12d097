"""All benchmarks, one after the other: `python -m bench [--quick | --full]`.

Each writes `NAME.json` to the directory of its size: figures of different sizes are never mixed.
With `--against DIR` the ratios are printed beside those of an earlier run, and the exit code is 1
if one of them is more than twice as bad, and beyond the noise: less than that proves nothing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench import chunks, coffee, ledger, log, resume, stages, start, worker_journal
from bench.compare import beside
from bench.harness import LARGE, NORMAL, QUICK, RESULTS, measured, read_result, say

ALL = {
    "coffee": coffee.figures,
    "log": log.figures,
    "resume": resume.figures,
    "chunks": chunks.figures,
    "stages": stages.figures,
    "ledger": ledger.figures,
    "start": start.figures,
    "worker_journal": worker_journal.figures,
}
IN_TWO_MINUTES = ("coffee", "log", "resume", "chunks", "ledger")
"""What `--quick` measures."""
COFFEE_LARGE = "coffee_large"
"""What `--full` adds."""


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="bench")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="two minutes, for CI")
    sizes.add_argument(
        "--full", action="store_true", help="also scale 1: three quarters of an hour more"
    )
    parser.add_argument(
        "--only", choices=[*ALL, COFFEE_LARGE], action="append", help="may be given again"
    )
    parser.add_argument("--dir", type=Path, help="a directory on the disk to measure")
    parser.add_argument("--out", type=Path, help="where result files go")
    parser.add_argument("--against", type=Path, help="earlier results: print ratios side by side")
    options = parser.parse_args()
    size = QUICK if options.quick else NORMAL
    whole = IN_TWO_MINUTES if options.quick else [*ALL, COFFEE_LARGE] if options.full else ALL
    names = options.only or whole
    to = options.out or (RESULTS / "quick" if options.quick else RESULTS)
    paths = [
        measured(COFFEE_LARGE, coffee.figures, LARGE, at=options.dir, to=to)
        if name == COFFEE_LARGE
        else measured(name, ALL[name], size, at=options.dir, to=to)
        for name in names
    ]
    if options.against is None:
        return
    worse = []
    for path in paths:
        earlier = options.against / path.name
        if not earlier.exists():
            say(f"{earlier} is not there: nothing to compare {path.stem} with")
            continue
        lines, bad = beside(read_result(earlier)[1], read_result(path)[1])
        worse += bad
        for line in lines:
            say(line)
    for name in worse:
        say(f"more than twice as bad: {name}")
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()
