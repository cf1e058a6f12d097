"""make proof-paid: what a witness saw, as plain Spark and with pay_once. Writes docs/proof-paid.md.

python -m tests.proof.paid [CASE]: with a name, only the cases that have it in theirs, no page.
Exit 0: in every case the witness saw each slot once, save those that the policy asked again.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.proof.books import Seen, Verdict, attempts_in, calls_in, judge
from tests.proof.cases import CASES, Case
from tests.proof.cluster import CLUSTER
from tests.proof.driver import DRIVER, kill_in_the_middle
from tests.proof.page import page, table
from tests.proof.trial import Witness, label_of, url_of, witness

PAGE = Path(__file__).parents[2] / "docs" / "proof-paid.md"
PLACES = {"local": CASES, "cluster": CLUSTER, "driver": DRIVER}


def main(only: str | None) -> int:
    started = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="holdfast-proof-"))
    wanted = {
        place: [case for case in cases if only is None or only in case.plan.case]
        for place, cases in PLACES.items()
    }
    log = directory / "witness.log"
    with witness(log) as provider:
        for place, cases in wanted.items():
            if cases:
                run_place(place, directory, provider, only)
    calls = calls_in(log)
    verdicts = [verdict_of(case, directory, calls) for cases in wanted.values() for case in cases]
    took = time.monotonic() - started
    print(table(verdicts))
    for verdict in verdicts:
        for what in verdict.wrong:
            print(f"WRONG: {verdict.plan.case}: {what}")
    wrong = sum(bool(verdict.wrong) for verdict in verdicts)
    print(f"{len(verdicts)} cases, {wrong} wrong, {took:.0f} s.")
    if wrong:
        print(f"Everything that was seen is in {directory}.")
        return 1
    shutil.rmtree(directory)
    if only is None:
        PAGE.write_text(page(verdicts), encoding="utf-8")
        print(f"Written: {PAGE.relative_to(PAGE.parents[1])}")
    return 0


def run_place(place: str, directory: Path, provider: Witness, only: str | None) -> None:
    """Run a place's cases in a process of its own, so that there is one JVM at a time."""

    def start() -> subprocess.Popen[bytes]:
        arguments = [place, str(directory), str(provider.port), *([only] if only else [])]
        return subprocess.Popen([sys.executable, "-m", "tests.proof.place", *arguments])

    print(f"{place}: {len(PLACES[place])} cases", file=sys.stderr)
    if place == "driver":
        kill_in_the_middle(start, provider)
        for case in DRIVER:
            note_recorded(case, directory)
    if (code := start().wait()) != 0:
        sys.exit(f"the process of {place} ended with {code}; see {directory}/spark-{place}.log")


def note_recorded(case: Case, directory: Path) -> None:
    """After a crash, before the resume: what is recorded may not be called again."""
    _, recorded = attempts_in(url_of(directory, case.plan.case), case.plan.slots)
    (directory / f"{case.plan.case}.recorded").write_text(json.dumps(sorted(recorded)))


def verdict_of(case: Case, directory: Path, calls: dict[str, Counter[str]]) -> Verdict:
    plain, paid = (label_of(case.plan.case, paid=paid) for paid in (False, True))
    seen = [Seen(**json.loads((directory / f"{x}.json").read_text())) for x in (plain, paid)]
    noted = directory / f"{case.plan.case}.recorded"
    if noted.exists():
        seen[1].recorded = dict.fromkeys(json.loads(noted.read_text()), 1)
    attempts, _ = attempts_in(url_of(directory, case.plan.case), case.plan.slots)
    return judge(case.plan, seen[0], calls[plain], seen[1], calls[paid], attempts)


if __name__ == "__main__":
    sys.exit(main(next(iter(sys.argv[1:]), None)))
