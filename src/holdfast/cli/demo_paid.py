"""`holdfast demo paid`: 400 paid calls, a kill in the middle, and the provider's own bill.

The same job twice, in plain Spark and with `pay_once`. Each is killed with SIGKILL, its whole group
of processes, once the provider has counted half of the calls; then it is run again to its end. All
figures but the receipt are the provider's.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from holdfast.apps.paid.reviews import COUNT, LIMITS, review
from holdfast.errors import UsageInvalid

_DELAY_MS = 15
"""How long the provider takes. Shorter: the job is over before it can be killed in its middle."""
_KILL_AT = COUNT // 2
_TASKS = 2
_POLL_S = 0.01
_HEADING = "by the provider's own books"


@dataclass(slots=True)
class _Bill:
    """What a provider's own books say, and what the job wrote."""

    calls: int
    again: int
    written: int
    wrong: int
    killed_at: int
    said: str


def demo_paid_command(*, keep: Path | None) -> None:
    """Show what a kill costs with and without a ledger. Exits with 1 if the promise is broken."""
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise UsageInvalid(what=f"{keep} is not empty", remedy="Give a new directory to --keep.")
    root = (keep or Path(tempfile.mkdtemp(prefix="holdfast-demo-"))).absolute()
    try:
        failed = _demonstrate(root)
    finally:
        if keep is None:
            shutil.rmtree(root, ignore_errors=True)
    if failed:
        sys.exit(1)


def _demonstrate(root: Path) -> bool:
    root.mkdir(parents=True, exist_ok=True)
    plain, paid = _run(root, "plain"), _run(root, "paid")
    if plain is None or paid is None:
        return True
    window = _TASKS * (LIMITS.max_in_flight + LIMITS.intent_ahead)
    _say("")
    _say(f"{_HEADING:<34}{'plain Spark':>12}{'pay_once':>12}")
    for name, words in (
        ("calls", "calls charged"),
        ("again", "of them for a review paid before"),
        ("killed_at", "calls when it was killed"),
        ("written", "reviews written"),
    ):
        _say(f"{words:<34}{getattr(plain, name):>12,}{getattr(paid, name):>12,}")
    _say("")
    _say(f"receipt of the second run, by the ledger: {paid.said.strip()}")
    _say(f"promised: at most {window} calls on their way when it was killed are asked again")
    kept = paid.again <= window and not paid.wrong and paid.written == plain.written
    _say("the promise was kept" if kept else "THE PROMISE WAS BROKEN")
    return not kept


def _run(root: Path, mode: str) -> _Bill | None:
    """Run a job, kill it, run it again. None: the second run failed, and its log was shown."""
    books = root / f"{mode}-books.jsonl"
    serve = [sys.executable, "-m", "holdfast.apps.paid.provider", "--books", str(books)]
    serve += ["--delay-ms", str(_DELAY_MS)]
    provider = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own
    try:
        port = provider.stdout.readline().strip() if provider.stdout else ""
        url = f"http://127.0.0.1:{port}"
        _say(f"{mode}: classifying {COUNT} reviews; SIGKILL when the provider counts {_KILL_AT}")
        killed_at = _run_and_kill(root, url, mode)
        _say(f"{mode}: killed at {killed_at} calls; running it again to its end")
        job = _start(root, url, mode)
        said, _ = job.communicate()
        if job.returncode != 0:
            _say((root / f"{mode}.log").read_text(encoding="utf-8", errors="replace")[-2000:])
            _say(f"the {mode} job ended with exit code {job.returncode}; its log is above")
            return None
    finally:
        provider.kill()
        provider.wait()
    return _bill(root, mode, killed_at, said)


def _start(root: Path, url: str, mode: str) -> subprocess.Popen[str]:
    with (root / f"{mode}.log").open("a") as log:
        return subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", "holdfast.cli.paid_job", str(root), url, mode],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )


def _run_and_kill(root: Path, url: str, mode: str) -> int:
    """Run until the provider has counted half, then kill. Returns the provider's count then."""
    job = _start(root, url, mode)
    pause = threading.Event()
    while job.poll() is None and _count(url) < _KILL_AT:
        pause.wait(_POLL_S)
    if job.poll() is None:
        os.killpg(job.pid, signal.SIGKILL)
    job.communicate()
    return _count(url)


def _count(url: str) -> int:
    with urllib.request.urlopen(f"{url}/count", timeout=60) as reply:  # noqa: S310 - our own
        return int(json.load(reply)["count"])


def _bill(root: Path, mode: str, killed_at: int, said: str) -> _Bill:
    lines = (root / f"{mode}-books.jsonl").read_text(encoding="utf-8").splitlines()
    charged = Counter(json.loads(line)["text"] for line in lines)
    files = (root / f"{mode}-out").glob("*.json")
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    wrong = sum(row["text"] != review(row["review_id"]) for row in rows)
    wrong += len(rows) - len({row["review_id"] for row in rows})
    wrong += COUNT - len(charged)
    again = sum(charged.values()) - len(charged)
    return _Bill(sum(charged.values()), again, len(rows), wrong, killed_at, said)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
