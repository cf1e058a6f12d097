"""Lines of text and of JSON on standard error."""

from __future__ import annotations

import json
import os
import sys

import pytest

from holdfast._base.ids import RunId
from holdfast._base.tell import tell, tell_at_once
from holdfast.cli.exits import exit_code
from holdfast.cli.tell import JsonTeller, TextTeller
from holdfast.engine.events import Event, EventKind, TableCount
from holdfast.errors import BadRows, DiskFull, RunStopped, StageFailed, UsageInvalid
from holdfast.testing.clock import VirtualClock

COMMITTED = Event(
    EventKind.COMMITTED, RunId("r"), "1.2", 3, 3000, 5, tables=(TableCount("t", 3, 3000, 5),)
)
FAILED = StageFailed(stage="s", where="f.py:3", error='two\nlines "x"')


def clock() -> VirtualClock:
    return VirtualClock(wall_ms=1_700_000_000_999)


def test_text_is_a_time_and_a_message(capfd: pytest.CaptureFixture[str]) -> None:
    teller = TextTeller(clock())
    teller(COMMITTED)
    teller.stopping()
    first, second = capfd.readouterr().err.splitlines()
    assert first == "2023-11-14T22:13:20Z batch 1.2 committed: 3 chunks, 3.0 kB, 5 rows"
    assert second.startswith("2023-11-14T22:13:20Z stopping")
    ending = teller.ending(FAILED, "/logs/spark.log")
    assert ending.count("\n") == 1
    assert ending.startswith("holdfast: [STAGE_FAILED] ")
    assert ending.endswith("Spark's own log: /logs/spark.log\n")
    assert "log" not in teller.ending(FAILED)


def test_json_is_an_object_per_line(capfd: pytest.CaptureFixture[str]) -> None:
    teller = JsonTeller(clock())
    teller(COMMITTED)
    teller.say("starting", "starting Spark", spark_log="/l")
    teller.stopping()
    committed, starting, stopping = map(json.loads, capfd.readouterr().err.splitlines())
    assert committed["time"] == "2023-11-14T22:13:20Z"
    assert (committed["event"], committed["run_id"]) == ("committed", "r")
    assert (committed["name"], committed["chunks"], committed["rows"]) == ("1.2", 3, 5)
    assert committed["tables"][0]["table"] == "t"
    assert (starting["event"], starting["spark_log"]) == ("starting", "/l")
    assert stopping["event"] == "stopping"
    error = json.loads(teller.ending(FAILED, "/l"))
    assert (error["event"], error["code"], error["spark_log"]) == ("error", "STAGE_FAILED", "/l")
    assert error["facts"] == FAILED.facts()


def test_what_a_stage_prints_becomes_objects_too(capfd: pytest.CaptureFixture[str]) -> None:
    teller = JsonTeller(clock())
    os.write(teller.output(), b"a line\nhalf a line \xff")
    teller.close()
    told = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [one["event"] for one in told] == ["output", "output"]
    assert [one["message"] for one in told] == ["a line", "half a line \ufffd"]


def test_exit_codes() -> None:
    assert exit_code(UsageInvalid(what="a", remedy="b")) == 2
    assert exit_code(BadRows(path="p", line=1, reason="r", count=1)) == 1
    assert exit_code(DiskFull(path="p")) == 75
    assert exit_code(RunStopped(what="a", resume="b")) == 130


def test_who_has_no_standard_error_tells_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """`2>&-`: Python has None for it then."""
    monkeypatch.setattr(sys, "stderr", None)
    tell("a line\n")
    tell_at_once("a line\n")
