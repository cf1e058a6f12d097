"""`holdfast calls`: counts, lists, retry, forget, export; each as a person types it."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from holdfast.cli.main import main
from holdfast.ledger.contract import Outcome, Status
from holdfast.ledger.file_ledger import FileLedger
from holdfast.testing.ledgers import bought, claim, make_slot, make_step

Calls = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    opened = FileLedger(f"file://{tmp_path}/ledger")
    step = make_step(opened, "ask")
    slots = {key: make_slot(step, key) for key in ("good", "parked", "bad", "lost")}
    claim(opened, list(slots.values()))
    opened.settle(
        [
            bought(slots["good"], b'["yes"]', cost_micros=1500),
            Outcome(slots["parked"], Status.PARKED, reason="unknown outcome"),
            Outcome(slots["bad"], Status.FAILED, reason="refused", dead_letter=True),
        ]
    )
    opened.close()
    return str(tmp_path / "ledger")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Calls:
    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["holdfast", "calls", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def test_counts_and_lists(calls: Calls, ledger: str) -> None:
    code, out, _ = calls(ledger)
    assert code == 0
    assert "ask: bought 1, reused 0, in doubt 1, parked 1, failed 1, spent 0.0015 USD" in out
    assert f"next: holdfast calls retry {ledger}" in out
    for flag, key in (("--unknown", "lost"), ("--parked", "parked"), ("--failed", "bad")):
        code, out, _ = calls(flag, ledger)
        listed = [line for line in out.splitlines() if line.startswith("  ask ")]
        assert [line.split(":")[0] for line in listed] == [f"  ask {key}"]
    code, out, _ = calls(ledger, "--key", "good", "--json")
    facts = json.loads(out)
    assert [slot["answer"] for slot in facts["slots"]] == ['["yes"]']
    assert facts["steps"][0]["bought"] == 1


def test_retry_takes_back_what_was_not_bought(calls: Calls, ledger: str) -> None:
    assert calls("retry", ledger)[0] == 2, "retry of what?"
    assert "0 outcome(s)" in calls("retry", ledger, "--key", "good")[1]
    assert "1 outcome(s)" in calls("retry", ledger, "--key", "bad")[1]
    assert "1 outcome(s)" in calls("retry", ledger, "--parked", "--failed")[1]
    _, out, _ = calls(ledger, "--json")
    (step,) = json.loads(out)["steps"]
    assert (step["bought"], step["parked"], step["failed"], step["in_doubt"]) == (1, 0, 0, 1)


def test_forget_wants_to_be_meant(calls: Calls, ledger: str) -> None:
    assert calls("forget", ledger)[0] == 2
    code, _, err = calls("forget", ledger, "--key", "good")
    assert code == 2
    assert "would delete 1 recorded" in err
    assert "1 outcome(s) deleted" in calls("forget", ledger, "--key", "good", "--yes")[1]
    assert "3 outcome(s) deleted" in calls("forget", ledger, "--step", "ask", "--yes")[1]
    assert "bought 0" in calls(ledger)[1]


def test_every_answer_ends_with_the_next_step(calls: Calls, ledger: str, tmp_path: Path) -> None:
    """In the order in which somebody would follow them."""

    def last(*words: str) -> str:
        code, out, _ = calls(*words)
        assert code == 0
        return out.splitlines()[-1]

    assert last(ledger) == f"next: holdfast calls retry {ledger} --parked --failed"
    assert last("retry", ledger, "--parked", "--failed").startswith("next: run the job again")
    assert last("retry", ledger, "--parked") == f"next: holdfast calls show {ledger}"
    assert last(ledger).startswith("next: run the job again: its policy settles what is in doubt")
    assert last("forget", ledger, "--key", "lost", "--yes").startswith("next: run the job again")
    assert last(ledger) == f"next: holdfast calls export {ledger} --out calls.parquet"
    table = str(tmp_path / "calls.csv")
    assert last("export", ledger, "--out", table) == f"next: holdfast calls show {ledger}"
    FileLedger(f"file://{tmp_path}/new").close()
    assert last(str(tmp_path / "new")).startswith("next: run a job with this ledger")


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_export(calls: Calls, ledger: str, tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"calls.{ending}"
    assert "wrote 4 slot(s)" in calls("export", ledger, "--out", str(out))[1]
    if ending == "parquet":
        rows = pq.read_table(out).to_pylist()
    elif ending == "csv":
        with out.open() as file:
            rows = list(csv.DictReader(file))
    else:
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    found = {row["key"]: (row["state"], Decimal(str(row["cost_usd"]))) for row in rows}
    assert found["good"] == ("bought", Decimal("0.0015"))
    assert {key: state for key, (state, _) in found.items()} == {
        "good": "bought", "parked": "parked", "bad": "failed", "lost": "in doubt",
    }  # fmt: skip


def test_bad_questions_are_one_line(calls: Calls, ledger: str, tmp_path: Path) -> None:
    for words in (
        [str(tmp_path / "none")],
        [ledger, "--step", "other"],
        ["export", ledger, "--out", str(tmp_path / "x.txt")],
    ):
        code, _, err = calls(*words)
        assert (code, err.count("\n")) == (2, 1), err
