"""pay_once and format("holdfast") on Spark Connect behave as on a classic session."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

JOB = Path(__file__).with_name("connect_job.py")
ROWS = 40


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_paid_step_on_connect(tmp_path: Path) -> None:
    """A server and its client in another process: this one has a classic session."""
    done = subprocess.run(
        [sys.executable, str(JOB), str(tmp_path)], capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FACTS ")]
    assert lines, done.stderr[-4000:]
    facts = json.loads(lines[0].removeprefix("FACTS "))
    assert facts == {
        "session": "pyspark.sql.connect.session",
        "to_buy": ROWS,
        "filtered": ROWS - 1,
        "joined": ROWS,
        "receipt": [ROWS, 0.4],
        "then": 0,
        "table": {"bought": ROWS},
        "null_key": "KEY_INVALID",
        "changed": "STEP_CHANGED",
        "no_column": "USAGE_INVALID",
        "no_table": "USAGE_INVALID",
        "topic": [True, ROWS],
    }
    calls = Counter((tmp_path / "calls.log").read_text().split())
    assert calls == Counter(str(number) for number in range(ROWS))
